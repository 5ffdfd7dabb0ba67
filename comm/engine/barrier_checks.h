// Checks of what orders the ranks in a world of shared-memory schedules: the verifier's part about barriers.

#ifndef COMM_ENGINE_BARRIER_CHECKS_H_
#define COMM_ENGINE_BARRIER_CHECKS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

// Checks that
// - every rank holds the same barriers in the same order, so none waits for ever;
// - where ranks touch each other's input or output, all begin with a kBarrier step, in which they learn where it is, and none touches
//   it after its last barrier, when its owner may have left;
// - between two barriers no two ranks touch the same block of the same memory, one of them writing.
// REQUIRES  shared-memory schedules that pass CheckSteps and, where they are staged, CheckRounds
// ERRORS    INTERNAL naming the rank, the step and what is wrong
absl::Status CheckBarriers(absl::Span<const Schedule> all_ranks, bool in_place);

// Checks that staged schedules can be executed in rounds, as comm/schedule/stage.h requires. INTERNAL says why not.
absl::Status CheckRounds(absl::Span<const Schedule> all_ranks);

}  // namespace lockstep

#endif  // COMM_ENGINE_BARRIER_CHECKS_H_

// What orders the ranks in a world of shared-memory schedules: the part of the verifier that is about barriers.

#ifndef COMM_ENGINE_BARRIER_CHECKS_H_
#define COMM_ENGINE_BARRIER_CHECKS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

// Every rank holds the same barriers in the same order, so none waits for ever. Where ranks touch each other's input or
// output, all begin with a kBarrier step, in which they learn where it is, and none touches it after its last barrier, when its
// owner may have left. Between two barriers no two ranks touch the same block of the same memory, one of them writing.
// Needs steps in which CheckSteps has found nothing, of shared-memory schedules, and where they are staged CheckRounds. INTERNAL
// naming the rank, the step and what is wrong.
absl::Status CheckBarriers(absl::Span<const Schedule> all_ranks, bool in_place);

// Staged schedules can be executed in rounds, as comm/schedule/stage.h wants them. INTERNAL saying why not.
absl::Status CheckRounds(absl::Span<const Schedule> all_ranks);

}  // namespace lockstep

#endif  // COMM_ENGINE_BARRIER_CHECKS_H_

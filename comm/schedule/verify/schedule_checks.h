// The verifier's checks of order and memory: of one rank's schedule alone, and of what barriers order in a world in shared memory.

#ifndef COMM_SCHEDULE_VERIFY_SCHEDULE_CHECKS_H_
#define COMM_SCHEDULE_VERIFY_SCHEDULE_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

// Checks that steps name existing memory, peers and earlier steps, and never write through the input window. Schedules in shared
// memory have no messages and an empty `after`, and only they have barriers and touch other ranks' memory.
absl::Status CheckSteps(const Schedule& schedule, bool in_place);

// Checks that any two steps that touch the same block of memory, one of them writing, are ordered by `after`.
// REQUIRES  a schedule of messages that passes CheckSteps. (In shared memory the steps of a rank run one after the other.)
absl::Status CheckRaces(const Schedule& schedule, bool in_place);

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

// "rank 2, step #3 (send output[1] to rank 3, after #2)"
std::string DescribeStep(const Schedule& schedule, size_t index);
// INTERNAL: "<the step> <fault>".
absl::Status StepError(const Schedule& schedule, size_t index, absl::string_view fault);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_SCHEDULE_CHECKS_H_

// Checks of one rank's schedule alone: the part of the verifier that needs no other rank.

#ifndef COMM_SCHEDULE_SCHEDULE_CHECKS_H_
#define COMM_SCHEDULE_SCHEDULE_CHECKS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

// Checks that steps name existing memory, peers and earlier steps, and never write through the input window. Schedules in shared
// memory have no messages and an empty `after`, and only they have barriers and touch other ranks' memory.
absl::Status CheckSteps(const Schedule& schedule, bool in_place);

// Checks that any two steps that touch the same block of memory, one of them writing, are ordered by `after`.
// REQUIRES  a schedule of messages that passes CheckSteps. (In shared memory the steps of a rank run one after the other.)
absl::Status CheckRaces(const Schedule& schedule, bool in_place);

// "rank 2, step #3 (send output[1] to rank 3, after #2)"
std::string DescribeStep(const Schedule& schedule, size_t index);
// INTERNAL: "<the step> <fault>".
absl::Status StepError(const Schedule& schedule, size_t index, absl::string_view fault);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_SCHEDULE_CHECKS_H_

// The simulator's part for shared-memory schedules, and the cost of local work. comm/schedule/verify/simulator.h describes the
// model.

#ifndef COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_
#define COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

// The time of `bytes` bytes of a step that is neither a message nor a barrier.
double WorkNs(const Step& step, double bytes, const Network& network);

// The time from the common start until the last rank is done. `schedules` are those of all ranks of one collective in shared memory,
// in rank order; `bytes` is not negative.
// ERRORS  INVALID_ARGUMENT     the ranks do not share one host, or one gives more in a barrier than a slot holds
//         FAILED_PRECONDITION  a rank waits for ever in a barrier
absl::StatusOr<double> SimulateInSharedMemory(absl::Span<const Schedule> schedules, double bytes,
                                              const Network& network);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_

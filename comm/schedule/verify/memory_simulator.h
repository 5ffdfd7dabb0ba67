// The part of the simulator that is about shared-memory schedules, and what local work costs. The model is told in
// comm/schedule/verify/simulator.h.

#ifndef COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_
#define COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

// What a step that is neither a message nor a barrier takes, of `bytes` bytes, or of a part of the step of so many.
double WorkNs(const Step& step, double bytes, const Network& network);

// From the common start until the last rank is done. `schedules` are those of all ranks of one collective in shared memory, in
// rank order, `bytes` is not negative. INVALID_ARGUMENT when the ranks do not share one host, or when one gives more in a
// barrier than a line holds; FAILED_PRECONDITION when a rank waits for ever in a barrier.
absl::StatusOr<double> SimulateInSharedMemory(absl::Span<const Schedule> schedules, double bytes,
                                              const Network& network);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_MEMORY_SIMULATOR_H_

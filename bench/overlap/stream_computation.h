// A computation in the order of a stream, as frameworks have on accelerators: what it does is issued and goes on while
// the caller goes on.

#ifndef BENCH_OVERLAP_STREAM_COMPUTATION_H_
#define BENCH_OVERLAP_STREAM_COMPUTATION_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "base/device.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/compute_plan.h"

namespace lockstep {
namespace bench {

// Enqueues so many seconds of work and returns.
using StreamWork = std::function<absl::Status(double seconds)>;

// Keeps the device busy with as little as can be: bench/overlap/occupy.h. Borrows the stream.
StreamWork ClockWork(Stream* stream);

// Has `work` enqueue each part of the plan that takes time on the stream, which it borrows. Touches no gradient.
std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream, StreamWork work);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_STREAM_COMPUTATION_H_

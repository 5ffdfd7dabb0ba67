// A computation in the order of a stream, as frameworks have on accelerators: what it does is issued and goes on while
// the caller goes on.

#ifndef BENCH_OVERLAP_STREAM_COMPUTATION_H_
#define BENCH_OVERLAP_STREAM_COMPUTATION_H_

#include <memory>

#include "base/device.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/compute_plan.h"

namespace lockstep {
namespace bench {

// Keeps the stream busy (bench/overlap/occupy.h) for each part of the plan. Touches no gradient. Borrows the stream.
std::unique_ptr<Computation> MakeStreamComputation(const ComputePlan& plan, Stream* stream);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_STREAM_COMPUTATION_H_

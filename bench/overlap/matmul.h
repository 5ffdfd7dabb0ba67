// A product of two matrices of f32 in the order of a stream: work that wants a device's processors and memory, as the layers
// of a network do.
//
// The kernel is a plain tiled one of our own, so that it needs no library. It is slower than a vendor's, and is there to
// compete with communication, not to be measured.

#ifndef BENCH_OVERLAP_MATMUL_H_
#define BENCH_OVERLAP_MATMUL_H_

#include "absl/status/status.h"
#include "base/device.h"
#include "bench/overlap/matmul_cuda.h"

namespace lockstep {
namespace bench {

// Enqueues it and returns; the matrices are the stream's device's, and borrowed until it is done. An element is summed in the
// order of depth; a GPU rounds once where the host rounds a product and a sum. On a host stream its thread runs the same
// body, a thread of a block after the other. Errors are those of a launch and of Stream::Enqueue.
absl::Status Matmul(Stream& stream, const MatmulArguments& arguments);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_MATMUL_H_

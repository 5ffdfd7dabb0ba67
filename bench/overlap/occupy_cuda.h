// The kernel behind Occupy: defined by occupy_cuda.cu or, in a build without CUDA, by occupy_stub.cc. Plain C++, so that
// nvcc sees no Abseil.

#ifndef BENCH_OVERLAP_OCCUPY_CUDA_H_
#define BENCH_OVERLAP_OCCUPY_CUDA_H_

#include <cstdint>

namespace lockstep {
namespace bench {
namespace internal {

// `stream` is a cudaStream_t of the calling thread's device. Returns a cudaError_t.
int LaunchClockWatcher(void* stream, uint64_t nanoseconds);

}  // namespace internal
}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_OCCUPY_CUDA_H_

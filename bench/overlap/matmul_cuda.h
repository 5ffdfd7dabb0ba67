// The kernel behind Matmul: defined by matmul_cuda.cu or, in a build without CUDA, by matmul_stub.cc. Plain C++, so that nvcc
// sees no Abseil.

#ifndef BENCH_OVERLAP_MATMUL_CUDA_H_
#define BENCH_OVERLAP_MATMUL_CUDA_H_

#include <cstdint>

namespace lockstep {
namespace bench {

// product = left x right. Matrices are row by row, without gaps; the product overlaps no operand. None is empty.
struct MatmulArguments {
  const float* left = nullptr;   // rows x depth
  const float* right = nullptr;  // depth x columns
  float* product = nullptr;      // rows x columns
  uint32_t rows = 0;
  uint32_t columns = 0;
  uint32_t depth = 0;
};

namespace internal {

// `stream` is a cudaStream_t of the calling thread's device. Returns a cudaError_t.
int LaunchMatmul(void* stream, const MatmulArguments& arguments);

}  // namespace internal
}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OVERLAP_MATMUL_CUDA_H_

#include "bench/overlap/matmul_cuda.h"

namespace lockstep {
namespace bench {
namespace internal {

// Nobody has a CUDA stream in such a build: cudaErrorInvalidValue.
int LaunchMatmul(void* stream, const MatmulArguments& arguments) { return 1; }

}  // namespace internal
}  // namespace bench
}  // namespace lockstep

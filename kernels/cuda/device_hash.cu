#include "kernels/cuda/arguments.h"
#include "kernels/cuda/hash_inl.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

__global__ void __launch_bounds__(kThreads) RunHash(const HashArguments arguments) {
  Hash::Run(arguments, blockIdx.x, threadIdx.x);
}

}  // namespace

namespace internal {

void AddHash(KernelTable& table) { table.hash = reinterpret_cast<KernelFunction>(&RunHash); }

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

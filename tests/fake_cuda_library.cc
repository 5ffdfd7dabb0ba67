// liblockstep.so on a CUDA in memory: for programs that load it, such as Python's. Kernels are run by their bodies on the host.

#include <functional>

#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_api_testing.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/table_inl.h"

namespace lockstep {
namespace {

FakeCuda* const fake_cuda = new FakeCuda;

}  // namespace

namespace kernels::cuda {
namespace {

using HostKernel = std::function<void()> (*)(uint32_t blocks, const void* arguments);

// A grid to run later, with a copy of its arguments.
template <typename Body>
std::function<void()> Grid(uint32_t blocks, const void* arguments) {
  return [blocks, of_body = *static_cast<const typename Body::Arguments*>(arguments)] {
    for (uint32_t block = 0; block < blocks; ++block) {
      for (uint32_t thread = 0; thread < kThreads; ++thread) Body::Run(of_body, block, thread);
    }
  };
}

template <typename Body>
struct HostEntry {
  static KernelFunction Function() { return reinterpret_cast<KernelFunction>(&Grid<Body>); }
};

}  // namespace

// In the place of device_kernels.cu.

const KernelTable& DeviceKernels() {
  static const KernelTable table = [] {
    KernelTable kernels = {};
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddTransfersTo<HostEntry, id>(kernels);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
    return kernels;
  }();
  return table;
}

int LaunchKernel(KernelFunction kernel, uint32_t blocks, const void* arguments, void* stream) {
  return fake_cuda->LaunchKernel(stream, reinterpret_cast<HostKernel>(kernel)(blocks, arguments));
}

int LoadKernels() { return kCudaSuccess; }

}  // namespace kernels::cuda
}  // namespace lockstep

// cudaStreamQuery of the fake. That it is there also tells that this is one.
extern "C" __attribute__((visibility("default"))) int lockstep_fake_cuda_stream_query(void* stream) {
  return lockstep::TheCudaApi().stream_query(stream);
}

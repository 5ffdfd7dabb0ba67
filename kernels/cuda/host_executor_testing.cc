#include "kernels/cuda/host_executor_testing.h"

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/table_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

using HostKernel = void (*)(uint32_t blocks, const void* arguments);

template <typename Body>
void RunGrid(uint32_t blocks, const void* arguments) {
  const auto& of_body = *static_cast<const typename Body::Arguments*>(arguments);
  for (uint32_t block = 0; block < blocks; ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) Body::Run(of_body, block, thread);
  }
}

template <typename Body>
struct HostEntry {
  static KernelFunction Function() { return reinterpret_cast<KernelFunction>(&RunGrid<Body>); }
};

}  // namespace

const KernelTable& HostExecutor::kernels() const {
  static const KernelTable table = [] {
    KernelTable kernels = {};
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) AddTransfersTo<HostEntry, id>(kernels);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
    return kernels;
  }();
  return table;
}

absl::Status HostExecutor::Launch(KernelFunction kernel, uint32_t blocks, const void* arguments) {
  ++launches_;
  reinterpret_cast<HostKernel>(kernel)(blocks, arguments);
  return absl::OkStatus();
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

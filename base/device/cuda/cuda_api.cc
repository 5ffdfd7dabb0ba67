#include "base/device/cuda/cuda_api.h"

#include <atomic>

namespace lockstep {
namespace {

// Released when a test puts its table in place, acquired by whoever calls CUDA.
std::atomic<const CudaApi*> replacement{nullptr};

}  // namespace

const CudaApi& TheCudaApi() {
  const CudaApi* const api = replacement.load(std::memory_order_acquire);
  return api != nullptr ? *api : internal::LinkedCudaApi();
}

namespace internal {

void ReplaceCudaApi(const CudaApi* api) { replacement.store(api, std::memory_order_release); }

}  // namespace internal
}  // namespace lockstep

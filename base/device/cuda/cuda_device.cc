#include "base/device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/cuda/cuda_stream.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

class Cuda final : public Device {
 public:
  Cuda(const CudaApi& api, int index) : api_(api), index_(index), fork_generation_(ForkGeneration()) {}

  DeviceId id() const override { return {DeviceKind::kCuda, index_}; }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, index_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    int least = 0;
    int greatest = 0;
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(api_.device_get_stream_priority_range(&least, &greatest),
                                        "cudaDeviceGetStreamPriorityRange(&least, &greatest)", index_));
    void* native = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(CudaStatus(api_.stream_create(&native, greatest),
                                        "cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest)",
                                        index_));
    return internal::MakeCudaStream(api_, index_, native, /*owned=*/true, name);
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, index_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    return internal::MakeCudaEvent(api_, index_);
  }

  absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void* native) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, index_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    const auto handle = reinterpret_cast<uintptr_t>(native);
    std::string name = absl::StrCat("borrowed 0x", absl::Hex(handle));
    // Default streams are those of whatever device the calling thread is on.
    if (handle != 0 && handle != kCudaLegacyStream && handle != kCudaPerThreadStream) {
      LOCKSTEP_RETURN_IF_ERROR(CheckStream(native));
    }
    return internal::MakeCudaStream(api_, index_, native, /*owned=*/false, name);
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override { return AllocateWith(api_.malloc, "cudaMalloc", bytes); }
  void Free(void* memory) override { FreeWith(api_.free, "cudaFree", memory); }

  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override {
    return AllocateWith(api_.host_alloc, "cudaHostAlloc", bytes);
  }
  void FreeOnHost(void* memory) override { FreeWith(api_.free_host, "cudaFreeHost", memory); }

 private:
  absl::Status MayCall() const {
    if (internal::MayCallCuda(fork_generation_)) return absl::OkStatus();
    return internal::MayNotCallCuda(fork_generation_, Name(id()));
  }

  absl::Status CheckStream(void* native) {
    int of_device = -1;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(api_.stream_get_device(native, &of_device), "cudaStreamGetDevice(stream, &device)", index_));
    if (of_device == index_ || of_device == -1) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "cuda:", index_, ": stream 0x", absl::Hex(reinterpret_cast<uintptr_t>(native)), " is one of cuda:", of_device));
  }

  absl::StatusOr<void*> AllocateWith(int (*allocate)(void**, size_t), absl::string_view function, size_t bytes) {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, index_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    const CudaRelaxedCapture relaxed(api_);
    void* memory = nullptr;
    const int code = allocate(&memory, std::max<size_t>(bytes, 1));
    if (code == kCudaSuccess) return memory;
    return CudaAllocationStatus(code, function, bytes, index_);
  }

  void FreeWith(int (*free)(void*), absl::string_view function, void* memory) {
    if (memory == nullptr || !internal::MayDestroyInCuda(fork_generation_, function)) return;
    const CudaGuard guard(api_, index_);
    const CudaRelaxedCapture relaxed(api_);
    const int code = free(memory);
    // The process ends, and its memory with it.
    if (code == kCudaSuccess || code == kCudaUnloading) return;
    LOCKSTEP_LOG(kWarning) << CudaStatus(code, absl::StrCat(function, "(memory)"), index_);
  }

  const CudaApi& api_;
  const int index_;
  const uint64_t fork_generation_;
};

// The process's devices, made when asked for and never destroyed.
class Registry {
 public:
  Device* Get(const CudaApi& api, int index) {
    MutexLock lock(&mu_);
    std::unique_ptr<Cuda>& device = devices_[{&api, index}];
    if (device == nullptr) device = std::make_unique<Cuda>(api, index);
    return device.get();
  }

 private:
  Mutex mu_;
  // By table, too: what was made over a test's table is of no use later.
  std::map<std::pair<const CudaApi*, int>, std::unique_ptr<Cuda>> devices_ ABSL_GUARDED_BY(mu_);
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

absl::StatusOr<int> CudaDeviceCount() {
  int count = 0;
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(TheCudaApi().get_device_count(&count), "cudaGetDeviceCount(&count)"));
  if (count == 0) return absl::UnavailableError("CUDA: no device");
  return count;
}

absl::StatusOr<Device*> CudaDevice(int index) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int count, CudaDeviceCount());
  if (0 <= index && index < count) return TheRegistry().Get(TheCudaApi(), index);
  return absl::InvalidArgumentError(absl::StrCat("cuda:", index, ": this machine has ", count, " CUDA device",
                                                 count == 1 ? "" : "s", " for this process"));
}

namespace internal {

Device* CudaDeviceOver(const CudaApi& api, int index) { return TheRegistry().Get(api, index); }

}  // namespace internal

absl::StatusOr<std::string> CudaPciAddress(int index) {
  std::array<char, 32> address = {};
  const int code = TheCudaApi().device_get_pci_bus_id(address.data(), static_cast<int>(address.size()), index);
  LOCKSTEP_RETURN_IF_ERROR(CudaStatus(code, "cudaDeviceGetPCIBusId", index));
  return std::string(address.data());
}

}  // namespace lockstep

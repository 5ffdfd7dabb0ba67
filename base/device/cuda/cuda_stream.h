// A CUDA stream and its events; internal to the CUDA device.

#ifndef BASE_DEVICE_CUDA_CUDA_STREAM_H_
#define BASE_DEVICE_CUDA_CUDA_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_host_work.h"
#include "base/device/device.h"

namespace lockstep {
namespace internal {

// Whether the caller may call CUDA for what was made at `fork_generation`: not in a forked child, which CUDA does not
// follow, nor inside a closure that a stream runs.
bool MayCallCuda(uint64_t fork_generation);
// FAILED_PRECONDITION and why not; `what` was to be used.
absl::Status MayNotCallCuda(uint64_t fork_generation, absl::string_view what);
// The same of a destructor, which can only leave things as they are: in a forked child they are the parent's, and
// inside a closure it warns of the leak, since destroying there may wait for that very closure.
bool MayDestroyInCuda(uint64_t fork_generation, absl::string_view what);

class CudaEvent final : public Event {
 public:
  // The calling thread is on the device.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(const CudaApi& api, int device);
  ~CudaEvent() override;

  // True also when the device is lost or the event is part of a capture: Synchronize() tells. In a forked child, too.
  // False in work of a CUDA stream, too, which may not ask.
  bool Query() const override;
  absl::Status Synchronize(Deadline deadline) override;

  // The same as CUDA's number, which is kCudaNotReady when the deadline has passed.
  int Await(Deadline deadline) const;

  int device() const { return device_; }
  void* native() const { return native_; }

 private:
  CudaEvent(const CudaApi& api, int device, void* native);

  const CudaApi& api_;
  const int device_;
  void* const native_;
  const uint64_t fork_generation_;
};

class CudaStream final : public Stream {
 public:
  enum class Ownership { kOwned, kBorrowed };

  CudaStream(const CudaApi& api, int device, void* native, Ownership ownership, const std::string& name);
  ~CudaStream() override;

  DeviceId device() const override { return {DeviceKind::kCuda, device_}; }
  void* native() const override { return native_; }
  // cudaStreamPerThread.
  bool is_callers() const override { return reinterpret_cast<uintptr_t>(native_) == 2; }
  // Not known counts as not.
  bool capturing() const override;
  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override;
  absl::Status Copy(void* target, const void* source, size_t bytes) override;
  absl::Status Record(Event* event) override;
  absl::Status Wait(Event* event) override;
  absl::Status AwaitValue(const std::atomic<uint32_t>* word, uint32_t value) override;
  absl::Status WriteValue(std::atomic<uint32_t>* word, uint32_t value) override;
  absl::Status Synchronize(Deadline deadline) override;
  absl::Status status() const override;

  // AllocateAsync, FreeAsync and IsCapturing of base/device/cuda/cuda_device.h.
  absl::StatusOr<void*> Allocate(size_t bytes);
  absl::Status Free(void* memory);
  absl::StatusOr<bool> IsCapturing() const;

 private:
  absl::Status MayCall() const;
  absl::Status RefuseCapture(absl::string_view what);
  absl::Status AwaitEnd(Deadline deadline);
  // Waits for the device, but not for ever.
  void Drain();

  const CudaApi& api_;
  const int device_;
  void* const native_;
  const Ownership ownership_;
  const uint64_t fork_generation_;
  // Shared with the closures that CUDA has yet to call, which may be later than the end of the stream.
  std::shared_ptr<CudaHostWork> work_;
};

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_STREAM_H_

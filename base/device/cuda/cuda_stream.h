// A CUDA stream and its events; internal to the CUDA device.

#ifndef BASE_DEVICE_CUDA_CUDA_STREAM_H_
#define BASE_DEVICE_CUDA_CUDA_STREAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/device.h"
#include "base/mutex.h"

namespace lockstep {
namespace internal {

// Whether the caller may call CUDA for what was made at `fork_generation`. False in a forked child, which CUDA does not
// support, and in a closure that a stream runs.
bool MayCallCuda(uint64_t fork_generation);
// FAILED_PRECONDITION with the reason; `what` names the object.
absl::Status MayNotCallCuda(uint64_t fork_generation, absl::string_view what);
// The same for a destructor, which does nothing if this is false. In a forked child the objects belong to the parent.
// In a closure, destroying might wait for that closure: the leak is logged.
bool MayDestroyInCuda(uint64_t fork_generation, absl::string_view what);

class CudaEvent final : public Event {
 public:
  // The calling thread is on the device.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(const CudaApi& api, int device);
  ~CudaEvent() override;

  // Also true when the device is lost or the event is part of a capture, where Synchronize() returns the error, and in a
  // forked child. Also false in work of a CUDA stream, which may not call CUDA.
  bool Query() const override;
  absl::Status Synchronize(Deadline deadline) override;

  // The same as a cudaError_t; kCudaNotReady when the deadline has passed.
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

// The closures that CUDA runs for one stream (cudaLaunchHostFunc).
//
// CUDA gets a pointer for each closure and calls back with it, in the stream's order, on a thread of the driver. It does not
// call when the device is lost, and it may call after the stream's handle is gone. So a list here keeps the closures. A call
// removes its entry. Each entry owns the list that it is in.
//
// Thread-safe. REQUIRES that no other call is under way when Close() begins, and that none follows.
class CudaHostWork : public std::enable_shared_from_this<CudaHostWork> {
 public:
  // How many closures may wait. CUDA's own queue may be shorter; the caller then blocks.
  static constexpr size_t kBound = 65536;

  // Of the stream `native` on cuda:`device`. The table outlives this.
  CudaHostWork(const CudaApi& api, int device, void* native, const std::string& name);

  // Has CUDA run the closure in the stream's order. On an error the closure is destroyed. RESOURCE_EXHAUSTED when kBound
  // closures wait.
  absl::Status Launch(absl::AnyInvocable<absl::Status()> closure);

  // Lets running closures finish, and destroys the others without running them.
  void Close();

  // The stream's error: the first that a closure returned or Check() found. Later closures are destroyed, in their order,
  // without running.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status error() const;

  // CudaStatus for a call in this stream. The loss of the device also becomes the stream's error.
  absl::Status Check(int code, absl::string_view call);

  // Begins a message: cuda:1 stream "copy-in".
  std::string Text() const;

  // Whether the caller is in a closure that CUDA runs, and may not call CUDA.
  static bool OnThisThread();

 private:
  struct Entry {
    std::shared_ptr<CudaHostWork> owner;  // null in spare_
    absl::AnyInvocable<absl::Status()> closure;
    std::list<Entry>::iterator self;
  };

  // What CUDA calls.
  static void Run(void* entry);
  void NoteError(const absl::Status& error);
  void RunClosure(absl::AnyInvocable<absl::Status()> closure);
  // Undoes what Launch has put in.
  void Retire(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const CudaApi& api_;
  const int device_;
  void* const native_;
  const std::string name_;

  std::atomic<bool> failed_{
      false};  // released after error_ is written: an acquirer may skip the lock while it is false

  mutable Mutex mu_;
  CondVar finished_;
  // Nodes move between the two lists, so that no allocation is needed in the steady state.
  std::list<Entry> waiting_ ABSL_GUARDED_BY(mu_);
  std::list<Entry> spare_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
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
  // False if CUDA returns an error.
  bool capturing() const override;
  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override;
  absl::Status Copy(void* target, const void* source, size_t bytes) override;
  absl::Status Record(Event* event) override;
  absl::Status Wait(Event* event) override;
  absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) override;
  absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) override;
  absl::Status Synchronize(Deadline deadline) override;
  absl::Status status() const override;

  // IsCapturing of base/device/cuda/cuda_device.h.
  absl::StatusOr<bool> IsCapturing() const;

 private:
  absl::Status MayCall() const;
  absl::Status RefuseCapture(absl::string_view what);
  absl::Status AwaitEnd(Deadline deadline);
  // Waits for the device, for a limited time.
  void Drain();

  const CudaApi& api_;
  const int device_;
  void* const native_;
  const Ownership ownership_;
  const uint64_t fork_generation_;
  // Shared with the closures that CUDA has yet to call, some perhaps after the stream's end.
  std::shared_ptr<CudaHostWork> work_;
};

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_STREAM_H_

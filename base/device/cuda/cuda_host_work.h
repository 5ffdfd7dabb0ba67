// The closures that CUDA runs for one stream (cudaLaunchHostFunc); internal to the CUDA stream.
//
// CUDA gets a pointer for each closure and calls back with it, in the stream's order, on a thread of the driver. It does not
// call when the device is lost, and it may call after the stream's handle is gone. So a list here keeps the closures. A call
// removes its entry. Each entry owns the list that it is in.

#ifndef BASE_DEVICE_CUDA_CUDA_HOST_WORK_H_
#define BASE_DEVICE_CUDA_CUDA_HOST_WORK_H_

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/device/cuda/cuda_api.h"
#include "base/mutex.h"

namespace lockstep {
namespace internal {

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

}  // namespace internal
}  // namespace lockstep

#endif  // BASE_DEVICE_CUDA_CUDA_HOST_WORK_H_

#include "base/device/cuda/cuda_host_work.h"

#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_error.h"

namespace lockstep {
namespace internal {
namespace {

thread_local bool inside_closure = false;

}  // namespace

bool CudaHostWork::OnThisThread() { return inside_closure; }

CudaHostWork::CudaHostWork(const CudaApi& api, int device, void* native, const std::string& name)
    : api_(api), device_(device), native_(native), name_(name) {}

std::string CudaHostWork::Text() const { return absl::StrCat("cuda:", device_, " stream \"", name_, "\""); }

// The lock is not held while CUDA is called: a call may have to wait for closures to run, which take it.
absl::Status CudaHostWork::Launch(absl::AnyInvocable<absl::Status()> closure) {
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    if (waiting_.size() >= kBound) {
      return absl::ResourceExhaustedError(absl::StrCat(Text(), ": its queue is full with ", kBound, " entries"));
    }
    if (spare_.empty()) spare_.emplace_back();
    waiting_.splice(waiting_.end(), spare_, spare_.begin());
    entry = &waiting_.back();
    *entry = {shared_from_this(), std::move(closure), std::prev(waiting_.end())};
  }
  const int code = api_.launch_host_func(native_, &CudaHostWork::Run, entry);
  if (code == kCudaSuccess) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    closure = std::move(entry->closure);  // to be destroyed without the lock
    Retire(entry);
  }
  return Check(code, "cudaLaunchHostFunc(...)");
}

absl::Status CudaHostWork::Check(int code, absl::string_view call) {
  if (code == kCudaSuccess) return absl::OkStatus();
  const absl::Status status = CudaStatus(code, absl::StrCat(call, " in stream \"", name_, "\""), device_);
  if (IsLostDevice(code)) NoteError(status);
  return status;
}

void CudaHostWork::Retire(Entry* entry) {
  entry->owner = nullptr;  // not the last: whoever calls this holds another
  entry->closure = nullptr;
  spare_.splice(spare_.begin(), waiting_, entry->self);
}

void CudaHostWork::Run(void* argument) {
  Entry* const entry = static_cast<Entry*>(argument);
  const std::shared_ptr<CudaHostWork> work = entry->owner;
  absl::AnyInvocable<absl::Status()> closure;
  {
    MutexLock lock(&work->mu_);
    closure = std::move(entry->closure);
    ++work->running_;
  }
  inside_closure = true;
  work->RunClosure(std::move(closure));
  inside_closure = false;
  MutexLock lock(&work->mu_);
  work->Retire(entry);
  --work->running_;
  work->finished_.SignalAll();
}

// By value: whoever sees the closure done may count on its captures being gone.
void CudaHostWork::RunClosure(absl::AnyInvocable<absl::Status()> closure) {
  if (closure == nullptr || failed()) return;
  absl::Status status;
  try {
    status = closure();
  } catch (const std::exception& exception) {
    // The closure may be an embedder's; the thread is the driver's, and an exception that leaves it ends the process.
    status = absl::InternalError(absl::StrCat(Text(), ": its work threw ", exception.what()));
  }
  if (!status.ok()) NoteError(status);
}

void CudaHostWork::NoteError(const absl::Status& error) {
  MutexLock lock(&mu_);
  if (!error_.ok()) return;
  error_ = error;
  failed_.store(true, std::memory_order_release);
}

absl::Status CudaHostWork::error() const {
  if (!failed()) return absl::OkStatus();
  MutexLock lock(&mu_);
  return error_;
}

void CudaHostWork::Close() {
  std::vector<absl::AnyInvocable<absl::Status()>> dropped;
  {
    MutexLock lock(&mu_);
    for (Entry& entry : waiting_) {
      if (entry.closure != nullptr) dropped.push_back(std::move(entry.closure));
      entry.closure = nullptr;
    }
    while (running_ > 0) finished_.WaitUntil(&mu_, Deadline::Infinite());
  }
}

}  // namespace internal
}  // namespace lockstep

#include "base/device/cuda/cuda_stream.h"

#include <exception>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/poll.h"
#include "base/status.h"

namespace lockstep {
namespace internal {
namespace {

thread_local bool inside_closure = false;

// How long the end of a stream waits for the device. What still runs then goes on by itself.
constexpr int64_t kDrainMs = 10000;

// Asks CUDA until it answers something else than "not ready", or the deadline has passed.
template <typename Query>
int Poll(const CudaApi& api, Deadline deadline, const Query& query) {
  const CudaRelaxedCapture relaxed(api);
  int code = kCudaNotReady;
  PollUntil(deadline, [&] {
    code = query();
    if (code == kCudaNotReady) api.get_last_error();  // it counts as one
    return code != kCudaNotReady;
  });
  return code;
}

// A stream awaits and writes the flag itself.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);

absl::StatusOr<CudaEvent*> AsCudaEvent(Event* event) {
  CudaEvent* const cuda_event = dynamic_cast<CudaEvent*>(event);
  if (cuda_event != nullptr) return cuda_event;
  return absl::InvalidArgumentError(event == nullptr ? "null event" : "the event is not one of a CUDA device");
}

}  // namespace

bool MayCallCuda(uint64_t fork_generation) {
  return fork_generation == ForkGeneration() && !CudaHostWork::OnThisThread();
}

absl::Status MayNotCallCuda(uint64_t fork_generation, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      what, fork_generation != ForkGeneration() ? ": made before fork(), which CUDA does not survive"
                                                : ": used by work in a CUDA stream, which may not call CUDA"));
}

bool MayDestroyInCuda(uint64_t fork_generation, absl::string_view what) {
  if (MayCallCuda(fork_generation)) return true;
  if (fork_generation == ForkGeneration())
    LOCKSTEP_LOG(kWarning) << MayNotCallCuda(fork_generation, what) << ": leaked";
  return false;
}

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create(const CudaApi& api, int device) {
  void* native = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(
      CudaStatus(api.event_create(&native), "cudaEventCreateWithFlags(&event, cudaEventDisableTiming)", device));
  return std::unique_ptr<CudaEvent>(new CudaEvent(api, device, native));
}

CudaEvent::CudaEvent(const CudaApi& api, int device, void* native)
    : api_(api), device_(device), native_(native), fork_generation_(ForkGeneration()) {}

CudaEvent::~CudaEvent() {
  if (!MayDestroyInCuda(fork_generation_, "CUDA event")) return;
  const CudaGuard guard(api_, device_);
  if (api_.event_destroy(native_) != kCudaSuccess) api_.get_last_error();
}

bool CudaEvent::Query() const {
  if (!MayCallCuda(fork_generation_)) return fork_generation_ != ForkGeneration();
  const int code = Await(Deadline::Now());
  if (code != kCudaSuccess && code != kCudaNotReady) api_.get_last_error();
  return code != kCudaNotReady;
}

int CudaEvent::Await(Deadline deadline) const {
  const CudaGuard guard(api_, device_);
  if (guard.code() != kCudaSuccess) return guard.code();
  return Poll(api_, deadline, [this] { return api_.event_query(native_); });
}

absl::Status CudaEvent::Synchronize(Deadline deadline) {
  if (!MayCallCuda(fork_generation_)) return MayNotCallCuda(fork_generation_, "CUDA event");
  const int code = Await(deadline);
  if (code != kCudaNotReady) return CudaStatus(code, "cudaEventQuery(event)", device_);
  return absl::DeadlineExceededError(absl::StrCat("CUDA event: cuda:", device_, " has not reached it"));
}

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

CudaStream::CudaStream(const CudaApi& api, int device, void* native, Ownership ownership, const std::string& name)
    : api_(api),
      device_(device),
      native_(native),
      ownership_(ownership),
      fork_generation_(ForkGeneration()),
      work_(std::make_shared<CudaHostWork>(api, device, native, name)) {}

CudaStream::~CudaStream() {
  if (fork_generation_ != ForkGeneration()) {
    // Another thread of the parent may have been inside when the process forked: the child leaves it alone.
    new std::shared_ptr<CudaHostWork>(std::move(work_));
    return;
  }
  work_->Close();
  if (ownership_ == Ownership::kBorrowed || !MayDestroyInCuda(fork_generation_, work_->Text())) return;
  const CudaGuard guard(api_, device_);
  Drain();
  if (api_.stream_destroy(native_) != kCudaSuccess) api_.get_last_error();
}

absl::Status CudaStream::MayCall() const {
  return MayCallCuda(fork_generation_) ? absl::OkStatus() : MayNotCallCuda(fork_generation_, work_->Text());
}

void CudaStream::Drain() {
  bool capturing = false;
  // A query would end the capture that has drawn this stream in.
  if (api_.stream_is_capturing(native_, &capturing) != kCudaSuccess || capturing) {
    api_.get_last_error();
    return;
  }
  const int code = Poll(api_, Deadline::AfterMs(kDrainMs), [this] { return api_.stream_query(native_); });
  if (code != kCudaSuccess) api_.get_last_error();
}

absl::StatusOr<bool> CudaStream::IsCapturing() const {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  bool capturing = false;
  LOCKSTEP_RETURN_IF_ERROR(
      work_->Check(api_.stream_is_capturing(native_, &capturing), "cudaStreamIsCapturing(stream, &status)"));
  return capturing;
}

bool CudaStream::capturing() const {
  const absl::StatusOr<bool> capturing = IsCapturing();
  return capturing.ok() && *capturing;
}

absl::Status CudaStream::RefuseCapture(absl::string_view what) {
  LOCKSTEP_ASSIGN_OR_RETURN(const bool capturing, IsCapturing());
  if (!capturing) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(work_->Text(), ": ", what, " while it is being captured into a graph"));
}

absl::Status CudaStream::Enqueue(absl::AnyInvocable<absl::Status()> work) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  if (work == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null work"));
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  // A graph would run the closure, which is gone after its first run, at each replay.
  LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("host work cannot be enqueued"));
  return work_->Launch(std::move(work));
}

absl::Status CudaStream::Copy(void* target, const void* source, size_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  if (bytes == 0 || work_->failed()) return absl::OkStatus();
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  const int code = api_.memcpy_async(target, source, bytes, native_);
  if (code == kCudaSuccess) return absl::OkStatus();
  return work_->Check(code, absl::StrCat("cudaMemcpyAsync(0x", absl::Hex(target), ", 0x", absl::Hex(source), ", ",
                                         bytes, ", cudaMemcpyDefault, stream)"));
}

absl::Status CudaStream::Record(Event* event) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  LOCKSTEP_ASSIGN_OR_RETURN(CudaEvent* const cuda_event, AsCudaEvent(event));
  if (cuda_event->device() != device_) {
    return absl::InvalidArgumentError(
        absl::StrCat(work_->Text(), ": cannot record an event of cuda:", cuda_event->device()));
  }
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  return work_->Check(api_.event_record(cuda_event->native(), native_), "cudaEventRecord(event, stream)");
}

absl::Status CudaStream::Wait(Event* event) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  LOCKSTEP_ASSIGN_OR_RETURN(CudaEvent* const cuda_event, AsCudaEvent(event));
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  return work_->Check(api_.stream_wait_event(native_, cuda_event->native()), "cudaStreamWaitEvent(stream, event)");
}

absl::Status CudaStream::AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null flag"));
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("a value cannot be awaited"));
  return work_->Check(api_.stream_wait_value(native_, flag, value), "cuStreamWaitValue32(stream, address, value)");
}

absl::Status CudaStream::WriteValue(std::atomic<uint32_t>* flag, uint32_t value) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null flag"));
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("a value cannot be written"));
  return work_->Check(api_.stream_write_value(native_, flag, value), "cuStreamWriteValue32(stream, address, value)");
}

absl::Status CudaStream::Synchronize(Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(MayCall());
  const absl::Status waited = AwaitEnd(deadline);
  return work_->failed() && !absl::IsDeadlineExceeded(waited) ? work_->error() : waited;
}

absl::Status CudaStream::AwaitEnd(Deadline deadline) {
  const CudaGuard guard(api_, device_);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("its end cannot be waited for"));
  // An event in an idle stream takes a moment to be reached, which a caller without time must not be told.
  const int idle = Poll(api_, Deadline::Now(), [this] { return api_.stream_query(native_); });
  if (idle != kCudaNotReady) return work_->Check(idle, "cudaStreamQuery(stream)");
  // A point of its own: what other threads enqueue meanwhile is not waited for.
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEvent> end, CudaEvent::Create(api_, device_));
  LOCKSTEP_RETURN_IF_ERROR(Record(end.get()));
  const int code = end->Await(deadline);
  if (code != kCudaNotReady) return work_->Check(code, "cudaEventQuery(end)");
  return absl::DeadlineExceededError(absl::StrCat(work_->Text(), ": its work is not done"));
}

absl::Status CudaStream::status() const {
  if (fork_generation_ != ForkGeneration()) return MayNotCallCuda(fork_generation_, work_->Text());
  return work_->error();
}

}  // namespace internal
}  // namespace lockstep

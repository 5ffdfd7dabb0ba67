#include "base/device/cuda/cuda_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/poll.h"
#include "base/status.h"

namespace lockstep {
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

// Whether the caller may call CUDA for what was made at `fork_generation`. False in a forked child, which CUDA does not
// support, and in a closure that a stream runs.
bool MayCallCuda(uint64_t fork_generation) { return fork_generation == ForkGeneration() && !inside_closure; }

// FAILED_PRECONDITION with the reason; `what` names the object.
absl::Status MayNotCallCuda(uint64_t fork_generation, absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat(
      what, fork_generation != ForkGeneration() ? ": made before fork(), which CUDA does not survive"
                                                : ": used by work in a CUDA stream, which may not call CUDA"));
}

// Whether a destructor may call CUDA; it does nothing if not. In a forked child the objects belong to the parent. In a
// closure, destroying might wait for that closure: the leak is logged.
bool MayDestroyInCuda(uint64_t fork_generation, absl::string_view what) {
  if (MayCallCuda(fork_generation)) return true;
  if (fork_generation == ForkGeneration())
    LOCKSTEP_LOG(kWarning) << MayNotCallCuda(fork_generation, what) << ": leaked";
  return false;
}

class CudaEvent final : public Event {
 public:
  // The calling thread is on the device.
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(const CudaApi& api, int device) {
    void* native = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(
        CudaStatus(api.event_create(&native), "cudaEventCreateWithFlags(&event, cudaEventDisableTiming)", device));
    return std::make_unique<CudaEvent>(api, device, native);
  }

  CudaEvent(const CudaApi& api, int device, void* native)
      : api_(api), device_(device), native_(native), fork_generation_(ForkGeneration()) {}
  ~CudaEvent() override {
    if (!MayDestroyInCuda(fork_generation_, "CUDA event")) return;
    const CudaGuard guard(api_, device_);
    if (api_.event_destroy(native_) != kCudaSuccess) api_.get_last_error();
  }

  // Also true when the device is lost or the event is part of a capture, where Synchronize() returns the error, and in a
  // forked child. Also false in work of a CUDA stream, which may not call CUDA.
  bool Query() const override {
    if (!MayCallCuda(fork_generation_)) return fork_generation_ != ForkGeneration();
    const int code = Await(Deadline::Now());
    if (code != kCudaSuccess && code != kCudaNotReady) api_.get_last_error();
    return code != kCudaNotReady;
  }

  absl::Status Synchronize(Deadline deadline) override {
    if (!MayCallCuda(fork_generation_)) return MayNotCallCuda(fork_generation_, "CUDA event");
    const int code = Await(deadline);
    if (code != kCudaNotReady) return CudaStatus(code, "cudaEventQuery(event)", device_);
    return absl::DeadlineExceededError(absl::StrCat("CUDA event: cuda:", device_, " has not reached it"));
  }

  // The same as a cudaError_t; kCudaNotReady when the deadline has passed.
  int Await(Deadline deadline) const {
    const CudaGuard guard(api_, device_);
    if (guard.code() != kCudaSuccess) return guard.code();
    return Poll(api_, deadline, [this] { return api_.event_query(native_); });
  }

  int device() const { return device_; }
  void* native() const { return native_; }

 private:
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
  CudaHostWork(const CudaApi& api, int device, void* native, const std::string& name)
      : api_(api), device_(device), native_(native), name_(name) {}

  // Has CUDA run the closure in the stream's order. On an error the closure is destroyed. RESOURCE_EXHAUSTED when kBound
  // closures wait.
  // The lock is not held while CUDA is called: a call may have to wait for closures to run, which take it.
  absl::Status Launch(absl::AnyInvocable<absl::Status()> closure) {
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

  // Lets running closures finish, and destroys the others without running them.
  void Close() {
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

  // The stream's error: the first that a closure returned or Check() found. Later closures are destroyed, in their order,
  // without running.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status error() const {
    if (!failed()) return absl::OkStatus();
    MutexLock lock(&mu_);
    return error_;
  }

  // CudaStatus for a call in this stream. The loss of the device also becomes the stream's error.
  absl::Status Check(int code, absl::string_view call) {
    if (code == kCudaSuccess) return absl::OkStatus();
    const absl::Status status = CudaStatus(code, absl::StrCat(call, " in stream \"", name_, "\""), device_);
    if (IsLostDevice(code)) NoteError(status);
    return status;
  }

  // Begins a message: cuda:1 stream "copy-in".
  std::string Text() const { return absl::StrCat("cuda:", device_, " stream \"", name_, "\""); }

 private:
  struct Entry {
    std::shared_ptr<CudaHostWork> owner;  // null in spare_
    absl::AnyInvocable<absl::Status()> closure;
    std::list<Entry>::iterator self;
  };

  // What CUDA calls.
  static void Run(void* argument) {
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

  void NoteError(const absl::Status& error) {
    MutexLock lock(&mu_);
    if (!error_.ok()) return;
    error_ = error;
    failed_.store(true, std::memory_order_release);
  }

  // By value: whoever sees the closure done may count on its captures being gone.
  void RunClosure(absl::AnyInvocable<absl::Status()> closure) {
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

  // Undoes what Launch has put in.
  void Retire(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    entry->owner = nullptr;  // not the last: whoever calls this holds another
    entry->closure = nullptr;
    spare_.splice(spare_.begin(), waiting_, entry->self);
  }

  // Constant after construction.
  const CudaApi& api_;
  const int device_;
  void* const native_;
  const std::string name_;

  // Released after error_ is written: an acquirer may skip the lock while it is false.
  std::atomic<bool> failed_{false};

  mutable Mutex mu_;
  CondVar finished_;
  // Nodes move between the two lists, so that no allocation is needed in the steady state.
  std::list<Entry> waiting_ ABSL_GUARDED_BY(mu_);
  std::list<Entry> spare_ ABSL_GUARDED_BY(mu_);
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<CudaEvent*> AsCudaEvent(Event* event) {
  CudaEvent* const cuda_event = dynamic_cast<CudaEvent*>(event);
  if (cuda_event != nullptr) return cuda_event;
  return absl::InvalidArgumentError(event == nullptr ? "null event" : "the event is not one of a CUDA device");
}

class CudaStream final : public Stream {
 public:
  CudaStream(const CudaApi& api, int device, void* native, bool owned, const std::string& name)
      : api_(api),
        device_(device),
        native_(native),
        owned_(owned),
        fork_generation_(ForkGeneration()),
        work_(std::make_shared<CudaHostWork>(api, device, native, name)) {}
  ~CudaStream() override {
    if (fork_generation_ != ForkGeneration()) {
      // Another thread of the parent may have been inside when the process forked: the child leaves it alone.
      new std::shared_ptr<CudaHostWork>(std::move(work_));
      return;
    }
    work_->Close();
    if (!owned_ || !MayDestroyInCuda(fork_generation_, work_->Text())) return;
    const CudaGuard guard(api_, device_);
    Drain();
    if (api_.stream_destroy(native_) != kCudaSuccess) api_.get_last_error();
  }

  DeviceId device() const override { return {DeviceKind::kCuda, device_}; }
  void* native() const override { return native_; }
  // cudaStreamPerThread.
  bool is_callers() const override { return reinterpret_cast<uintptr_t>(native_) == 2; }
  // False if CUDA returns an error.
  bool capturing() const override {
    const absl::StatusOr<bool> capturing = IsCapturing();
    return capturing.ok() && *capturing;
  }

  absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    if (work == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null work"));
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    // A graph would run the closure, which is gone after its first run, at each replay.
    LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("host work cannot be enqueued"));
    return work_->Launch(std::move(work));
  }

  absl::Status Copy(void* target, const void* source, size_t bytes) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    if (bytes == 0 || work_->failed()) return absl::OkStatus();
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    const int code = api_.memcpy_async(target, source, bytes, native_);
    if (code == kCudaSuccess) return absl::OkStatus();
    return work_->Check(code, absl::StrCat("cudaMemcpyAsync(0x", absl::Hex(target), ", 0x", absl::Hex(source), ", ",
                                           bytes, ", cudaMemcpyDefault, stream)"));
  }

  absl::Status Record(Event* event) override {
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

  absl::Status Wait(Event* event) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    LOCKSTEP_ASSIGN_OR_RETURN(CudaEvent* const cuda_event, AsCudaEvent(event));
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    return work_->Check(api_.stream_wait_event(native_, cuda_event->native()), "cudaStreamWaitEvent(stream, event)");
  }

  absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null flag"));
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("a value cannot be awaited"));
    return work_->Check(api_.stream_wait_value(native_, flag, value), "cuStreamWaitValue32(stream, address, value)");
  }

  absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat(work_->Text(), ": null flag"));
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    LOCKSTEP_RETURN_IF_ERROR(RefuseCapture("a value cannot be written"));
    return work_->Check(api_.stream_write_value(native_, flag, value), "cuStreamWriteValue32(stream, address, value)");
  }

  absl::Status Synchronize(Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const absl::Status waited = AwaitEnd(deadline);
    return work_->failed() && !absl::IsDeadlineExceeded(waited) ? work_->error() : waited;
  }

  absl::Status status() const override {
    if (fork_generation_ != ForkGeneration()) return MayNotCallCuda(fork_generation_, work_->Text());
    return work_->error();
  }

  absl::StatusOr<bool> IsCapturing() const {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, device_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    bool capturing = false;
    LOCKSTEP_RETURN_IF_ERROR(
        work_->Check(api_.stream_is_capturing(native_, &capturing), "cudaStreamIsCapturing(stream, &status)"));
    return capturing;
  }

 private:
  absl::Status MayCall() const {
    return MayCallCuda(fork_generation_) ? absl::OkStatus() : MayNotCallCuda(fork_generation_, work_->Text());
  }

  absl::Status RefuseCapture(absl::string_view what) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool capturing, IsCapturing());
    if (!capturing) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(work_->Text(), ": ", what, " while it is being captured into a graph"));
  }

  absl::Status AwaitEnd(Deadline deadline) {
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

  // Waits for the device, for a limited time.
  void Drain() {
    bool capturing = false;
    // A query would end the capture that has drawn this stream in.
    if (api_.stream_is_capturing(native_, &capturing) != kCudaSuccess || capturing) {
      api_.get_last_error();
      return;
    }
    const int code = Poll(api_, Deadline::AfterMs(kDrainMs), [this] { return api_.stream_query(native_); });
    if (code != kCudaSuccess) api_.get_last_error();
  }

  const CudaApi& api_;
  const int device_;
  void* const native_;
  const bool owned_;
  const uint64_t fork_generation_;
  // Shared with the closures that CUDA has yet to call, some perhaps after the stream's end.
  std::shared_ptr<CudaHostWork> work_;
};

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
    return std::make_unique<CudaStream>(api_, index_, native, /*owned=*/true, name);
  }

  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    LOCKSTEP_RETURN_IF_ERROR(MayCall());
    const CudaGuard guard(api_, index_);
    LOCKSTEP_RETURN_IF_ERROR(guard.status());
    return CudaEvent::Create(api_, index_);
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
    return std::make_unique<CudaStream>(api_, index_, native, /*owned=*/false, name);
  }

  absl::StatusOr<void*> Allocate(size_t bytes) override { return AllocateWith(api_.malloc, "cudaMalloc", bytes); }
  void Free(void* memory) override { FreeWith(api_.free, "cudaFree", memory); }

  absl::StatusOr<void*> AllocateOnHost(size_t bytes) override {
    return AllocateWith(api_.host_alloc, "cudaHostAlloc", bytes);
  }
  void FreeOnHost(void* memory) override { FreeWith(api_.free_host, "cudaFreeHost", memory); }

 private:
  absl::Status MayCall() const {
    if (MayCallCuda(fork_generation_)) return absl::OkStatus();
    return MayNotCallCuda(fork_generation_, Name(id()));
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
    if (memory == nullptr || !MayDestroyInCuda(fork_generation_, function)) return;
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

absl::StatusOr<bool> IsCapturing(Stream& stream) {
  auto* const cuda_stream = dynamic_cast<CudaStream*>(&stream);
  if (cuda_stream == nullptr) return false;
  return cuda_stream->IsCapturing();
}

}  // namespace lockstep

#include "base/device/cuda/cuda_api_testing.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/device/host_device.h"

namespace lockstep {
namespace {

// Released by the constructor, acquired by the table's functions.
std::atomic<FakeCuda*> the_fake{nullptr};

thread_local int current_device = 0;
thread_local int last_error = kCudaSuccess;
thread_local int capture_mode = 0;  // cudaStreamCaptureModeGlobal
thread_local bool inside_closure = false;

void CallHostFunction(void (*function)(void*), void* argument) {
  inside_closure = true;
  function(argument);
  inside_closure = false;
}

// A function that CUDA is to call, once at most. CUDA knows the arguments of those that it never calls: kept here, they
// are no leak.
class HostFunction {
 public:
  HostFunction(void (*function)(void*), void* argument) : function_(function), argument_(argument) {}
  ~HostFunction() {
    if (argument_ == nullptr) return;
    static Mutex* const mu = new Mutex;
    static std::vector<void*>* const never_called = new std::vector<void*>;
    MutexLock lock(mu);
    never_called->push_back(argument_);
  }

  HostFunction(HostFunction&& other) noexcept
      : function_(other.function_), argument_(std::exchange(other.argument_, nullptr)) {}

  void Call() { CallHostFunction(function_, std::exchange(argument_, nullptr)); }

 private:
  void (*const function_)(void*);
  void* argument_;
};

constexpr size_t kMost = size_t{1} << 40;

}  // namespace

class FakeCuda::Table {
 public:
  static CudaApi Make() {
    CudaApi api = {};
    api.get_error_name = [](int code) { return code == kCudaNotReady ? "cudaErrorNotReady" : "cudaErrorFake"; };
    api.get_error_string = [](int) { return "the test asked for this"; };
    api.get_last_error = [] { return std::exchange(last_error, int{kCudaSuccess}); };
    api.driver_get_version = [](int* version) { return *version = 12080, int{kCudaSuccess}; };
    api.runtime_get_version = [](int* version) { return *version = 13000, int{kCudaSuccess}; };
    api.get_device_count = [](int* count) {
      return Call("cudaGetDeviceCount", [&](FakeCuda& fake) {
        *count = fake.devices_;
        return fake.devices_ == 0 ? kCudaNoDevice : kCudaSuccess;
      });
    };
    api.get_device = [](int* device) {
      return Call("cudaGetDevice", [&](FakeCuda&) { return *device = current_device, kCudaSuccess; });
    };
    api.set_device = [](int device) {
      return Call("cudaSetDevice", [&](FakeCuda& fake) {
        if (device < 0 || device >= fake.devices_) return kCudaInvalidDevice;
        current_device = device;
        return kCudaSuccess;
      });
    };
    api.device_get_pci_bus_id = [](char* address, int bytes, int device) {
      return Call("cudaDeviceGetPCIBusId", [&](FakeCuda&) -> int {
        std::snprintf(address, bytes, "0000:%02x:00.0", device + 1);
        return kCudaSuccess;
      });
    };
    api.device_get_stream_priority_range = [](int* least, int* greatest) {
      return Call("cudaDeviceGetStreamPriorityRange", [&](FakeCuda&) {
        *least = kLeastPriority;
        *greatest = kGreatestPriority;
        return kCudaSuccess;
      });
    };
    api.stream_create = [](void** stream, int priority) {
      return Call("cudaStreamCreateWithPriority", [&](FakeCuda& fake) {
        auto created = std::make_unique<FakeStream>();
        created->device = current_device;
        created->priority = priority;
        *stream = created.get();
        MutexLock lock(&fake.mu_);
        created->stream = fake.NewStream(current_device);
        fake.streams_[*stream] = std::move(created);
        return kCudaSuccess;
      });
    };
    api.stream_destroy = [](void* stream) {
      return Call("cudaStreamDestroy", [&](FakeCuda& fake) {
        FakeStream* const found = Find(fake, stream);
        if (found == nullptr) return kCudaInvalidHandle;
        MutexLock lock(&fake.mu_);
        found->exists = false;
        return kCudaSuccess;
      });
    };
    api.stream_query = [](void* stream) {
      return CallUnsafeInCapture("cudaStreamQuery", [&](FakeCuda& fake) {
        FakeStream* const found = Find(fake, stream);
        if (found == nullptr) return kCudaInvalidHandle;
        {
          MutexLock lock(&fake.mu_);
          if (fake.captures_.capturing(found)) {
            fake.captures_.Invalidate();
            return kCudaCaptureUnsupported;
          }
        }
        return found->stream->Synchronize(Deadline::Now()).ok() ? kCudaSuccess : kCudaNotReady;
      });
    };
    api.stream_wait_event = [](void* stream, void* event) {
      return Call("cudaStreamWaitEvent", [&](FakeCuda& fake) -> int {
        FakeEvent* const found = FindEvent(fake, event);
        FakeStream* const in = Find(fake, stream);
        if (found == nullptr || in == nullptr) return kCudaInvalidHandle;
        {
          MutexLock lock(&fake.mu_);
          const auto [captured, code] = fake.captures_.Wait(in, found);
          if (captured) return code;
        }
        return in->stream->Wait(found->event.get()).ok() ? kCudaSuccess : kCudaOutOfMemory;
      });
    };
    api.stream_get_device = [](void* stream, int* device) {
      return Call("cudaStreamGetDevice", [&](FakeCuda& fake) {
        MutexLock lock(&fake.mu_);
        const auto found = fake.streams_.find(stream);
        if (found == fake.streams_.end()) return kCudaInvalidHandle;
        *device = found->second->device;
        return kCudaSuccess;
      });
    };
    api.stream_is_capturing = [](void* stream, bool* capturing) {
      return Call("cudaStreamIsCapturing", [&](FakeCuda& fake) {
        FakeStream* const found = Find(fake, stream);
        if (found == nullptr) return kCudaInvalidHandle;
        MutexLock lock(&fake.mu_);
        *capturing = fake.captures_.capturing(found);
        return kCudaSuccess;
      });
    };
    api.thread_exchange_stream_capture_mode = [](int* mode) {
      return Call("cudaThreadExchangeStreamCaptureMode", [&](FakeCuda&) {
        std::swap(*mode, capture_mode);
        return kCudaSuccess;
      });
    };
    api.event_create = [](void** event) {
      return Call("cudaEventCreateWithFlags", [&](FakeCuda& fake) {
        auto created = std::make_unique<FakeEvent>();
        created->event = HostDevice()->CreateEvent().value();
        created->device = current_device;
        *event = created.get();
        MutexLock lock(&fake.mu_);
        fake.events_[*event] = std::move(created);
        return kCudaSuccess;
      });
    };
    api.event_destroy = [](void* event) {
      return Call("cudaEventDestroy", [&](FakeCuda& fake) {
        FakeEvent* const found = FindEvent(fake, event);
        if (found == nullptr || found->device != current_device) return kCudaInvalidHandle;
        MutexLock lock(&fake.mu_);
        found->exists = false;
        return kCudaSuccess;
      });
    };
    api.event_record = [](void* event, void* stream) {
      return Call("cudaEventRecord", [&](FakeCuda& fake) -> int {
        FakeEvent* const found = FindEvent(fake, event);
        FakeStream* const in = Find(fake, stream);
        if (found == nullptr || in == nullptr || found->device != current_device) return kCudaInvalidHandle;
        {
          MutexLock lock(&fake.mu_);
          const auto [captured, code] = fake.captures_.Record(in, found);
          if (captured) return code;
        }
        return in->stream->Record(found->event.get()).ok() ? kCudaSuccess : kCudaOutOfMemory;
      });
    };
    api.event_query = [](void* event) {
      return CallUnsafeInCapture("cudaEventQuery", [&](FakeCuda& fake) -> int {
        FakeEvent* const found = FindEvent(fake, event);
        if (found == nullptr || found->device != current_device) return kCudaInvalidHandle;
        {
          MutexLock lock(&fake.mu_);
          const auto [captured, code] = fake.captures_.Query(found);
          if (captured) return code;
        }
        return found->event->Query() ? kCudaSuccess : kCudaNotReady;
      });
    };
    api.launch_host_func = [](void* stream, void (*function)(void*), void* argument) {
      return Call("cudaLaunchHostFunc", [&](FakeCuda& fake) -> int {
        const auto run = [function, argument] { CallHostFunction(function, argument); };
        return Put(fake, stream, run, [&](Stream& in) {
          return in.Enqueue([&fake, called = HostFunction(function, argument)]() mutable {
            if (!fake.lost()) called.Call();
            return absl::OkStatus();
          });
        });
      });
    };
    api.memcpy_async = [](void* target, const void* source, size_t bytes, void* stream) {
      return Call("cudaMemcpyAsync", [&](FakeCuda& fake) -> int {
        const auto run = [target, source, bytes] { std::memcpy(target, source, bytes); };
        return Put(fake, stream, run, [&](Stream& in) { return in.Copy(target, source, bytes); });
      });
    };
    api.stream_wait_value = [](void* stream, const void* address, uint32_t value) {
      return Call("cuStreamWaitValue32", [&](FakeCuda& fake) {
        FakeStream* const in = Find(fake, stream);
        if (in == nullptr) return kCudaInvalidHandle;
        if (!IsPinned(fake, address)) return kCudaInvalidValue;
        const auto* const flag = static_cast<const std::atomic<uint32_t>*>(address);
        return in->stream->AwaitValue(flag, value).ok() ? kCudaSuccess : kCudaOutOfMemory;
      });
    };
    api.stream_write_value = [](void* stream, void* address, uint32_t value) {
      return Call("cuStreamWriteValue32", [&](FakeCuda& fake) {
        FakeStream* const in = Find(fake, stream);
        if (in == nullptr) return kCudaInvalidHandle;
        if (!IsPinned(fake, address)) return kCudaInvalidValue;
        auto* const flag = static_cast<std::atomic<uint32_t>*>(address);
        return in->stream->WriteValue(flag, value).ok() ? kCudaSuccess : kCudaOutOfMemory;
      });
    };
    api.malloc = [](void** memory, size_t bytes) {
      return CallUnsafeInCapture("cudaMalloc",
                                 [&](FakeCuda& fake) { return NewMemory(fake, memory, bytes, CudaPointer::kDevice); });
    };
    api.free = [](void* memory) {
      return CallUnsafeInCapture("cudaFree",
                                 [&](FakeCuda& fake) { return DeleteMemory(fake, memory, CudaPointer::kDevice); });
    };
    api.host_alloc = [](void** memory, size_t bytes) {
      return CallUnsafeInCapture("cudaHostAlloc",
                                 [&](FakeCuda& fake) { return NewMemory(fake, memory, bytes, CudaPointer::kPinned); });
    };
    api.free_host = [](void* memory) {
      return CallUnsafeInCapture("cudaFreeHost",
                                 [&](FakeCuda& fake) { return DeleteMemory(fake, memory, CudaPointer::kPinned); });
    };
    api.pointer_get_attributes = [](CudaPointer* attributes, const void* pointer) {
      return Call("cudaPointerGetAttributes", [&](FakeCuda& fake) {
        MutexLock lock(&fake.mu_);
        *attributes = CudaPointer();
        if (const auto* const found = FindMemory(fake, pointer)) *attributes = found->second.pointer;
        return kCudaSuccess;
      });
    };
    return api;
  }

 private:
  static FakeCuda& It() {
    FakeCuda* const fake = the_fake.load(std::memory_order_acquire);
    LOCKSTEP_CHECK(fake != nullptr) << "the fake CUDA is gone";
    return *fake;
  }

  static int Answer(int code) {
    if (code != kCudaSuccess) last_error = code;
    return code;
  }

  // Begins every function: notes the call, and answers what a test has asked for.
  static int Enter(const char* function) {
    FakeCuda& fake = It();
    MutexLock lock(&fake.mu_);
    ++fake.calls_[function];
    if (inside_closure) return kCudaNotPermitted;
    for (auto failure = fake.failures_.begin(); failure != fake.failures_.end(); ++failure) {
      if (failure->function != function || --failure->nth > 0) continue;
      const int code = failure->code;
      fake.failures_.erase(failure);
      return code;
    }
    return fake.lost_;
  }

  // The body is what a function does unless it is to fail.
  template <typename Body>
  static int Call(const char* function, const Body& body) {
    if (const int code = Enter(function); code != kCudaSuccess) return Answer(code);
    return Answer(body(It()));
  }

  // Of a function that breaks the captures that are under way, unless its thread has said that it may.
  template <typename Body>
  static int CallUnsafeInCapture(const char* function, const Body& body) {
    return Call(function, [&](FakeCuda& fake) -> int {
      if (BreaksCapture(fake)) return kCudaCaptureUnsupported;
      return body(fake);
    });
  }

  static bool BreaksCapture(FakeCuda& fake) {
    MutexLock lock(&fake.mu_);
    if (capture_mode == kCudaCaptureRelaxed || !fake.captures_.any()) return false;
    fake.captures_.Invalidate();
    return true;
  }

  // What is put into a stream: `run` goes into the graph where that is captured. Else `enqueue` puts it there.
  template <typename Enqueue>
  static int Put(FakeCuda& fake, void* stream, std::function<void()> run, const Enqueue& enqueue) {
    FakeStream* const in = Find(fake, stream);
    if (in == nullptr) return kCudaInvalidHandle;
    {
      MutexLock lock(&fake.mu_);
      const auto [captured, code] = fake.captures_.Launch(in, std::move(run));
      if (captured) return code;
    }
    return enqueue(*in->stream).ok() ? kCudaSuccess : kCudaOutOfMemory;
  }

  // Null when the handle is none of a stream on the calling thread's device.
  static FakeStream* Find(FakeCuda& fake, void* handle) {
    MutexLock lock(&fake.mu_);
    const auto number = reinterpret_cast<uintptr_t>(handle);
    if (number <= kCudaPerThreadStream) {
      const std::thread::id thread = number == kCudaPerThreadStream ? std::this_thread::get_id() : std::thread::id();
      FakeStream& stream = fake.default_streams_[{current_device, thread}];
      if (stream.stream == nullptr) stream.stream = fake.NewStream(current_device);
      return &stream;
    }
    const auto found = fake.streams_.find(handle);
    if (found == fake.streams_.end() || !found->second->exists || found->second->device != current_device)
      return nullptr;
    return found->second.get();
  }

  static FakeEvent* FindEvent(FakeCuda& fake, void* handle) {
    MutexLock lock(&fake.mu_);
    const auto found = fake.events_.find(handle);
    return found == fake.events_.end() || !found->second->exists ? nullptr : found->second.get();
  }

  static int Kernel(void* stream, const std::function<void()>& kernel) {
    return Call("cudaLaunchKernel", [&](FakeCuda& fake) -> int {
      return Put(fake, stream, kernel, [&](Stream& in) {
        return in.Enqueue([kernel] {
          kernel();
          return absl::OkStatus();
        });
      });
    });
  }

  // The piece of memory that holds this address, with where it begins; null if there is none.
  static const std::pair<const void* const, Memory>* FindMemory(FakeCuda& fake, const void* address)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(fake.mu_) {
    auto found = fake.memory_.upper_bound(address);
    if (found == fake.memory_.begin()) return nullptr;
    --found;
    const auto* const end = static_cast<const char*>(found->first) + found->second.bytes;
    return std::less<const char*>()(static_cast<const char*>(address), end) ? &*found : nullptr;
  }
  // Whether the device reaches the flag there, which is the host's.
  static bool IsPinned(FakeCuda& fake, const void* flag) {
    MutexLock lock(&fake.mu_);
    const auto* const found = FindMemory(fake, flag);
    return found != nullptr && found->second.pointer.kind == CudaPointer::kPinned;
  }
  static int NewMemory(FakeCuda& fake, void** memory, size_t bytes, CudaPointer::Kind kind) {
    if (bytes == 0) return *memory = nullptr, kCudaSuccess;
    if (bytes > kMost) return kCudaOutOfMemory;
    *memory = HostDevice()->Allocate(bytes).value_or(nullptr);
    if (*memory == nullptr) return kCudaOutOfMemory;
    MutexLock lock(&fake.mu_);
    fake.memory_[*memory] = {{kind, current_device}, bytes};
    return kCudaSuccess;
  }

  static int DeleteMemory(FakeCuda& fake, void* memory, CudaPointer::Kind kind) {
    MutexLock lock(&fake.mu_);
    const auto found = fake.memory_.find(memory);
    if (found == fake.memory_.end() || found->second.pointer.kind != kind) return kCudaInvalidValue;
    fake.memory_.erase(found);
    HostDevice()->Free(memory);
    return kCudaSuccess;
  }

  static int BeginCapture(void* stream) {
    return Call("cudaStreamBeginCapture", [&](FakeCuda& fake) -> int {
      FakeStream* const found = Find(fake, stream);
      if (found == nullptr) return kCudaInvalidHandle;
      MutexLock lock(&fake.mu_);
      return fake.captures_.Begin(found);
    });
  }

  static int EndCapture(void* stream, void** graph) {
    return Call("cudaStreamEndCapture", [&](FakeCuda& fake) -> int {
      FakeStream* const found = Find(fake, stream);
      if (found == nullptr) return kCudaInvalidHandle;
      auto made = std::make_unique<Graph>();
      MutexLock lock(&fake.mu_);
      const int code = fake.captures_.End(found, &made->nodes);
      if (code != kCudaSuccess) return code;
      *graph = made.get();
      fake.graphs_[*graph] = std::move(made);
      return code;
    });
  }

  static int LaunchGraph(void* graph, void* stream) {
    return Call("cudaGraphLaunch", [&](FakeCuda& fake) -> int {
      FakeStream* const in = Find(fake, stream);
      std::shared_ptr<const FakeGraph> nodes;
      FakeGraph::Order order = FakeGraph::Order::kOldestFirst;
      {
        MutexLock lock(&fake.mu_);
        const auto found = fake.graphs_.find(graph);
        if (in == nullptr || found == fake.graphs_.end() || !found->second->exists) return kCudaInvalidHandle;
        if (fake.captures_.capturing(in)) return kCudaCaptureUnsupported;
        nodes = found->second->nodes;
        if (found->second->launches++ % 2 == 1) order = FakeGraph::Order::kNewestFirst;
      }
      const absl::Status launched = in->stream->Enqueue([nodes, order] {
        nodes->Run(order);
        return absl::OkStatus();
      });
      return launched.ok() ? kCudaSuccess : kCudaOutOfMemory;
    });
  }

  static int DestroyGraph(void* graph) {
    return Call("cudaGraphExecDestroy", [&](FakeCuda& fake) -> int {
      MutexLock lock(&fake.mu_);
      const auto found = fake.graphs_.find(graph);
      if (found == fake.graphs_.end() || !found->second->exists) return kCudaInvalidHandle;
      found->second->exists = false;
      return kCudaSuccess;
    });
  }

  friend class FakeCuda;
};

FakeCuda::FakeCuda(int devices)
    : api_(Table::Make()),
      graphs_api_{Table::BeginCapture, Table::EndCapture, Table::LaunchGraph, Table::DestroyGraph},
      devices_(devices) {
  LOCKSTEP_CHECK(the_fake.exchange(this, std::memory_order_acq_rel) == nullptr) << "two fakes at once";
  current_device = 0;
  last_error = kCudaSuccess;
  internal::ReplaceCudaApi(&api_);
  internal::ReplaceCudaGraphs(&graphs_api_);
}

FakeCuda::~FakeCuda() {
  internal::ReplaceCudaGraphs(nullptr);
  internal::ReplaceCudaApi(nullptr);
  the_fake.store(nullptr, std::memory_order_release);
}

void FakeCuda::Fail(const std::string& function, int code, int nth) {
  MutexLock lock(&mu_);
  failures_.push_back({function, code, nth});
}

void FakeCuda::set_hardware_queues(int queues) {
  MutexLock lock(&mu_);
  LOCKSTEP_CHECK(streams_.empty() && default_streams_.empty() && hardware_queues_.empty());
  for (int device = 0; device < devices_; ++device) hardware_queues_.push_back(std::make_unique<SharedQueues>(queues));
}

std::unique_ptr<Stream> FakeCuda::NewStream(int device) {
  return hardware_queues_.empty() ? HostDevice()->CreateStream("fake").value() : hardware_queues_[device]->NewStream();
}

void FakeCuda::LoseDevice(int code) {
  MutexLock lock(&mu_);
  lost_ = code;
}

int FakeCuda::calls(const std::string& function) const {
  MutexLock lock(&mu_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

bool FakeCuda::lost() const {
  MutexLock lock(&mu_);
  return lost_ != kCudaSuccess;
}

int FakeCuda::live() const {
  MutexLock lock(&mu_);
  const auto exists = [](const auto& entry) { return entry.second->exists; };
  return static_cast<int>(std::count_if(streams_.begin(), streams_.end(), exists) +
                          std::count_if(events_.begin(), events_.end(), exists) + memory_.size());
}

int FakeCuda::priority(void* stream) const {
  MutexLock lock(&mu_);
  return streams_.at(stream)->priority;
}

bool FakeCuda::LastErrorIsClear() const { return last_error == kCudaSuccess; }

int FakeCuda::LaunchKernel(void* stream, std::function<void()> kernel) { return Table::Kernel(stream, kernel); }

}  // namespace lockstep

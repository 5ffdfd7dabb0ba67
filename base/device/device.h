// Devices, streams and events, on GPUs and on the host. The reducer overlaps communication with computation by them.
//
// A stream is an ordered queue of work on one device. An event is a point in a stream's order. CUDA has both; the host's
// (base/device/host_device.h) are a worker thread with a queue. A null Stream* on the host means "inline": the data is ready
// now and the work runs on the calling thread. Code above this header uses nothing else, so tests without a GPU run the same
// ordering.

#ifndef BASE_DEVICE_DEVICE_H_
#define BASE_DEVICE_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"

namespace lockstep {

// The numbers are part of the C ABI: append, never reorder.
enum class DeviceKind : int { kHost = 0, kCuda = 1 };

inline const char* Name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kHost:
      return "host";
    case DeviceKind::kCuda:
      return "cuda";
  }
  return "unknown device";
}

// Which device memory is on. Hosts have one device, index 0.
struct DeviceId {
  DeviceKind kind = DeviceKind::kHost;
  int index = 0;

  friend bool operator==(DeviceId a, DeviceId b) { return a.kind == b.kind && a.index == b.index; }
  friend bool operator!=(DeviceId a, DeviceId b) { return !(a == b); }
};

// "host", "cuda:1".
inline std::string Name(DeviceId device) {
  return device.kind == DeviceKind::kHost ? Name(device.kind) : absl::StrCat(Name(device.kind), ":", device.index);
}

class Event;

// Whether a counter that wraps has reached `value`. REQUIRES that they are less than half the counter's range apart.
inline bool HasComeTo(uint32_t counter, uint32_t value) { return static_cast<int32_t>(counter - value) >= 0; }

// Thread-safe. Work enqueued by one thread runs in the order in which it was enqueued.
//
// The first error of a stream stays, and status() returns it. Later work is skipped: its closures are destroyed without
// running. Events recorded later still complete, so that nobody waits for ever.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual DeviceId device() const = 0;

  // The vendor's handle (cudaStream_t); null on the host.
  virtual void* native() const { return nullptr; }

  // Whether this is cudaStreamPerThread: each call then uses the stream of the calling thread.
  virtual bool is_callers() const { return false; }

  // Whether the stream is being captured: what is enqueued goes into a graph and runs when that is launched. False on the host.
  virtual bool capturing() const { return false; }

  // Runs `work` on the host after everything enqueued before and before anything enqueued later. On CUDA such work may
  // not call CUDA. RESOURCE_EXHAUSTED when the queue is full (host: 65,536 entries); the closure is destroyed then.
  virtual absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) = 0;

  // Copies `bytes` bytes in the stream's order. Source and target are memory of the device or of the host; they stay
  // borrowed until the copy is done. RESOURCE_EXHAUSTED as in Enqueue.
  virtual absl::Status Copy(void* target, const void* source, size_t bytes) = 0;

  // Records the current end of the queue in `event`, replacing what the event stood for before.
  // INVALID_ARGUMENT when the event is null or of another kind of device.
  virtual absl::Status Record(Event* event) = 0;

  // What is enqueued later starts only after the point that `event` marks now. For an event that was never recorded the
  // wait does nothing, as on CUDA. INVALID_ARGUMENT as in Record.
  virtual absl::Status Wait(Event* event) = 0;

  // What is enqueued later starts only once *flag has reached `value` (HasComeTo). The wait takes place even after an error
  // of the stream. Whoever stores the value must release it; what it wrote before is then visible to what is enqueued later.
  //
  // REQUIRES  The flag is in memory from AllocateOnHost and outlives the wait. The value is stored by the host, or by work
  //           that was enqueued before the wait: streams may share first-in-first-out queues of the device, where a wait
  //           holds up what other streams enqueue after it. An event, too, must order work of the device after other work.
  // ERRORS    UNIMPLEMENTED        the device cannot do this
  //           FAILED_PRECONDITION  the stream is being captured: a graph would repeat the value
  //           INVALID_ARGUMENT     the flag is null
  virtual absl::Status AwaitValue(const std::atomic<uint32_t>* flag, uint32_t value) = 0;

  // Stores `value` in *flag in the stream's order, even after an error of the stream. What the stream wrote before, or
  // waited for, is visible to a thread that acquires the value, and to a stream that awaits it. REQUIRES and ERRORS as in
  // AwaitValue.
  virtual absl::Status WriteValue(std::atomic<uint32_t>* flag, uint32_t value) = 0;

  // Blocks the caller until everything enqueued so far is done. Returns the stream's error if it has one, or
  // DEADLINE_EXCEEDED.
  virtual absl::Status Synchronize(Deadline deadline) = 0;

  // The first error, or OK. Does not wait.
  virtual absl::Status status() const = 0;

 protected:
  Stream() = default;
};

// Thread-safe. Each record moves the event.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // True once the marked point is reached, and before the first record.
  virtual bool Query() const = 0;

  // Blocks the caller until Query() holds, or DEADLINE_EXCEEDED. What the stream's work wrote before the point is
  // visible to a thread that has seen this return OK or Query() return true.
  virtual absl::Status Synchronize(Deadline deadline) = 0;

 protected:
  Event() = default;
};

// Makes streams, events and memory of one device. Thread-safe. Outlives all that it made.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceId id() const = 0;

  // `name` names the stream's thread or shows in a profiler (15 characters count).
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  // Wraps a stream of the embedder, given by the vendor's handle. It must outlive the result. UNIMPLEMENTED on the host,
  // whose streams have no handles.
  virtual absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void* native) = 0;

  // Uninitialised memory, aligned to at least 256 bytes. Zero bytes give a valid pointer that must still be freed.
  // RESOURCE_EXHAUSTED says how much was requested.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  // Memory of the host that the device reaches; copies to and from it run beside other work (CUDA: pinned).
  virtual absl::StatusOr<void*> AllocateOnHost(size_t bytes) = 0;
  virtual void FreeOnHost(void* memory) = 0;

 protected:
  Device() = default;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_DEVICE_H_

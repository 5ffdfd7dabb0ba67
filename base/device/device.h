// Devices, streams and events: the three nouns by which the reducer overlaps communication with computation, on a GPU
// and on the host alike.
//
// A stream is an ordered queue of work on one device; an event is a point in a stream's order. CUDA has both; the host
// implementation (base/device/host_device.h) is a worker thread with a queue. A null Stream* on the host means "inline": the
// data is ready now and the work runs on the calling thread. Code above this header knows nothing else, so its ordering
// is tested without a GPU and is the same code on one.

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
#include "base/deadline.h"

namespace lockstep {

// The numbers are part of the C ABI: append, never reorder.
enum class DeviceKind : int { kHost = 0, kCuda = 1 };

const char* Name(DeviceKind kind);

// Which device memory is on. Hosts have one device, index 0.
struct DeviceId {
  DeviceKind kind = DeviceKind::kHost;
  int index = 0;

  friend bool operator==(DeviceId a, DeviceId b) { return a.kind == b.kind && a.index == b.index; }
  friend bool operator!=(DeviceId a, DeviceId b) { return !(a == b); }
};

std::string Name(DeviceId device);  // "host", "cuda:1"

class Event;

// Whether a counter that goes round has come to `value`, less than half a round from where it is.
inline bool HasComeTo(uint32_t counter, uint32_t value) { return static_cast<int32_t>(counter - value) >= 0; }

// Thread-safe. Work enqueued by one thread runs in the order in which it was enqueued.
//
// The first error of a stream sticks: later work is skipped (its closures are destroyed without running), events
// recorded later still complete, so that nobody waits for ever, and status() tells the error.
class Stream {
 public:
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  virtual DeviceId device() const = 0;

  // The vendor's handle, of a stream that has one (cudaStream_t); null on the host.
  virtual void* native() const { return nullptr; }

  // Whether it stands for each thread's own stream (cudaStreamPerThread): a call means that of the thread which makes it.
  virtual bool is_callers() const { return false; }

  // Whether what is enqueued goes into a graph, to be run later and perhaps again, instead of being run. Never on the host.
  virtual bool capturing() const { return false; }

  // Runs `work` on the host after everything enqueued before and before anything enqueued later. On CUDA such work may
  // not call CUDA. RESOURCE_EXHAUSTED when the queue is full (host: 65,536 entries); the closure is destroyed then.
  virtual absl::Status Enqueue(absl::AnyInvocable<absl::Status()> work) = 0;

  // Copies `bytes` bytes in the stream's order, between any memory that the device reaches: its own and the host's. Both stay borrowed
  // until it is done. RESOURCE_EXHAUSTED as in Enqueue.
  virtual absl::Status Copy(void* target, const void* source, size_t bytes) = 0;

  // Marks the current end of the queue in `event`, replacing what the event stood for before.
  // INVALID_ARGUMENT when the event is null or of another kind of device.
  virtual absl::Status Record(Event* event) = 0;

  // What is enqueued later starts only after the point that `event` marks at this moment. An event never recorded is
  // no point at all: the wait does nothing, as on CUDA. INVALID_ARGUMENT as in Record.
  virtual absl::Status Wait(Event* event) = 0;

  // What is enqueued later starts only once *word has come to `value` (HasComeTo). Whoever stores it releases; what it
  // wrote before is visible to what is enqueued later. The word is in memory that a device gave by AllocateOnHost, and outlives
  // the wait, which takes place after an error of the stream, too.
  //
  // Streams may share the queues of a device, which are first in, first out: a wait then holds up what other streams
  // enqueue after it. So let only the host store the value, or work that was enqueued before the wait. Where one piece
  // of the device's work is to come after another, tell the device so by an event, too.
  //
  // UNIMPLEMENTED where the device cannot; FAILED_PRECONDITION in a stream that is being captured: a graph would repeat
  // the value. INVALID_ARGUMENT when the word is null.
  virtual absl::Status AwaitValue(const std::atomic<uint32_t>* word, uint32_t value) = 0;

  // Stores `value` in *word in the stream's order, after an error of the stream, too. What the stream wrote before, or
  // waited for, is visible to a thread that acquires the value, and to a stream that awaits it. Memory and errors as in
  // AwaitValue.
  virtual absl::Status WriteValue(std::atomic<uint32_t>* word, uint32_t value) = 0;

  // Blocks the caller until everything enqueued so far is done; the stream's error if it has one; DEADLINE_EXCEEDED.
  virtual absl::Status Synchronize(Deadline deadline) = 0;

  // The first error, or OK. Does not wait.
  virtual absl::Status status() const = 0;

 protected:
  Stream() = default;
};

// Thread-safe. May be recorded again and again; each record moves it.
class Event {
 public:
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  // True when the marked point was reached, and before the first record.
  virtual bool Query() const = 0;

  // Blocks the caller until Query() holds, or DEADLINE_EXCEEDED. What the stream's work wrote before the point is
  // visible to a thread that has seen this return OK or Query() return true.
  virtual absl::Status Synchronize(Deadline deadline) = 0;

 protected:
  Event() = default;
};

// Makes streams, events and memory of one device. Thread-safe; outlives all it made.
class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual DeviceId id() const = 0;

  // `name` names the stream's thread or shows in a profiler (15 characters count).
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(const std::string& name) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;

  // A stream of the embedder's, by the vendor's handle: it stays theirs, and outlives what is returned. UNIMPLEMENTED on the host,
  // whose streams have no handles.
  virtual absl::StatusOr<std::unique_ptr<Stream>> BorrowStream(void* native) = 0;

  // Uninitialised memory, aligned to 256 bytes at least; zero bytes give a valid pointer that must still be freed.
  // RESOURCE_EXHAUSTED says how much was asked for.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;

  // The same on the host, such that the device reaches it and copies to and from it run beside other work (CUDA: pinned).
  virtual absl::StatusOr<void*> AllocateOnHost(size_t bytes) = 0;
  virtual void FreeOnHost(void* memory) = 0;

 protected:
  Device() = default;
};

}  // namespace lockstep

#endif  // BASE_DEVICE_DEVICE_H_

// The operations of a communicator that are under way on a device's streams: when they are done, whether they are late, and their
// flight records.

#ifndef COMM_DEVICE_DEVICE_OPERATIONS_H_
#define COMM_DEVICE_DEVICE_OPERATIONS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "comm/device/device_communicator.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"

namespace lockstep {

// Thread-safe. Calls are done in the order in which they were issued, as those of one communicator are. The device
// outlives it. Collectives are numbered from 1; messages have neither number nor record.
class DeviceOperations {
 public:
  DeviceOperations(Device* device, size_t flight_records);

  // Adds calls, at least one, that were issued in the stream. They are done when the stream has come that far. `timeout`: from which
  // the deadline was computed, for the message when they are late.
  absl::Status Issued(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                      std::chrono::milliseconds timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Finds out what is done. DEADLINE_EXCEEDED names the first call that is late.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether everything issued is done.
  bool Idle() ABSL_LOCKS_EXCLUDED(mu_);
  // Marks everything that is not done as failed.
  void Fail() ABSL_LOCKS_EXCLUDED(mu_);

  // As FlightRecorder::ToString, after finding out what is done.
  std::string Records(size_t count_max) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Operation {
    // Of the last call of a group, since all calls of a group are done together; null for the others.
    std::unique_ptr<Event> event;
    Deadline deadline;
    std::chrono::milliseconds timeout;
    Signature signature;
    FlightRecord* record = nullptr;  // null of a message
  };

  void Retire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void End(const Operation& operation, FlightRecord::State state);
  static std::string NameOf(const Operation& operation);

  Device* const device_;

  mutable Mutex mu_;
  uint64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  FlightRecorder recorder_ ABSL_GUARDED_BY(mu_);
  std::deque<Operation> operations_ ABSL_GUARDED_BY(mu_);  // oldest first
  std::vector<std::unique_ptr<Event>> spare_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_OPERATIONS_H_

// What a communicator has under way on a device's streams: when it is done, whether it is in time, and its flight
// records.

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

  // These calls, at least one, were issued in the stream: they are done when it has come that far. `timeout` is what
  // the deadline was made from, for the message when they are not by then.
  absl::Status Issued(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                      std::chrono::milliseconds timeout) ABSL_LOCKS_EXCLUDED(mu_);

  // Looks what is done. DEADLINE_EXCEEDED names the first call that is not and should be.
  absl::Status Check() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether everything issued is done.
  bool Idle() ABSL_LOCKS_EXCLUDED(mu_);
  // What is not done never will be.
  void Fail() ABSL_LOCKS_EXCLUDED(mu_);

  // As FlightRecorder::ToString, with what is done by now.
  std::string Records(size_t count_max) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Operation {
    // Of the last call of a group, which are all done together; null before it.
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

#include "comm/device/device_operations.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/plan/call_plan.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

DeviceOperations::DeviceOperations(Device* device, size_t flight_records)
    : device_(device), recorder_(flight_records) {}

std::string DeviceOperations::NameOf(const Operation& operation) {
  return operation.record == nullptr ? "a message" : ToString(operation.signature);
}

absl::Status DeviceOperations::Issued(absl::Span<const DeviceCall> calls, Stream* stream, Deadline deadline,
                                      std::chrono::milliseconds timeout) {
  MutexLock lock(&mu_);
  Retire();
  std::unique_ptr<Event> event;
  if (spare_.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(event, device_->CreateEvent());
  } else {
    event = std::move(spare_.back());
    spare_.pop_back();
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Record(event.get()));
  for (const DeviceCall& call : calls) {
    Operation operation = {nullptr, deadline, timeout, {}, nullptr};
    if (const auto* const request = std::get_if<CollectiveRequest>(&call)) {
      operation.signature = SignatureOf(*request, Algorithm::kAuto);
      operation.signature.sequence = ++sequence_;
      operation.record = recorder_.Add(operation.signature, request->count * SizeOf(request->dtype));
      operation.record->state = FlightRecord::State::kRunning;
      operation.record->started = operation.record->queued;
    }
    operations_.push_back(std::move(operation));
  }
  operations_.back().event = std::move(event);
  return absl::OkStatus();
}

void DeviceOperations::End(const Operation& operation, FlightRecord::State state) {
  FlightRecord* const record = operation.record;
  // The ring may have come round to it.
  if (record == nullptr || record->signature.sequence != operation.signature.sequence) return;
  record->state = state;
  record->ended = FlightRecord::Clock::now();
}

void DeviceOperations::Retire() {
  for (;;) {
    size_t last = 0;
    while (last < operations_.size() && operations_[last].event == nullptr) ++last;
    if (last == operations_.size() || !operations_[last].event->Query()) return;
    spare_.push_back(std::move(operations_[last].event));
    for (size_t done = 0; done <= last; ++done) {
      End(operations_.front(), FlightRecord::State::kDone);
      operations_.pop_front();
    }
  }
}

absl::Status DeviceOperations::Check() {
  MutexLock lock(&mu_);
  Retire();
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  for (const Operation& operation : operations_) {
    if (!operation.deadline.passed(now)) continue;
    return absl::DeadlineExceededError(absl::StrCat(NameOf(operation), " did not finish within ",
                                                    operation.timeout.count(), " ms on ", Name(device_->id())));
  }
  return absl::OkStatus();
}

bool DeviceOperations::Idle() {
  MutexLock lock(&mu_);
  Retire();
  return operations_.empty();
}

void DeviceOperations::Fail() {
  MutexLock lock(&mu_);
  Retire();
  for (const Operation& operation : operations_) End(operation, FlightRecord::State::kFailed);
  operations_.clear();
}

std::string DeviceOperations::Records(size_t count_max) {
  MutexLock lock(&mu_);
  Retire();
  return recorder_.ToString(count_max);
}

}  // namespace lockstep

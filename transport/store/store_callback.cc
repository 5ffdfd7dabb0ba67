#include "transport/store/store_callback.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/store/store_map.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPollMin(1);
constexpr std::chrono::milliseconds kPollMax(50);

}  // namespace

absl::StatusOr<std::unique_ptr<CallbackStore>> CallbackStore::Create(const StoreCallbacks& callbacks,
                                                                     std::string name) {
  if (callbacks.set == nullptr || callbacks.get == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("store ", name, ": the callbacks set and get are required, ",
                                                   callbacks.set == nullptr ? "set" : "get", " is missing"));
  }
  return absl::WrapUnique(new CallbackStore(callbacks, std::move(name)));
}

CallbackStore::CallbackStore(const StoreCallbacks& callbacks, std::string name)
    : callbacks_(callbacks), name_(std::move(name)) {}

absl::Status CallbackStore::Outcome(const char* callback, absl::string_view key, int code) const {
  if (code == 0) return absl::OkStatus();
  const std::string context = absl::StrCat("store ", name_, ": callback ", callback, ": ", DescribeStoreKey(key), ": ");
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(absl::StrCat(context, "returned ", code, ", which is no status code"));
  }
  const auto status_code = static_cast<absl::StatusCode>(code);
  return absl::Status(status_code, absl::StrCat(context, absl::StatusCodeToString(status_code)));
}

absl::Status CallbackStore::Set(absl::string_view key, absl::string_view value, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, value));
  return Outcome("set", key, callbacks_.set(callbacks_.context, std::string(key), value, deadline.remaining_ms()));
}

absl::StatusOr<std::string> CallbackStore::Get(absl::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  std::string value;
  LOCKSTEP_RETURN_IF_ERROR(
      Outcome("get", key, callbacks_.get(callbacks_.context, std::string(key), deadline.remaining_ms(), &value)));
  LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckStoreValue(key, value), absl::StrCat("store ", name_, ": callback get")));
  return value;
}

absl::StatusOr<std::string> CallbackStore::CompareAndSet(absl::string_view key, absl::string_view expected,
                                                         absl::string_view desired, Deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, expected));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, desired));
  return absl::UnimplementedError(absl::StrCat("store ", name_, ": ", DescribeStoreKey(key), ": no compare-and-set"));
}

absl::StatusOr<std::string> CallbackStore::Wait(absl::string_view key, Deadline deadline) {
  for (auto pause = kPollMin;; pause = std::min(pause * 2, kPollMax)) {
    absl::StatusOr<std::string> value = Get(key, deadline);
    if (value.status().code() != absl::StatusCode::kNotFound) return value;
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("store ", name_, ": wait for ", DescribeStoreKey(key), ": not there by the deadline"));
    }
    std::this_thread::sleep_until(std::min(Deadline::Clock::now() + pause, deadline.time()));
  }
}

absl::Status CallbackStore::Delete(absl::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  if (callbacks_.remove == nullptr) return absl::OkStatus();
  return Outcome("remove", key, callbacks_.remove(callbacks_.context, std::string(key), deadline.remaining_ms()));
}

}  // namespace lockstep

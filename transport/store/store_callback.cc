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

absl::Status CallbackStore::Outcome(const char* callback, absl::string_view key, int code,
                                    StoreCallbackReply* reply) const {
  const auto context = [&] {
    return absl::StrCat("store ", name_, ": callback ", callback, ": ", DescribeStoreKey(key));
  };
  if (code == 0) {
    return reply->value().size() <= kStoreValueBytesMax
               ? absl::OkStatus()
               : Annotate(CheckStoreValue(key, reply->value()), absl::StrCat("store ", name_, ": callback ", callback));
  }
  if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return absl::UnknownError(absl::StrCat(context(), ": returned ", code, ", which is no status code",
                                           reply->message().empty() ? "" : ": ", reply->message()));
  }
  const auto status_code = static_cast<absl::StatusCode>(code);
  return absl::Status(
      status_code, absl::StrCat(context(), ": ",
                                reply->message().empty() ? absl::StatusCodeToString(status_code) : reply->message()));
}

absl::Status CallbackStore::Missing(absl::string_view key, const char* callback) const {
  return absl::UnimplementedError(
      absl::StrCat("store ", name_, ": ", DescribeStoreKey(key), ": the embedder gave no callback ", callback));
}

absl::Status CallbackStore::Set(absl::string_view key, absl::string_view value, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, value));
  StoreCallbackReply reply;
  const int code = callbacks_.set(callbacks_.context, key.data(), key.size(), value.data(), value.size(),
                                  deadline.remaining_ms(), &reply);
  return Outcome("set", key, code, &reply);
}

absl::StatusOr<std::string> CallbackStore::Get(absl::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  StoreCallbackReply reply;
  const int code = callbacks_.get(callbacks_.context, key.data(), key.size(), deadline.remaining_ms(), &reply);
  LOCKSTEP_RETURN_IF_ERROR(Outcome("get", key, code, &reply));
  return std::move(reply.value());
}

absl::StatusOr<int64_t> CallbackStore::Add(absl::string_view key, int64_t amount, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  if (callbacks_.add == nullptr) return Missing(key, "add");
  StoreCallbackReply reply;
  int64_t sum = 0;
  const int code =
      callbacks_.add(callbacks_.context, key.data(), key.size(), amount, deadline.remaining_ms(), &sum, &reply);
  LOCKSTEP_RETURN_IF_ERROR(Outcome("add", key, code, &reply));
  return sum;
}

absl::StatusOr<std::string> CallbackStore::CompareAndSet(absl::string_view key, absl::string_view expected,
                                                         absl::string_view desired, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, expected));
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, desired));
  if (callbacks_.compare_and_set == nullptr) return Missing(key, "compare_and_set");
  StoreCallbackReply reply;
  const int code =
      callbacks_.compare_and_set(callbacks_.context, key.data(), key.size(), expected.data(), expected.size(),
                                 desired.data(), desired.size(), deadline.remaining_ms(), &reply);
  LOCKSTEP_RETURN_IF_ERROR(Outcome("compare_and_set", key, code, &reply));
  return std::move(reply.value());
}

absl::StatusOr<std::string> CallbackStore::Wait(absl::string_view key, Deadline deadline) {
  LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
  if (callbacks_.wait != nullptr) {
    StoreCallbackReply reply;
    const int code = callbacks_.wait(callbacks_.context, key.data(), key.size(), deadline.remaining_ms(), &reply);
    LOCKSTEP_RETURN_IF_ERROR(Outcome("wait", key, code, &reply));
    return std::move(reply.value());
  }
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
  if (callbacks_.remove == nullptr) return Missing(key, "remove");
  StoreCallbackReply reply;
  const int code = callbacks_.remove(callbacks_.context, key.data(), key.size(), deadline.remaining_ms(), &reply);
  return Outcome("remove", key, code, &reply);
}

}  // namespace lockstep

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"

namespace {

using lockstep::CheckStoreKey;
using lockstep::CheckStoreValue;
using lockstep::Deadline;
using lockstep::DescribeStoreKey;

constexpr char kName[] = "store the embedder's store";
// Values at set-up are addresses: one call does.
constexpr size_t kValueBytesUsual = 4096;
constexpr std::chrono::milliseconds kPollMin(1);
constexpr std::chrono::milliseconds kPollMax(50);

// The embedder's callbacks as a store. Any thread may call, several at a time, with none of our locks held. CompareAndSet answers
// UNIMPLEMENTED; Wait asks `get` again and again.
class EmbeddersStore final : public lockstep::Store {
 public:
  explicit EmbeddersStore(const lockstep_store_callbacks& callbacks) : callbacks_(callbacks) {}

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, value));
    return Outcome("set", key,
                   callbacks_.set(callbacks_.context, std::string(key).c_str(), value.data(), value.size(),
                                  deadline.remaining_ms()));
  }

  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
    std::string value(kValueBytesUsual, '\0');
    while (true) {
      size_t bytes = 0;
      LOCKSTEP_RETURN_IF_ERROR(Outcome("get", key,
                                       callbacks_.get(callbacks_.context, std::string(key).c_str(), &value[0],
                                                      value.size(), &bytes, deadline.remaining_ms())));
      if (bytes > lockstep::kStoreValueBytesMax) return Outcome("get", key, LOCKSTEP_OUT_OF_RANGE);
      const bool whole = bytes <= value.size();
      value.resize(bytes);
      if (whole) return value;  // else once more; the value may have grown meanwhile
    }
  }

  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, expected));
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreValue(key, desired));
    return absl::UnimplementedError(absl::StrCat(kName, ": ", DescribeStoreKey(key), ": no compare-and-set"));
  }

  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override {
    for (auto pause = kPollMin;; pause = std::min(pause * 2, kPollMax)) {
      absl::StatusOr<std::string> value = Get(key, deadline);
      if (!absl::IsNotFound(value.status())) return value;
      if (deadline.passed()) {
        return absl::DeadlineExceededError(
            absl::StrCat(kName, ": wait for ", DescribeStoreKey(key), ": not there by the deadline"));
      }
      std::this_thread::sleep_until(std::min(Deadline::Clock::now() + pause, deadline.time()));
    }
  }

  absl::Status Delete(absl::string_view key, Deadline deadline) override {
    LOCKSTEP_RETURN_IF_ERROR(CheckStoreKey(key));
    if (callbacks_.remove == nullptr) return absl::OkStatus();
    return Outcome("remove", key,
                   callbacks_.remove(callbacks_.context, std::string(key).c_str(), deadline.remaining_ms()));
  }

  std::string Describe() const override { return kName; }

 private:
  // The status for what a callback returned.
  static absl::Status Outcome(const char* callback, absl::string_view key, lockstep_code code) {
    if (code == LOCKSTEP_OK) return absl::OkStatus();
    const std::string context = absl::StrCat(kName, ": callback ", callback, ": ", DescribeStoreKey(key), ": ");
    if (code < 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
      return absl::UnknownError(absl::StrCat(context, "returned ", code, ", which is no status code"));
    }
    const auto status_code = static_cast<absl::StatusCode>(code);
    return absl::Status(status_code, absl::StrCat(context, absl::StatusCodeToString(status_code)));
  }

  const lockstep_store_callbacks callbacks_;
};

}  // namespace

lockstep_error* lockstep_store_create(const lockstep_store_callbacks* callbacks, lockstep_store** out_store) {
  return lockstep::capi::Guard([&]() -> absl::Status {
    if (callbacks == nullptr) return lockstep::capi::NullArgument("callbacks");
    if (out_store == nullptr) return lockstep::capi::NullArgument("out_store");
    lockstep_store_callbacks given = {};
    LOCKSTEP_RETURN_IF_ERROR(lockstep::capi::ReadOptions(callbacks, "lockstep_store_callbacks", &given));
    if (given.set == nullptr || given.get == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(kName, ": the callbacks set and get are required, ",
                                                     given.set == nullptr ? "set" : "get", " is missing"));
    }
    auto handle = std::make_unique<lockstep_store>();
    handle->store = std::make_unique<EmbeddersStore>(given);
    handle->context = lockstep::capi::Context(given.context, given.release);
    *out_store = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_store_destroy(lockstep_store* store) { lockstep::capi::Destroy(store); }

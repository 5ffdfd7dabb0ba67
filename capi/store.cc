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

namespace {

using lockstep::Deadline;
using lockstep::DescribeStoreKey;
using lockstep::StoreOp;

constexpr char kName[] = "store of this program";
// Values at set-up are addresses: one call does.
constexpr size_t kValueBytesUsual = 4096;
constexpr std::chrono::milliseconds kPollMin(1);
constexpr std::chrono::milliseconds kPollMax(50);

// The embedder's callbacks as a store. Any thread may call, several at a time, with none of our locks held. CompareAndSet answers
// UNIMPLEMENTED, and so does Delete where there is no `remove`; Wait asks `get` again and again.
class EmbeddersStore final : public lockstep::Store {
 public:
  explicit EmbeddersStore(const lockstep_store_callbacks& callbacks) : callbacks_(callbacks) {}

  std::string Describe() const override { return kName; }

 protected:
  absl::StatusOr<std::string> Perform(const lockstep::StoreCall& call, Deadline deadline) override {
    switch (call.op) {
      case StoreOp::kSet:
        LOCKSTEP_RETURN_IF_ERROR(SetNow(call.key, call.first, deadline));
        return std::string();
      case StoreOp::kGet:
        return GetNow(call.key, deadline);
      case StoreOp::kCompareAndSet:
        return absl::UnimplementedError(absl::StrCat(kName, ": ", DescribeStoreKey(call.key), ": no compare-and-set"));
      case StoreOp::kDelete:
        if (callbacks_.remove == nullptr) {
          return absl::UnimplementedError(absl::StrCat(kName, ": ", DescribeStoreKey(call.key), ": no remove"));
        }
        LOCKSTEP_RETURN_IF_ERROR(
            Outcome("remove", call.key,
                    callbacks_.remove(callbacks_.context, std::string(call.key).c_str(), deadline.remaining_ms())));
        return std::string();
      case StoreOp::kWait:
        break;
    }
    for (auto pause = kPollMin;; pause = std::min(pause * 2, kPollMax)) {
      absl::StatusOr<std::string> value = GetNow(call.key, deadline);
      if (!absl::IsNotFound(value.status())) return value;
      if (deadline.passed()) {
        return absl::DeadlineExceededError(
            absl::StrCat(kName, ": wait for ", DescribeStoreKey(call.key), ": not there by the deadline"));
      }
      std::this_thread::sleep_until(std::min(Deadline::Clock::now() + pause, deadline.time()));
    }
  }

 private:
  absl::Status SetNow(absl::string_view key, absl::string_view value, Deadline deadline) {
    return Outcome("set", key,
                   callbacks_.set(callbacks_.context, std::string(key).c_str(), value.data(), value.size(),
                                  deadline.remaining_ms()));
  }

  absl::StatusOr<std::string> GetNow(absl::string_view key, Deadline deadline) {
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

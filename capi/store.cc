#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/call_within.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "transport/secure/secret.h"
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
// The time that each callback has at least: set-ups that have failed use the store after their deadline.
constexpr std::chrono::milliseconds kMoment(1000);

// The embedder's callbacks.
struct Callbacks {
  explicit Callbacks(const lockstep_store_callbacks& given) : c(given), context(given.context, given.release) {}

  const lockstep_store_callbacks c;
  const lockstep::capi::Context context;
  lockstep::Mutex mu;
  lockstep::CondVar ended;
  bool running ABSL_GUARDED_BY(mu) = false;
};

// A call of a callback, shared by its thread and its caller.
struct CallbackCall {
  std::string key;
  int64_t timeout_ms = 0;
  std::string value;  // to set, or as much as was read; may contain the secret
  size_t bytes = 0;   // of the value in the store
  const lockstep::WipedAtEnd wiped{&value};
};

// The embedder's callbacks as a store. Any thread may call, with none of our locks held. A callback that does not return by the deadline is
// left alone, on a thread that ends when it returns. CompareAndSet answers UNIMPLEMENTED, and so does Delete where there is no `remove`;
// Wait asks `get` again and again.
class EmbeddersStore final : public lockstep::Store {
 public:
  explicit EmbeddersStore(const lockstep_store_callbacks& given) : callbacks_(std::make_shared<Callbacks>(given)) {}

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
        if (callbacks_->c.remove == nullptr) {
          return absl::UnimplementedError(absl::StrCat(kName, ": ", DescribeStoreKey(call.key), ": no remove"));
        }
        LOCKSTEP_RETURN_IF_ERROR(
            Run("remove", NewCall(call.key), deadline, [](const auto& callbacks, CallbackCall& remove) {
              return callbacks.remove(callbacks.context, remove.key.c_str(), remove.timeout_ms);
            }));
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
  static std::shared_ptr<CallbackCall> NewCall(absl::string_view key) {
    auto call = std::make_shared<CallbackCall>();
    call->key = std::string(key);
    return call;
  }

  absl::Status SetNow(absl::string_view key, absl::string_view value, Deadline deadline) {
    const std::shared_ptr<CallbackCall> call = NewCall(key);
    call->value = std::string(value);
    return Run("set", call, deadline, [](const auto& callbacks, CallbackCall& set) {
      return callbacks.set(callbacks.context, set.key.c_str(), set.value.data(), set.value.size(), set.timeout_ms);
    });
  }

  absl::StatusOr<std::string> GetNow(absl::string_view key, Deadline deadline) {
    for (size_t capacity = kValueBytesUsual;;) {
      const std::shared_ptr<CallbackCall> call = NewCall(key);
      call->value.resize(capacity);
      LOCKSTEP_RETURN_IF_ERROR(Run("get", call, deadline, [](const auto& callbacks, CallbackCall& get) {
        return callbacks.get(callbacks.context, get.key.c_str(), &get.value[0], get.value.size(), &get.bytes,
                             get.timeout_ms);
      }));
      if (call->bytes > lockstep::kStoreValueBytesMax) return Outcome("get", key, LOCKSTEP_OUT_OF_RANGE);
      if (call->bytes <= capacity) return call->value.substr(0, call->bytes);
      capacity = call->bytes;  // once more; the value may have grown meanwhile
    }
  }

  // The callbacks, while no other call is made of them; null at the deadline.
  std::shared_ptr<Callbacks> Take(Deadline deadline) {
    const lockstep::MutexLock lock(&callbacks_->mu);
    while (callbacks_->running) {
      if (!callbacks_->ended.WaitUntil(&callbacks_->mu, deadline) && callbacks_->running) return nullptr;
    }
    callbacks_->running = true;
    return std::shared_ptr<Callbacks>(callbacks_.get(), [taken = callbacks_](Callbacks*) {
      const lockstep::MutexLock returning(&taken->mu);
      taken->running = false;
      taken->ended.SignalAll();
    });
  }

  // Makes a call, and waits for it until the deadline, but at least for a moment.
  template <typename Function>
  absl::Status Run(const char* name, const std::shared_ptr<CallbackCall>& call, Deadline deadline, Function function) {
    const Deadline end = Deadline::At(std::max(deadline.time(), Deadline::After(kMoment).time()));
    absl::optional<lockstep_code> code;
    if (std::shared_ptr<Callbacks> taken = Take(end); taken != nullptr) {
      call->timeout_ms = deadline.remaining_ms();
      LOCKSTEP_ASSIGN_OR_RETURN(
          code, lockstep::CallWithin(end, "lockstep-ask",
                                     [taken = std::move(taken), call, function] { return function(taken->c, *call); }));
    }
    if (code.has_value()) return Outcome(name, call->key, *code);
    return absl::DeadlineExceededError(
        absl::StrCat(kName, ": callback ", name, ": ", DescribeStoreKey(call->key), ": has not returned in time"));
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

  const std::shared_ptr<Callbacks> callbacks_;
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
    *out_store = handle.release();
    return absl::OkStatus();
  });
}

void lockstep_store_destroy(lockstep_store* store) { lockstep::capi::Destroy(store); }

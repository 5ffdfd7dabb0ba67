// A store that the embedding program brings: its framework's own key-value store, behind function pointers.

#ifndef TRANSPORT_STORE_STORE_CALLBACK_H_
#define TRANSPORT_STORE_STORE_CALLBACK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/store/store.h"

namespace lockstep {

// Where a callback puts its answer. Both copy; the last call counts.
class StoreCallbackReply {
 public:
  void SetValue(const void* data, size_t bytes) { value_.assign(static_cast<const char*>(data), bytes); }
  // What went wrong, in words for the user, when the callback does not return 0.
  void SetMessage(const char* message) { message_ = message == nullptr ? "" : message; }

  std::string& value() { return value_; }
  const std::string& message() const { return message_; }

 private:
  std::string value_;
  std::string message_;
};

// Each callback returns 0 or an absl::StatusCode as a number (5: NOT_FOUND) and means what the method of the same name
// in store.h means. timeout_ms is what is left of the deadline, -1 for ever. Any thread may call, several at a time,
// with none of our locks held. They must not throw.
struct StoreCallbacks {
  void* context = nullptr;

  // Required.
  int (*set)(void* context, const void* key, size_t key_bytes, const void* value, size_t value_bytes,
             int64_t timeout_ms, StoreCallbackReply* reply) = nullptr;
  int (*get)(void* context, const void* key, size_t key_bytes, int64_t timeout_ms, StoreCallbackReply* reply) = nullptr;

  // Cannot be made of the others (compare_and_set does not tell whose equal value stands): without it Add answers
  // UNIMPLEMENTED.
  int (*add)(void* context, const void* key, size_t key_bytes, int64_t amount, int64_t timeout_ms, int64_t* out_sum,
             StoreCallbackReply* reply) = nullptr;

  // Without it CompareAndSet answers UNIMPLEMENTED.
  int (*compare_and_set)(void* context, const void* key, size_t key_bytes, const void* expected, size_t expected_bytes,
                         const void* desired, size_t desired_bytes, int64_t timeout_ms,
                         StoreCallbackReply* reply) = nullptr;

  // Without it `get` is asked again and again.
  int (*wait)(void* context, const void* key, size_t key_bytes, int64_t timeout_ms,
              StoreCallbackReply* reply) = nullptr;

  // Without it Delete answers UNIMPLEMENTED.
  int (*remove)(void* context, const void* key, size_t key_bytes, int64_t timeout_ms,
                StoreCallbackReply* reply) = nullptr;
};

class CallbackStore : public Store {
 public:
  // INVALID_ARGUMENT when a required callback is missing. `name` is what Describe() says.
  static absl::StatusOr<std::unique_ptr<CallbackStore>> Create(const StoreCallbacks& callbacks, std::string name);

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount, Deadline deadline) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) override;
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override;
  absl::Status Delete(absl::string_view key, Deadline deadline) override;
  std::string Describe() const override { return "store " + name_; }

 private:
  CallbackStore(const StoreCallbacks& callbacks, std::string name);

  // What a callback's return value and message say; a successful one's value is checked against the limit.
  absl::Status Outcome(const char* callback, absl::string_view key, int code, StoreCallbackReply* reply) const;
  absl::Status Missing(absl::string_view key, const char* callback) const;

  const StoreCallbacks callbacks_;
  const std::string name_;
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_CALLBACK_H_

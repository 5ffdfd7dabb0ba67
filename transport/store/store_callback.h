// A store that the embedding program brings: its framework's own key-value store, behind function pointers.

#ifndef TRANSPORT_STORE_STORE_CALLBACK_H_
#define TRANSPORT_STORE_STORE_CALLBACK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/store/store.h"

namespace lockstep {

// Each callback does what the method of its name in store.h does. It returns 0, or an absl::StatusCode as a number (5: NOT_FOUND), and
// must not throw. timeout_ms is what is left of the deadline; -1: no deadline. Any thread may call, several at a time, with none of
// our locks held.
struct StoreCallbacks {
  void* context = nullptr;
  int (*set)(void* context, const std::string& key, absl::string_view value, int64_t timeout_ms) = nullptr;
  int (*get)(void* context, const std::string& key, int64_t timeout_ms, std::string* value) = nullptr;
  // May be null: keys then stay.
  int (*remove)(void* context, const std::string& key, int64_t timeout_ms) = nullptr;
};

// CompareAndSet answers UNIMPLEMENTED; Wait asks `get` again and again.
class CallbackStore : public Store {
 public:
  // INVALID_ARGUMENT when a required callback is missing. `name` is what Describe() says.
  static absl::StatusOr<std::unique_ptr<CallbackStore>> Create(const StoreCallbacks& callbacks, std::string name);

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) override;
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override;
  absl::Status Delete(absl::string_view key, Deadline deadline) override;
  std::string Describe() const override { return "store " + name_; }

 private:
  CallbackStore(const StoreCallbacks& callbacks, std::string name);

  // What a callback's return value says.
  absl::Status Outcome(const char* callback, absl::string_view key, int code) const;

  const StoreCallbacks callbacks_;
  const std::string name_;
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_CALLBACK_H_

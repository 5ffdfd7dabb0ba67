// The dictionary inside the stores: what set, compare-and-set and delete mean, once for all back ends. And the store that is only
// this dictionary, for ranks that are threads of one process, and for tests.

#ifndef TRANSPORT_STORE_STORE_MEMORY_H_
#define TRANSPORT_STORE_STORE_MEMORY_H_

#include <cstddef>
#include <limits>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "transport/store/store.h"

namespace lockstep {

// What an entry counts as: beside its key and its value the allocations that hold them, roughly.
inline size_t StoreBytes(absl::string_view key, absl::string_view value) { return 128 + key.size() + value.size(); }

// Not thread-safe. Keys and values are not checked against the limits of store.h: callers do that.
class StoreMap {
 public:
  // Holds at most `bytes_max`; then changes return RESOURCE_EXHAUSTED.
  explicit StoreMap(size_t bytes_max) : bytes_max_(bytes_max) {}

  size_t bytes_max() const { return bytes_max_; }

  // Null when there is none; valid until the next change.
  const std::string* Find(absl::string_view key) const;

  absl::Status Set(absl::string_view key, absl::string_view value);
  void Delete(absl::string_view key);

  // Executes a call. No result: it has to wait.
  // For compare-and-set, a missing key has the result "" and matches the expected "". So a loop that passes each result as the next
  // `expected` ends.
  absl::StatusOr<absl::optional<std::string>> Perform(const StoreCall& call);

  const std::unordered_map<std::string, std::string>& values() const { return values_; }

 private:
  size_t bytes_max_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
};

// All threads share one object. Only Wait waits; the other calls ignore their deadline.
class MemoryStore : public Store {
 public:
  std::string Describe() const override { return "store memory"; }

 protected:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override;

 private:
  Mutex mu_;
  CondVar changed_;
  StoreMap map_ ABSL_GUARDED_BY(mu_){std::numeric_limits<size_t>::max()};
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_MEMORY_H_

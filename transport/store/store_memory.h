// The dictionary inside the stores: what set, compare-and-set and delete mean, once for all back ends. And the store that is only
// this dictionary, for ranks that are threads of one process, and for tests.

#ifndef TRANSPORT_STORE_STORE_MEMORY_H_
#define TRANSPORT_STORE_STORE_MEMORY_H_

#include <cstddef>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "transport/store/store.h"

namespace lockstep {

// INVALID_ARGUMENT when a key or a value is longer than store.h allows.
absl::Status CheckStoreKey(absl::string_view key);
absl::Status CheckStoreValue(absl::string_view key, absl::string_view value);

// "key 'rank0'": unprintable bytes escaped, a long one cut short.
std::string DescribeStoreKey(absl::string_view key);

// Not thread-safe. Keys and values are not checked against the limits of store.h: callers do that.
class StoreMap {
 public:
  // Holds at most `bytes_max` of keys and values; then changes return RESOURCE_EXHAUSTED.
  explicit StoreMap(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Null when there is none; valid until the next change.
  const std::string* Find(absl::string_view key) const;

  absl::Status Set(absl::string_view key, absl::string_view value);
  absl::StatusOr<std::string> Get(absl::string_view key) const;

  // A missing key has the result "" and matches the `expected` "". So a loop that passes each result as the next `expected` ends.
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired);
  void Delete(absl::string_view key);

  size_t bytes() const { return bytes_; }
  const std::unordered_map<std::string, std::string>& values() const { return values_; }

 private:
  size_t bytes_max_;
  size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> values_;
};

// All threads share one object. Only Wait waits; the other calls ignore their deadline.
class MemoryStore : public Store {
 public:
  MemoryStore();

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) override;
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override;
  absl::Status Delete(absl::string_view key, Deadline deadline) override;
  std::string Describe() const override { return "store memory"; }

 private:
  Mutex mu_;
  CondVar changed_;
  StoreMap map_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_MEMORY_H_

// The dictionary inside the stores: what set, add, compare-and-set and delete mean, once for all back ends.

#ifndef TRANSPORT_STORE_STORE_MAP_H_
#define TRANSPORT_STORE_STORE_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// INVALID_ARGUMENT when a key or a value is longer than store.h allows.
absl::Status CheckStoreKey(absl::string_view key);
absl::Status CheckStoreValue(absl::string_view key, absl::string_view value);

// "key 'rank0'": unprintable bytes escaped, a long one cut short.
std::string DescribeStoreKey(absl::string_view key);

// Not thread-safe: whoever owns one brings the lock, or is the only thread. Keys and values are taken as they come; the
// limits are checked where they enter.
class StoreMap {
 public:
  // RESOURCE_EXHAUSTED rather than hold more than `bytes_max` of keys and values.
  explicit StoreMap(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Null when there is none; valid until the next change.
  const std::string* Find(absl::string_view key) const;

  absl::Status Set(absl::string_view key, absl::string_view value);
  absl::StatusOr<std::string> Get(absl::string_view key) const;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount);

  // Of a missing key the result is empty, as is the `expected` that matches it: a loop that passes each result as the
  // next `expected` ends.
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

// What Add makes of a value, for stores that keep their values elsewhere.
absl::StatusOr<int64_t> AddToStoreValue(absl::string_view key, absl::string_view value, int64_t amount);

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_MAP_H_

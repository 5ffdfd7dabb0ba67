// A view of a store in which every key stands behind a prefix, so that several users share one store.

#ifndef TRANSPORT_STORE_STORE_PREFIX_H_
#define TRANSPORT_STORE_STORE_PREFIX_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/store/store.h"

namespace lockstep {

// Keys become "prefix/key". A '/' or '%' inside the prefix is written as %2F or %25, so that different prefixes never
// share a key ("a" with "b/c", "a/b" with "c"). The prefix counts towards the length of a key. Borrows `store`.
class PrefixStore : public Store {
 public:
  PrefixStore(Store* store, absl::string_view prefix);

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount, Deadline deadline) override;
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) override;
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) override;
  absl::Status Delete(absl::string_view key, Deadline deadline) override;
  std::string Describe() const override;  // "store tcp://10.0.0.1:29400, keys prefix/..."

 private:
  std::string Full(absl::string_view key) const;

  Store* const store_;
  const std::string prefix_;  // escaped, with its '/'
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_PREFIX_H_

// Store: a small shared dictionary by which the ranks of a job find each other. Used while a world is set up, never in a step.
//
// Back ends: in memory (ranks that are threads), a file, TCP, the embedder's callbacks. Each passes tests/store_conformance.h.
// Keys and values are bytes; keys up to 1 KiB, values up to 16 MiB (INVALID_ARGUMENT beyond). Thread-safe. Every call ends by
// its deadline with DEADLINE_EXCEEDED that names the key.

#ifndef TRANSPORT_STORE_STORE_H_
#define TRANSPORT_STORE_STORE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"

namespace lockstep {

inline constexpr size_t kStoreKeyBytesMax = 1024;
inline constexpr size_t kStoreValueBytesMax = size_t{16} << 20;

class Store {
 public:
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  virtual absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) = 0;

  // The value; NOT_FOUND when there is none. Does not wait for one to appear.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) = 0;

  // Sets `desired` if the value equals `expected`. An empty `expected` matches a missing key too.
  // RETURNS  the value afterwards, empty if there is none. If it is `desired`, this call has set it, or another with the same value
  // ERRORS   UNIMPLEMENTED  the embedder's store cannot do it
  virtual absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                                    absl::string_view desired, Deadline deadline) = 0;

  // Blocks until the key is there and returns its value.
  virtual absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) = 0;

  // Deleting what is not there is OK.
  virtual absl::Status Delete(absl::string_view key, Deadline deadline) = 0;

  // "store tcp://10.0.0.1:29400", "store file:///tmp/job": for messages to people.
  virtual std::string Describe() const = 0;

 protected:
  Store() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_H_

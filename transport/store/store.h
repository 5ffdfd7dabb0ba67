// Store: a small shared dictionary by which the ranks of a job find each other. Used while a world is set up, never in a step.
//
// Back ends: in memory (ranks that are threads), a file, TCP, the embedder's callbacks. Each passes tests/store_conformance.h.
// Keys and values are bytes; keys up to 1 KiB, values up to 64 KiB (INVALID_ARGUMENT beyond): addresses and reasons of failure have
// less. Thread-safe. Every call ends by its deadline with DEADLINE_EXCEEDED that names the key.

#ifndef TRANSPORT_STORE_STORE_H_
#define TRANSPORT_STORE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"

namespace lockstep {

inline constexpr size_t kStoreKeyBytesMax = 1024;
inline constexpr size_t kStoreValueBytesMax = size_t{64} << 10;

// The numbers are on the wire (transport/store/store_wire.h); 3 is reserved.
enum class StoreOp : uint8_t { kSet = 1, kGet = 2, kCompareAndSet = 4, kWait = 5, kDelete = 6 };

// What a store is asked. Views are the caller's.
struct StoreCall {
  StoreOp op = StoreOp::kGet;
  absl::string_view key = "";
  absl::string_view first = "";   // of set: the value; of compare-and-set: what is expected
  absl::string_view second = "";  // of compare-and-set: what is desired
};

// "key 'rank0'": unprintable bytes escaped, a long one cut short.
std::string DescribeStoreKey(absl::string_view key);

class Store {
 public:
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) {
    return Call({StoreOp::kSet, key, value}, deadline).status();
  }

  // The value; NOT_FOUND when there is none. Does not wait for one to appear.
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) {
    return Call({StoreOp::kGet, key}, deadline);
  }

  // Sets `desired` if the value equals `expected`. An empty `expected` matches a missing key too.
  // RETURNS  the value afterwards, empty if there is none. If it is `desired`, this call has set it, or another with the same value
  // ERRORS   UNIMPLEMENTED  the embedder's store cannot do it
  absl::StatusOr<std::string> CompareAndSet(absl::string_view key, absl::string_view expected,
                                            absl::string_view desired, Deadline deadline) {
    return Call({StoreOp::kCompareAndSet, key, expected, desired}, deadline);
  }

  // Blocks until the key is there and returns its value.
  absl::StatusOr<std::string> Wait(absl::string_view key, Deadline deadline) {
    return Call({StoreOp::kWait, key}, deadline);
  }

  // Deleting what is not there is OK.
  absl::Status Delete(absl::string_view key, Deadline deadline) {
    return Call({StoreOp::kDelete, key}, deadline).status();
  }

  // "store tcp://10.0.0.1:29400", "store file:///tmp/job": for messages to people.
  virtual std::string Describe() const = 0;

 protected:
  Store() = default;

  // Executes a call whose key and values are within the limits. The result of a set or a delete is not looked at.
  virtual absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) = 0;

 private:
  absl::StatusOr<std::string> Call(const StoreCall& call, Deadline deadline);
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_H_

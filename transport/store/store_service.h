// What a store server does with requests: the dictionary, and who waits for what. No sockets, no clock of its own.

#ifndef TRANSPORT_STORE_STORE_SERVICE_H_
#define TRANSPORT_STORE_STORE_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "transport/store/store_memory.h"
#include "transport/store/store_wire.h"

namespace lockstep {

// Not thread-safe: it belongs to the server's thread. Clients are numbers that their owner never uses twice.
class StoreService {
 public:
  using TimePoint = Deadline::Clock::time_point;

  struct Answer {
    uint64_t client = 0;
    uint64_t request = 0;
    absl::Status status;
    std::shared_ptr<const std::string> body;  // of an OK status; one for all who waited for the same key
  };

  // The dictionary holds at most `bytes_max`, and the waits as much again.
  explicit StoreService(size_t bytes_max) : map_(bytes_max) {}

  // Executes a request. Appends the answers to the request itself, unless it has to wait, and to the waits that it ended.
  void CarryOut(uint64_t client, const StoreRequest& request, TimePoint now, std::vector<Answer>* answers);

  // The client has left, and its waits with it.
  void Forget(uint64_t client);

  // Removes the waits whose time is over, without an answer: their clients have given up.
  void DropExpired(TimePoint now);

  bool anyone_waits() const { return !waits_.empty(); }
  size_t waits(uint64_t client) const;

 private:
  struct Wait {
    uint64_t client;
    uint64_t request;
    TimePoint expiry;
  };

  absl::Status AddWait(uint64_t client, const StoreRequest& request, TimePoint now);
  void AnswerWaits(absl::string_view key, std::vector<Answer>* answers);
  void Uncount(absl::string_view key, const Wait& wait);
  template <typename Condition>
  void RemoveWaits(Condition condition);

  StoreMap map_;
  std::unordered_map<std::string, std::vector<Wait>> waits_;  // by key; no list is empty
  std::unordered_map<uint64_t, size_t> waits_of_client_;      // no count is 0
  size_t waits_bytes_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_STORE_STORE_SERVICE_H_

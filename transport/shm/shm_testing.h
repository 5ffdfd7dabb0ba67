// Worlds of shared-memory transports in one process, for tests.

#ifndef TRANSPORT_SHM_SHM_TESTING_H_
#define TRANSPORT_SHM_SHM_TESTING_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/status.h"
#include "tests/transport_testing.h"
#include "tests/transport_testing_credentials.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {

inline ShmTransportOptions ShmTestOptions(int rank, int size) {
  ShmTransportOptions options;
  static_cast<WorldIdentity&>(options) = TestIdentity(rank, size);
  return options;
}

using ShmTransports = std::vector<std::unique_ptr<ShmTransport>>;

// Connects all of them, each on a thread of its own; `addresses` by rank. What each rank found, by rank.
inline std::vector<std::vector<absl::Status>> ConnectAll(const ShmTransports& ranks,
                                                         const std::vector<std::string>& addresses,
                                                         Deadline deadline = TestDeadline()) {
  std::vector<std::vector<absl::Status>> found(ranks.size());
  RunRanks(ranks, [&](ShmTransport* rank) { found[rank->rank().value()] = rank->Connect(addresses, deadline); });
  return found;
}

inline std::vector<std::string> Addresses(const ShmTransports& ranks) {
  std::vector<std::string> addresses;
  for (const auto& rank : ranks) addresses.push_back(rank->address());
  return addresses;
}

// Ranks that all share memory. `change` sees the options of each rank.
inline absl::StatusOr<ShmTransports> CreateShmWorld(
    int size, const std::function<void(ShmTransportOptions* options)>& change = [](ShmTransportOptions*) {}) {
  ShmTransports ranks;
  for (int i = 0; i < size; ++i) {
    ShmTransportOptions options = ShmTestOptions(i, size);
    change(&options);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ShmTransport> rank, ShmTransport::Create(std::move(options)));
    ranks.push_back(std::move(rank));
  }
  for (const auto& found : ConnectAll(ranks, Addresses(ranks))) {
    for (const absl::Status& status : found) LOCKSTEP_RETURN_IF_ERROR(status);
  }
  return ranks;
}

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHM_TESTING_H_

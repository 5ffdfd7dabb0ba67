// Worlds of libfabric transports in one process, for tests.

#ifndef TRANSPORT_OFI_OFI_TESTING_H_
#define TRANSPORT_OFI_OFI_TESTING_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/status.h"
#include "tests/transport_testing.h"
#include "transport/net/socket.h"
#include "transport/ofi/ofi_transport.h"

namespace lockstep {

inline SocketAddress OfiTestAddress() {
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse("127.0.0.1:0");
  LOCKSTEP_CHECK(address.ok()) << address.status();
  return *address;
}

inline OfiTransportOptions OfiTestOptions(int rank, int size, const std::string& provider = "") {
  OfiTransportOptions options;
  static_cast<WorldIdentity&>(options) = TestIdentity(rank, size);
  options.bind_address = OfiTestAddress().ToString();
  options.provider = provider;
  return options;
}

using OfiTransports = std::vector<std::unique_ptr<OfiTransport>>;

// Ranks that know each other's addresses. `change` sees the options of each rank.
inline absl::StatusOr<OfiTransports> CreateOfiWorld(
    int size, const std::string& provider,
    const std::function<void(OfiTransportOptions* options)>& change = [](OfiTransportOptions*) {}) {
  OfiTransports ranks;
  std::vector<std::string> addresses;
  for (int i = 0; i < size; ++i) {
    OfiTransportOptions options = OfiTestOptions(i, size, provider);
    change(&options);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<OfiTransport> rank, OfiTransport::Create(std::move(options)));
    addresses.push_back(rank->address());
    ranks.push_back(std::move(rank));
  }
  for (auto& rank : ranks) LOCKSTEP_RETURN_IF_ERROR(rank->SetPeers(addresses));
  return ranks;
}

// A library that lacks the provider counts as not there.
template <typename Ranks>
absl::StatusOr<Ranks> UnavailableIfNotFound(absl::StatusOr<Ranks> ranks) {
  if (absl::IsNotFound(ranks.status())) return absl::UnavailableError(ranks.status().message());
  return ranks;
}

// The same as Transports that are connected, as those of a world are.
inline absl::StatusOr<Transports> CreateConnectedOfiWorld(
    int size, const std::string& provider, const std::function<void(OfiTransportOptions* options)>& change) {
  LOCKSTEP_ASSIGN_OR_RETURN(OfiTransports ranks, CreateOfiWorld(size, provider, change));
  std::vector<absl::Status> connected(ranks.size());
  RunRanks(ranks, [&](OfiTransport* rank) { connected[rank->rank().value()] = rank->Connect(TestDeadline()); });
  for (const absl::Status& status : connected) LOCKSTEP_RETURN_IF_ERROR(status);
  return AsTransports(std::move(ranks));
}

}  // namespace lockstep

#endif  // TRANSPORT_OFI_OFI_TESTING_H_

// Worlds of TCP transports in one process, for tests.

#ifndef TRANSPORT_TCP_TCP_TESTING_H_
#define TRANSPORT_TCP_TCP_TESTING_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/rank.h"
#include "base/status.h"
#include "transport/net/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {

inline SocketAddress TestAddress(const std::string& text = "127.0.0.1:0") {
  const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(text);
  LOCKSTEP_CHECK(address.ok()) << address.status();
  return *address;
}

inline TcpTransportOptions TestOptions(int rank, int size) {
  TcpTransportOptions options;
  options.rank = Rank(rank);
  options.size = size;
  options.job_id = "test";
  options.world_id = 17;
  options.bind_address = TestAddress();
  return options;
}

using TcpTransports = std::vector<std::unique_ptr<TcpTransport>>;

// Ranks that know each other's addresses. `change` sees the options of each rank.
inline absl::StatusOr<TcpTransports> CreateTcpWorld(
    int size, const std::function<void(TcpTransportOptions* options)>& change = [](TcpTransportOptions*) {}) {
  TcpTransports ranks;
  std::vector<SocketAddress> addresses;
  for (int i = 0; i < size; ++i) {
    TcpTransportOptions options = TestOptions(i, size);
    change(&options);
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<TcpTransport> rank, TcpTransport::Create(std::move(options)));
    addresses.push_back(rank->address());
    ranks.push_back(std::move(rank));
  }
  for (auto& rank : ranks) LOCKSTEP_RETURN_IF_ERROR(rank->SetPeers(addresses));
  return ranks;
}

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_TESTING_H_

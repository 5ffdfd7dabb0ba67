// The TCP transport as a Transport, over IPv4 and IPv6.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/net/socket.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {
namespace {

TransportFactory Factory(const std::string& name, const std::string& bind_address, size_t staging_bytes,
                         int sockets = 1, bool zero_copy = false) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            const SocketAddress bind = TestAddress(bind_address);
            if (const auto probe = Listen(bind); !probe.ok()) {
              return absl::UnavailableError(probe.status().message());
            }
            LOCKSTEP_ASSIGN_OR_RETURN(TcpTransports ranks, CreateTcpWorld(size, [&](TcpTransportOptions* options) {
                                        options->bind_address = bind;
                                        options->staging_bytes = staging_bytes;
                                        options->sockets = sockets;
                                        options->tuning.zero_copy = zero_copy;
                                      }));
            Transports transports;
            for (auto& rank : ranks) transports.push_back(std::move(rank));
            return transports;
          }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(Factory("IPv4", "127.0.0.1:0", 256 << 10),
                                         // So small that most elements arrive in parts.
                                         Factory("IPv4SmallStaging", "127.0.0.1:0", 64),
                                         Factory("IPv4ThreeSockets", "127.0.0.1:0", 256 << 10, 3),
                                         Factory("IPv6", "[::1]:0", 256 << 10),
                                         Factory("IPv4ZeroCopy", "127.0.0.1:0", 256 << 10, 1, true),
                                         Factory("IPv6ZeroCopy", "[::1]:0", 256 << 10, 1, true)),
                         TransportFactoryName);

}  // namespace
}  // namespace lockstep

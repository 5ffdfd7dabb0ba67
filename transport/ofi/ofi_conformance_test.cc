// The libfabric transport as a Transport, over the providers that run on any machine and bear several endpoints in a
// process. The provider shm does not: an endpoint that closes takes the memory away that other endpoints of the process
// send to.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"

namespace lockstep {
namespace {

TransportFactory Factory(const std::string& name, const std::string& provider, uint32_t piece_bytes,
                         size_t staging_bytes, size_t staging_pieces) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            absl::StatusOr<Transports> ranks =
                CreateConnectedOfiWorld(size, provider, [&](OfiTransportOptions* options) {
                  options->piece_bytes = piece_bytes;
                  options->staging_bytes = staging_bytes;
                  options->staging_pieces = staging_pieces;
                });
            // This library does not have that provider.
            if (absl::IsNotFound(ranks.status())) return absl::UnavailableError(ranks.status().message());
            return ranks;
          }};
}

INSTANTIATE_TEST_SUITE_P(Ofi, TransportConformance,
                         testing::Values(Factory("TcpRxm", "tcp;ofi_rxm", 1 << 20, 256 << 10, 16),
                                         // Many pieces of every message, and too little room for reductions.
                                         Factory("TcpRxmSmallPieces", "tcp;ofi_rxm", 10'000, 4096, 2),
                                         Factory("NetRxm", "net;ofi_rxm", 1 << 20, 256 << 10, 16)),
                         TransportFactoryName);

}  // namespace
}  // namespace lockstep

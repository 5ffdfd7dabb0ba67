// The shared-memory transport as a Transport.

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

TransportFactory Factory(const std::string& name, const MailboxGeometry& mailbox, size_t piece_bytes_max,
                         int yields_max) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            LOCKSTEP_ASSIGN_OR_RETURN(ShmTransports ranks, CreateShmWorld(size, [&](ShmTransportOptions* options) {
                                        options->mailbox = mailbox;
                                        options->piece_bytes_max = piece_bytes_max;
                                        options->yields_max = yields_max;
                                      }));
            Transports transports;
            for (auto& rank : ranks) transports.push_back(std::move(rank));
            return transports;
          }};
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         testing::Values(Factory("Default", MailboxGeometry(), 16 << 10, 20),
                                         // So small that everything wraps and blocks all the time.
                                         Factory("Tiny", MailboxGeometry{32, 4096}, 192, 0)),
                         TransportFactoryName);

}  // namespace
}  // namespace lockstep

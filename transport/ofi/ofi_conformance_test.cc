// The libfabric transport as a Transport: over providers that run on any machine, and over one that demands what real ones do
// on machines with their hardware. The provider shm is not among them: an endpoint that closes takes the memory away that
// other endpoints of its process send to.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/ofi/fake_provider.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/secure/credentials.h"

namespace lockstep {
namespace {

TransportFactory Real(const std::string& name, const std::string& provider, uint32_t piece_bytes, size_t staging_bytes,
                      size_t staging_pieces, SecurityLevel level = SecurityLevel::kNone) {
  return {name, [=](int size) {
            return UnavailableIfNotFound(CreateConnectedOfiWorld(size, provider, [&](OfiTransportOptions* options) {
              options->piece_bytes = piece_bytes;
              options->staging_bytes = staging_bytes;
              options->staging_pieces = staging_pieces;
              options->credentials = OfiTestCredentials(level);
            }));
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Ofi, TransportConformance,
    testing::Values(Real("TcpRxm", "tcp;ofi_rxm", 1 << 20, 256 << 10, 16),
                    // Many pieces of every message, and too little room for reductions.
                    Real("TcpRxmSmallPieces", "tcp;ofi_rxm", 10'000, 4096, 2),
                    Real("TcpRxmAuthenticate", "tcp;ofi_rxm", 1 << 20, 256 << 10, 16, SecurityLevel::kAuthenticate),
                    Real("Tcp", "tcp", 1 << 20, 256 << 10, 16), Real("NetRxm", "net;ofi_rxm", 1 << 20, 256 << 10, 16)),
    TransportFactoryName);

// Of the test that runs: replaced by the next one, when the transports of the last are gone.
std::unique_ptr<FakeProvider> fake_provider;

TransportFactory Fake(const std::string& name, const std::function<void(FakeProviderOptions*)>& change,
                      SecurityLevel level = SecurityLevel::kNone) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            fake_provider = nullptr;
            FakeProviderOptions fake;
            change(&fake);
            fake_provider = std::make_unique<FakeProvider>(fake);
            return CreateConnectedOfiWorld(size, "", [level](OfiTransportOptions* options) {
              options->api = &fake_provider->api();
              options->credentials = OfiTestCredentials(level);
            });
          }};
}

// As the provider for InfiniBand: every buffer is registered. And nothing is injected, as with EFA.
void RegistersAll(FakeProviderOptions* fake) {
  fake->mr_mode = kFakeRegistersAll;
  fake->inject_bytes = 0;
}

void BindsRegistrations(FakeProviderOptions* fake) {
  RegistersAll(fake);
  fake->mr_mode |= FI_MR_ENDPOINT;
  fake->message_bytes_max = 8192;
  fake->iov_limit = 1;
}

void RefusesOften(FakeProviderOptions* fake) {
  fake->refusals = 3;
  fake->queue = 64;
}

// What is longer than this waits at its sender until the receiver looks. And a message lies in more places than we use.
void SendsLittleAhead(FakeProviderOptions* fake) {
  fake->eager_bytes = 2048;
  fake->mode = FI_CONTEXT;
  fake->iov_limit = 16;
}

// Whatever a test did, the provider had nothing to complain of.
class Complaints : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    if (fake_provider == nullptr) return;
    EXPECT_EQ(fake_provider->complaints(), std::vector<std::string>());
    EXPECT_EQ(fake_provider->registered(), 0u);
    fake_provider = nullptr;
  }
};
const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Complaints());
  return true;
}();

INSTANTIATE_TEST_SUITE_P(Fake, TransportConformance,
                         testing::Values(Fake("RegistersAll", RegistersAll),
                                         Fake("BindsRegistrations", BindsRegistrations),
                                         Fake("RefusesOften", RefusesOften),
                                         Fake("RefusesOftenAuthenticate", RefusesOften, SecurityLevel::kAuthenticate),
                                         Fake("SendsLittleAhead", SendsLittleAhead)),
                         TransportFactoryName);

}  // namespace
}  // namespace lockstep

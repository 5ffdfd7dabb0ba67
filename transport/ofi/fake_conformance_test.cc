// The libfabric transport as a Transport, over a provider that demands what real ones do on machines with their
// hardware.

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

namespace lockstep {
namespace {

// Of the test that runs: replaced by the next one, when the transports of the last are gone.
std::unique_ptr<FakeProvider> provider;

TransportFactory Factory(const std::string& name, const FakeProviderOptions& fake) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            provider = nullptr;
            provider = std::make_unique<FakeProvider>(fake);
            return CreateConnectedOfiWorld(size, "",
                                           [](OfiTransportOptions* options) { options->api = &provider->api(); });
          }};
}

// As the provider for InfiniBand: every buffer is registered. And nothing is injected, as with EFA.
FakeProviderOptions RegistersAll() {
  FakeProviderOptions fake;
  fake.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fake.inject_bytes = 0;
  return fake;
}

FakeProviderOptions BindsRegistrations() {
  FakeProviderOptions fake = RegistersAll();
  fake.mr_mode |= FI_MR_ENDPOINT;
  fake.message_bytes_max = 8192;
  return fake;
}

FakeProviderOptions RefusesOften() {
  FakeProviderOptions fake;
  fake.refusals = 3;
  fake.queue = 64;
  return fake;
}

// What is longer than this waits at its sender until the receiver looks.
FakeProviderOptions SendsLittleAhead() {
  FakeProviderOptions fake;
  fake.eager_bytes = 2048;
  fake.mode = FI_CONTEXT;
  return fake;
}

// Whatever a test did, the provider had nothing to complain of.
class Complaints : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    if (provider == nullptr) return;
    EXPECT_EQ(provider->complaints(), std::vector<std::string>());
    EXPECT_EQ(provider->registered(), 0u);
  }
};
const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Complaints());
  return true;
}();

INSTANTIATE_TEST_SUITE_P(Fake, TransportConformance,
                         testing::Values(Factory("RegistersAll", RegistersAll()),
                                         Factory("BindsRegistrations", BindsRegistrations()),
                                         Factory("RefusesOften", RefusesOften()),
                                         Factory("SendsLittleAhead", SendsLittleAhead())),
                         TransportFactoryName);

}  // namespace
}  // namespace lockstep

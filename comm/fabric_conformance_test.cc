// What every communicator promises, by slots on a device that the network reads and writes: comm/fabric_testing.h has what
// stands in for both. Whatever happens to the device's memory on the host is an access that ends the test.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "comm/fabric_testing.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"
#include "tests/guarded_device.h"

namespace lockstep {
namespace {

// Of the cases' buffers: a device like those of the ranks.
GuardedDevice* CaseDevice() {
  static auto* const device = new GuardedDevice();
  return device;
}

struct Variant {
  size_t chunk_bytes = StagedOptions().chunk_bytes;
  int slots = StagedOptions().slots;
  int queues = 0;
  FakeProviderOptions fake = FabricProvider();
};

CommunicatorFactory Factory(const std::string& name, const Variant& variant) {
  CommunicatorFactory factory;
  factory.name = name;
  factory.memory.device = CaseDevice();
  factory.create = [variant](int size) -> absl::StatusOr<TestCommunicators> {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<FabricWorld> world,
                              FabricWorld::CreateHosts(size, variant.fake, {}, variant.queues));
    LOCKSTEP_RETURN_IF_ERROR(world->ConnectAll([&](int, StagedOptions* options) {
      options->chunk_bytes = variant.chunk_bytes;
      options->slots = variant.slots;
    }));
    TestCommunicators communicators{world, {}};
    for (const auto& rank : world->ranks()) communicators.ranks.push_back(rank.get());
    return communicators;
  };
  return factory;
}

Variant Pieces(size_t chunk_bytes, int slots, int queues = 0) {
  Variant variant;
  variant.chunk_bytes = chunk_bytes;
  variant.slots = slots;
  variant.queues = queues;
  return variant;
}

// As the provider for InfiniBand binds registrations, with messages cut small and posts often refused; and one slot.
Variant Awkward() {
  Variant variant = Pieces(30'000, 1);
  variant.fake.mr_mode |= FI_MR_ENDPOINT;
  variant.fake.message_bytes_max = 8192;
  variant.fake.refusals = 2;
  variant.fake.queue = 64;
  return variant;
}

INSTANTIATE_TEST_SUITE_P(Fabric, CommunicatorConformance,
                         ::testing::Values(Factory("Whole", {}), Factory("OneQueue", Pieces(20'000, 3, /*queues=*/1)),
                                           Factory("Awkward", Awkward())),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

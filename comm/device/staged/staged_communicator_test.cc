#include "comm/device/staged/staged_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "comm/host/transport_communicator.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/fake_device.h"
#include "tests/staged_worlds.h"

namespace lockstep {
namespace {

using ::lockstep::testing::StagedWorld;

// Of the cases' buffers: a device like those of the ranks.
FakeDevice* CaseDevice() {
  static auto* const device = new FakeDevice();
  return device;
}

CommunicatorFactory Factory(const std::string& name, const TransportCommunicatorOptions& transport,
                            const StagedOptions& options, int queues = 0) {
  struct Owner {
    std::vector<std::unique_ptr<FakeDevice>> devices;
    std::unique_ptr<StagedWorld> world;
  };
  CommunicatorFactory factory;
  factory.name = name;
  factory.checked = transport.checked;  // calls on the host, of which there are some in the suite
  factory.memory.device = CaseDevice();
  factory.create = [transport, options, queues](int size) -> absl::StatusOr<TestCommunicators> {
    auto owner = std::make_shared<Owner>();
    for (int rank = 0; rank < size; ++rank) owner->devices.push_back(std::make_unique<FakeDevice>(0, queues));
    LOCKSTEP_ASSIGN_OR_RETURN(owner->world,
                              StagedWorld::Create(
                                  size, [&](int rank) { return owner->devices[rank].get(); }, options, transport));
    LOCKSTEP_RETURN_IF_ERROR(owner->world->FirstError());
    TestCommunicators communicators{owner, {}};
    for (int rank = 0; rank < size; ++rank) communicators.ranks.push_back(owner->world->rank(rank).get());
    return communicators;
  };
  return factory;
}

StagedOptions Chunks(size_t chunk_bytes, int slots) {
  StagedOptions options;
  options.chunk_bytes = chunk_bytes;
  options.slots = slots;
  return options;
}

// Each rank has its calls' signatures compared, piece by piece.
TransportCommunicatorOptions Checked() {
  TransportCommunicatorOptions options;
  options.checked = true;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Staged, CommunicatorConformance,
                         ::testing::Values(Factory("Whole", {}, {}), Factory("Pieces", {}, Chunks(4096, 3)),
                                           Factory("OneQueue", {}, Chunks(8192, 3), /*queues=*/1),
                                           Factory("CheckedOneSlot", Checked(), Chunks(30'000, 1))),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

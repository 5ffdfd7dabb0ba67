#include "comm/staged_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "comm/self_communicator.h"
#include "comm/transport_communicator.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/fake_device.h"
#include "tests/ranks.h"
#include "transport/loopback.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::lockstep::testing::RunRanks;

// Of the cases' buffers: a device like those of the ranks.
FakeDevice* CaseDevice() {
  static auto* const device = new FakeDevice();
  return device;
}

// A device for each rank, as processes have it.
struct StagedWorld {
  std::unique_ptr<LoopbackWorld> loopback;  // null in a world of one
  std::vector<std::unique_ptr<FakeDevice>> devices;
  std::vector<std::unique_ptr<StagedCommunicator>> ranks;
};

CommunicatorFactory Factory(const std::string& name, const TransportCommunicatorOptions& transport,
                            const StagedOptions& options) {
  CommunicatorFactory factory;
  factory.name = name;
  factory.checked = false;
  factory.memory.device = CaseDevice();
  factory.create = [transport, options](int size) -> absl::StatusOr<TestCommunicators> {
    auto world = std::make_shared<StagedWorld>();
    if (size > 1) world->loopback = std::make_unique<LoopbackWorld>(size, LoopbackOptions(), transport);
    world->ranks.resize(size);
    std::vector<absl::Status> created(size);
    for (int rank = 0; rank < size; ++rank) world->devices.push_back(std::make_unique<FakeDevice>());
    RunRanks(size, [&](int rank) {
      HostPart host(size == 1 ? nullptr : world->loopback->communicator(rank));
      if (size == 1) host = HostPart(std::make_unique<SelfCommunicator>(/*flight_records=*/64));
      absl::StatusOr<std::unique_ptr<StagedCommunicator>> communicator =
          StagedCommunicator::Create(std::move(host), world->devices[rank].get(), options);
      created[rank] = communicator.status();
      if (communicator.ok()) world->ranks[rank] = *std::move(communicator);
    });
    TestCommunicators communicators{world, {}};
    for (int rank = 0; rank < size; ++rank) {
      LOCKSTEP_RETURN_IF_ERROR(created[rank]);
      communicators.ranks.push_back(world->ranks[rank].get());
    }
    return communicators;
  };
  return factory;
}

CommunicatorFactory Whole() { return Factory("Whole", {}, {}); }

// Many pieces, of the least that every dtype and size of these worlds can be cut into.
CommunicatorFactory Pieces() {
  StagedOptions options;
  options.chunk_bytes = 4096;
  return Factory("Pieces", {}, options);
}

CommunicatorFactory OneSlot() {
  StagedOptions options;
  options.chunk_bytes = 30'000;
  options.slots = 1;
  return Factory("OneSlot", {}, options);
}

INSTANTIATE_TEST_SUITE_P(Staged, CommunicatorConformance, ::testing::Values(Whole(), Pieces(), OneSlot()),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

// What every communicator promises, by memory that ranks map, over a fake of CUDA. With CUDA itself:
// ipc_process_test.cc.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/cuda_device.h"
#include "base/status.h"
#include "comm/ipc_communicator.h"
#include "comm/ipc_testing.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"

namespace lockstep {
namespace {

CommunicatorFactory Factory(const std::string& name, const IpcSlots& slots, bool checked) {
  CommunicatorFactory factory;
  factory.name = name;
  factory.checked = checked;
  IpcFakeCuda();
  factory.memory.device = CudaDevice(0).value();
  factory.create = [slots, checked](int size) -> absl::StatusOr<TestCommunicators> {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<IpcWorlds> worlds,
                              IpcWorlds::Create(size, [&](int, IpcOptions* options) {
                                options->slots = slots;
                                options->checked = checked;
                              }));
    TestCommunicators communicators{worlds, {}};
    for (const auto& rank : worlds->ranks) communicators.ranks.push_back(rank.get());
    return communicators;
  };
  return factory;
}

INSTANTIATE_TEST_SUITE_P(Ipc, CommunicatorConformance,
                         ::testing::Values(Factory("Whole", IpcOptions().slots, false),
                                           Factory("PiecesInTwoShots", {30'208, 100}, false),
                                           Factory("Checked", {100'096, 10'000}, true)),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

// What every communicator promises, over a fake of NCCL. With NCCL itself: nccl_gpu_conformance_test.cc.

#include <memory>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"

namespace lockstep {
namespace {

absl::StatusOr<TestCommunicators> Create(int size) {
  NcclFakes::Get().Reset();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<NcclWorlds> worlds, NcclWorlds::Create(size));
  TestCommunicators communicators{worlds, {}};
  for (const auto& rank : worlds->ranks) communicators.ranks.push_back(rank.get());
  return communicators;
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance,
                         ::testing::Values(CommunicatorFactory{"Fake", &Create, /*checked=*/false,
                                                               CaseMemory{NcclFakes::Get().device}}),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

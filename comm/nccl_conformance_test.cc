// What every communicator promises, over a fake of NCCL. With NCCL itself: nccl_gpu_conformance_test.cc.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/nccl_communicator.h"
#include "comm/nccl_testing.h"
#include "gtest/gtest.h"
#include "tests/communicator_calls_conformance.h"
#include "tests/communicator_conformance.h"
#include "tests/communicator_testing.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace {

// Of a version of NCCL.
CommunicatorFactory Fake(const std::string& name, int version) {
  return {name,
          [version](int size) -> absl::StatusOr<TestCommunicators> {
            NcclFakes::Get().Reset();
            NcclFakes::Get().nccl->set_version(version);
            absl::StatusOr<std::shared_ptr<NcclWorlds>> worlds = NcclWorlds::Create(size);
            if (!worlds.ok()) return worlds.status();
            TestCommunicators communicators{*worlds, {}};
            for (const auto& rank : (*worlds)->ranks) communicators.ranks.push_back(rank.get());
            return communicators;
          },
          /*checked=*/false, CaseMemory{NcclFakes::Get().device}};
}

INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformance, ::testing::Values(Fake("Fake", nccl::VersionCode(2, 31, 0))),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

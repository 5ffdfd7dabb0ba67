// Worlds at level encrypt, whose tensors NCCL would carry in the clear.

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

constexpr char kUnprotected[] = "LOCKSTEP_SECURITY_UNPROTECTED";

class EncryptedNcclTest : public NcclTest {
 protected:
  ~EncryptedNcclTest() override { unsetenv(kUnprotected); }

  // Two ranks at level encrypt on cuda:0.
  std::vector<WorldOrError> CreateOnDevice(const std::string& device_backend) {
    MemoryStore store;
    return CreateWorlds(&store, 2, [&](int, WorldOptions* options) {
      options->security = "encrypt";
      options->device = fakes_.device->id();
      options->device_backend = device_backend;
    });
  }
};

TEST_F(EncryptedNcclTest, IsRefusedAndTheVariableThatAllowsItIsNamed) {
  for (const WorldOrError& world : CreateOnDevice("nccl")) {
    EXPECT_THAT(world.status(),
                StatusIs(Code::kFailedPrecondition,
                         AllOf(HasSubstr("security is encrypt"), HasSubstr("LOCKSTEP_SECURITY_UNPROTECTED=nccl"))));
  }
  EXPECT_EQ(fakes_.nccl->calls("ncclCommInitRankConfig"), 0);
}

TEST_F(EncryptedNcclTest, AutoIsHostStagedInstead) {
  for (const WorldOrError& world : CreateOnDevice("auto")) {
    LOCKSTEP_ASSERT_OK(world);
    EXPECT_THAT((*world)->communicator()->Describe(),
                AllOf(HasSubstr("staged through"), HasSubstr("LOCKSTEP_SECURITY_UNPROTECTED=nccl")));
  }
  EXPECT_EQ(fakes_.nccl->calls("ncclCommInitRankConfig"), 0);
}

TEST_F(EncryptedNcclTest, IsUsedIfAllowed) {
  setenv(kUnprotected, "nccl", /*overwrite=*/1);
  for (const WorldOrError& world : CreateOnDevice("auto")) {
    LOCKSTEP_ASSERT_OK(world);
    EXPECT_THAT((*world)->communicator()->Describe(),
                AllOf(StartsWith("cuda:0: NCCL "), HasSubstr("Lockstep protects none of its data")));
  }
  EXPECT_GT(fakes_.nccl->calls("ncclCommInitRankConfig"), 0);
}

}  // namespace
}  // namespace lockstep

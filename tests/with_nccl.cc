// Linked into a test of what is above devices, this has its ranks reduce by NCCL where DEVICE_UNDER_TEST is fake_nccl: one in
// memory (tests/fake_nccl.h), on a CUDA in memory.

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "gtest/gtest.h"
#include "tests/fake_nccl.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

absl::StatusOr<std::unique_ptr<Communicator>> Make(Communicator* host, Device* device,
                                                   std::chrono::milliseconds timeout) {
  NcclCommunicatorOptions options;
  options.timeout = timeout;
  return NcclCommunicator::Create(host, device, options);
}

// That all tests together ask NCCL for nothing it does not allow, and leave nothing.
class NothingIsLeft : public ::testing::Environment {
  void TearDown() override {
    const FakeNccl& nccl = *NcclFakes::Get().nccl;
    EXPECT_EQ(nccl.misuses(), 0);
    EXPECT_EQ(nccl.communicators(), 0);
    EXPECT_EQ(nccl.registrations(), 0);
  }
};

[[maybe_unused]] const bool chosen = [] {
  if (!testing::ByNccl()) return false;
  NcclFakes::Get();
  ::testing::AddGlobalTestEnvironment(new NothingIsLeft);
  testing::ReplaceTestCommunicators(&Make);
  return true;
}();

}  // namespace
}  // namespace lockstep

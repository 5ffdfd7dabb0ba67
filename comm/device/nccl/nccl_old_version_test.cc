// NcclCommunicator by the oldest NCCL that we take, which splits no communicators, registers no memory, has no 8-bit
// floats and no ranks that share a GPU: over a fake of it. A program of its own, because a process loads NCCL once.

#include "absl/status/status.h"
#include "base/device/cuda/cuda_device.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/ranks.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class NcclOldVersion : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    fakes_.nccl->set_version(NcclLibrary::kOldest);
  }
  static CaseMemory MemoryOf(Communicator& self) { return CaseMemory{CudaDevice(self.device().index).value()}; }
  static void ExpectRight(Communicator& self) {
    CollectiveCase c;
    c.count = 100;
    const CaseReference reference(c, self.size());
    CaseRun run(reference, self.rank(), MemoryOf(self));
    EXPECT_THAT(self.Run(run.request()), IsOk());
    EXPECT_EQ(run.Check(), "");
  }
};

TEST_F(NcclOldVersion, RanksOnOneGpuAreRefused) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, NcclWorlds::CreateHosts(2));
  for (const auto& made : NcclWorlds::Connect(world_->worlds)) {
    EXPECT_THAT(made.status(), StatusIs(Code::kFailedPrecondition, HasSubstr("ranks 0 and 1 are both on the GPU")));
  }
  // The host communicators are still good.
  testing::RunRanks(2, [&](int r) { EXPECT_THAT(world_->worlds[r]->communicator()->Run({}), IsOk()); });
}

TEST_F(NcclOldVersion, PartsAreConnectedAnewAndMemoryIsTheDevices) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, NcclWorlds::Create(2, nullptr, /*own_devices=*/true));
  testing::RunRanks(2, [&](int r) {
    Communicator& self = *world_->ranks[r];
    ExpectRight(self);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto part, self.Split(0, -r));
    EXPECT_EQ(part->rank().value(), 1 - r);
    ExpectRight(*part);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto alone, self.Split(r == 0 ? 3 : -1, 0));
    EXPECT_EQ(alone != nullptr, r == 0);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto memory, self.AllocateOnDevice(4096));
    EXPECT_EQ(memory->bytes(), 4096u);
  });
  EXPECT_EQ(fakes_.nccl->calls("ncclCommSplit"), 0);
  EXPECT_EQ(fakes_.nccl->calls("ncclMemAlloc"), 0);
  EXPECT_EQ(fakes_.nccl->last_config().size, 24u);
}

TEST_F(NcclOldVersion, EightBitFloatsAreMovedButNotAdded) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(world_, NcclWorlds::Create(1));
  Communicator& self = *world_->ranks[0];
  EXPECT_THAT(self.Supports(Collective::kAllReduce, DType::kF8E4M3, ReduceOp::kSum),
              StatusIs(Code::kUnimplemented, HasSubstr("before 2.24")));
  CollectiveCase c;
  c.collective = Collective::kAllGather;
  c.dtype = DType::kF8E4M3;
  c.count = 10;
  const CaseReference reference(c, 1);
  CaseRun run(reference, self.rank(), MemoryOf(self));
  EXPECT_THAT(self.Run(run.request()), IsOk());
  EXPECT_EQ(run.Check(), "");
}

}  // namespace
}  // namespace lockstep

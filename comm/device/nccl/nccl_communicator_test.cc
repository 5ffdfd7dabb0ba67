// What the conformance suite does not know of NcclCommunicator: its creation and NCCL's own calls, over a fake of NCCL.

#include "comm/device/nccl/nccl_communicator.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/device.h"
#include "base/rank.h"
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
#include "transport/nccl/nccl_abi.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

using NcclCommunicatorTest = NcclTest;

// ---- Creation

TEST_F(NcclCommunicatorTest, DescribesTheLibraryAndWhy) {
  Create(2);
  EXPECT_THAT(rank(1).Describe(), StartsWith("cuda:0: NCCL 2.31.0 ("));
  EXPECT_THAT(rank(1).Describe(),
              HasSubstr("LOCKSTEP_NCCL_LIBRARY): every rank has it, and a GPU that it takes; Lockstep protects none "
                        "of its data\n"));
  EXPECT_EQ(rank(1).device(), fakes_.device->id());
}

TEST_F(NcclCommunicatorTest, DeterministicIsUnimplemented) {
  CreateHosts(2);
  for (const auto& made :
       NcclWorlds::Connect(world_->worlds, [](int, auto* options) { options->deterministic = true; })) {
    EXPECT_THAT(made.status(), StatusIs(Code::kUnimplemented, HasSubstr("deterministic")));
  }
  ExpectHostsGood();
}

TEST_F(NcclCommunicatorTest, ARankThatIsNeverReadyEndsAtTheDeadlineOnEveryRank) {
  CreateHosts(3);
  fakes_.nccl->HangInit(1);
  const auto made = NcclWorlds::Connect(world_->worlds, [](int rank, auto* options) {
    if (rank == 1) options->setup_timeout = milliseconds(50);
  });
  for (const auto& communicator : made) {
    EXPECT_THAT(communicator.status(),
                StatusIs(Code::kUnavailable,
                         HasSubstr("creating NCCL's communicator of rank 1 of 3 on cuda:0 did not finish in time")));
  }
  // Nothing is left, and the next attempt is a new one.
  fakes_.nccl->HangInit(-1);
  ExpectHostsGood();
  for (const auto& communicator : NcclWorlds::Connect(world_->worlds)) EXPECT_THAT(communicator.status(), IsOk());
}

TEST_F(NcclCommunicatorTest, ARankWhoseSetUpFailsIsNamedOnEveryRank) {
  for (const nccl::Result result : {nccl::kInternalError, nccl::kSystemError, nccl::kUnhandledCudaError}) {
    CreateHosts(3);
    fakes_.nccl->Fail("ncclCommInitRankConfig", result, 2);
    for (const auto& made : NcclWorlds::Connect(world_->worlds)) {
      EXPECT_THAT(made.status(),
                  StatusIs(Code::kUnavailable,
                           AllOf(HasSubstr("creating NCCL's communicator of rank "), HasSubstr("NCCL 2.31.0"),
                                 HasSubstr("words for the result (nccl"), HasSubstr("): the last error"))));
    }
    ExpectHostsGood();
  }
}

TEST_F(NcclCommunicatorTest, Rank0sLackOfAnIdIsToldToAll) {
  CreateHosts(3);
  fakes_.nccl->Fail("ncclGetUniqueId", nccl::kSystemError, 1);
  for (const auto& made : NcclWorlds::Connect(world_->worlds)) {
    EXPECT_THAT(made.status(), StatusIs(Code::kUnavailable, HasSubstr("rank 0: ncclGetUniqueId: NCCL 2.31.0")));
  }
  ExpectHostsGood();
}

TEST_F(NcclCommunicatorTest, TheConfigurationReachesNcclAsFarAsItsVersionKnowsIt) {
  const auto change = [](int, NcclCommunicatorOptions* options) {
    options->nccl.ctas_min = 1;
    options->nccl.ctas_max = 4;
    options->nccl.split_share = true;
  };
  Create(2, change);
  nccl::Config config = fakes_.nccl->last_config();
  EXPECT_EQ(config.min_ctas, 1);
  EXPECT_EQ(config.max_ctas, 4);
  EXPECT_EQ(config.split_share, 1);
  EXPECT_EQ(config.blocking, 0);
  world_.reset();
  Create(2);
  config = fakes_.nccl->last_config();
  EXPECT_EQ(config.min_ctas, nccl::kUndefined);
  EXPECT_EQ(config.max_ctas, nccl::kUndefined);
  EXPECT_EQ(config.split_share, 0);
}

// ---- Calls

TEST_F(NcclCommunicatorTest, InCheckedModeADifferenceIsFoundBeforeAnythingIsIssued) {
  Create(3, [](int, NcclCommunicatorOptions* options) { options->checked = true; });
  ExpectRight(Small());
  OnRanks([&](Communicator& self) {
    CollectiveCase c = Small();
    if (self.rank() == Rank(2)) c.dtype = DType::kI32;
    const CaseReference reference(c, self.size());
    CaseRun run(reference, self.rank(), memory());
    EXPECT_THAT(self.Run(run.request()), StatusIs(Code::kFailedPrecondition,
                                                  "the ranks' collectives differ: rank 0 called all_reduce #2 (100 f32 "
                                                  "sum, auto); rank 1 called all_reduce #2 (100 f32 sum, auto); rank "
                                                  "2 called all_reduce #2 (100 i32 sum, auto)"));
    EXPECT_THAT(self.status(), IsOk());
  });
  // What each rank has of its own is no difference.
  CollectiveCase c = Small();
  c.collective = Collective::kAllToAll;
  c.unequal = true;
  ExpectRight(c);
  OnRanks([&](Communicator& self) { EXPECT_THAT(self.Split(0, 0).status(), IsOk()); });
}

TEST_F(NcclCommunicatorTest, WhatIsUnderWayForLongIsAwaited) {
  fakes_.nccl->set_looks(1500);
  Create(2);
  ExpectRight(Small());
}

// Which NCCL 2.28 says to be done as soon as it has taken the call.
TEST_F(NcclCommunicatorTest, ASplitIsAwaitedOnRanksWithAPartAndWithout) {
  Create(2);
  fakes_.nccl->set_looks(100);
  const CaseReference reference(Small(), size());
  OnRanks([&](Communicator& self) {
    for (const int color : {0, self.rank() == Rank(0) ? -1 : 0}) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto part, self.Split(color, 0));
      EXPECT_EQ(part == nullptr, color < 0);
      CaseRun run(reference, self.rank(), memory());
      ASSERT_THAT(self.Run(run.request()), IsOk());
      EXPECT_EQ(run.Check(), "");
    }
  });
  EXPECT_EQ(fakes_.nccl->misuses(), 0);
}

TEST_F(NcclCommunicatorTest, OperatorsOfPremultipliedSumsAreGivenBack) {
  Create(3);
  CollectiveCase c = Small();
  c.op = ReduceOp::kPremulSum;
  for (int round = 0; round < 3; ++round) ExpectRight(c);
  EXPECT_EQ(fakes_.nccl->calls("ncclRedOpCreatePreMulSum"), 9);
  EXPECT_EQ(fakes_.nccl->operators(), 0);
}

TEST_F(NcclCommunicatorTest, InPlaceExchangesOfManySizesMayFollowEachOtherOnSeveralStreams) {
  Create(3);
  OnRanks([&](Communicator& self) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(fakes_.device->CreateStream("s").value());
    std::vector<CaseReference> references;
    for (int i = 0; i < 12; ++i) {
      CollectiveCase c;
      c.collective = Collective::kAllToAll;
      c.count = i * i * 37;
      c.in_place = true;
      c.seed = static_cast<uint32_t>(i);
      references.emplace_back(c, self.size());
    }
    std::vector<std::unique_ptr<CaseRun>> runs;
    for (size_t i = 0; i < references.size(); ++i) {
      runs.push_back(std::make_unique<CaseRun>(references[i], self.rank(), memory()));
      EXPECT_THAT(self.Enqueue(runs[i]->request(), streams[i % 3].get(), [](const absl::Status&) {}), IsOk());
    }
    for (const auto& stream : streams) EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    for (const auto& run : runs) EXPECT_EQ(run->Check(), "");
  });
}

TEST_F(NcclCommunicatorTest, PerThreadDefaultStreamsAreTheCallers) {
  Create(2);
  OnRanks([&](Communicator& self) {
    const CaseReference reference(Small(), self.size());
    CaseRun run(reference, self.rank(), memory());
    const auto stream = fakes_.device->BorrowStream(reinterpret_cast<void*>(kCudaPerThreadStream)).value();
    EXPECT_THAT(self.Enqueue(run.request(), stream.get(), [](const absl::Status&) {}), IsOk());
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(run.Check(), "");
  });
}

TEST_F(NcclCommunicatorTest, MessagesThatNcclCannotCarryAreUnimplemented) {
  Create(1);
  char byte = 0;
  ReceiveRequest receive;
  receive.device = fakes_.device->id();
  receive.data = &byte;
  receive.bytes = 1;
  EXPECT_THAT(rank(0).StartReceive(receive).status(), StatusIs(Code::kUnimplemented, HasSubstr("names its source")));
  receive.source = Rank(0);
  receive.tag = 5;
  EXPECT_THAT(rank(0).StartReceive(receive).status(), StatusIs(Code::kUnimplemented, HasSubstr("tag 0, not 5")));
  SendRequest send;
  send.device = fakes_.device->id();
  send.target = Rank(0);
  send.tag = 7;
  EXPECT_THAT(rank(0).StartSend(send).status(), StatusIs(Code::kUnimplemented, HasSubstr("tag 0, not 7")));
  EXPECT_THAT(rank(0).status(), IsOk());
}

TEST_F(NcclCommunicatorTest, MemoryIsRegisteredWhereTheVersionCanAndMayOutliveTheCommunicator) {
  Create(2);
  std::vector<std::unique_ptr<SymmetricBuffer>> buffers(2);
  OnRanks([&](Communicator& self) {
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> buffer = self.AllocateOnDevice(4096);
    EXPECT_THAT(buffer.status(), IsOk());
    if (buffer.ok()) buffers[self.rank().value()] = *std::move(buffer);
  });
  EXPECT_EQ(fakes_.nccl->calls("ncclMemAlloc"), 2);
  EXPECT_EQ(fakes_.nccl->registrations(), 2);
  buffers[0] = nullptr;
  EXPECT_EQ(fakes_.nccl->registrations(), 1);
  world_->ranks.clear();
  buffers[1] = nullptr;
  EXPECT_EQ(fakes_.nccl->calls("ncclMemFree"), 2);
  // The other registration ended with its communicator.
  EXPECT_EQ(fakes_.nccl->calls("ncclCommDeregister"), 1);
}

TEST_F(NcclCommunicatorTest, ARankWithoutMemoryIsNamed) {
  Create(2);
  fakes_.nccl->Fail("ncclMemAlloc", nccl::kUnhandledCudaError, 1);
  OnRanks([&](Communicator& self) {
    EXPECT_THAT(self.AllocateOnDevice(4096).status(),
                StatusIs(AnyOf(Code::kResourceExhausted, Code::kUnavailable), HasSubstr("ncclMemAlloc of 4096 bytes")));
  });
  ExpectRight(Small());
}

TEST_F(NcclCommunicatorTest, WhatIsCapturedHasNoDeadlineOfItsOwn) {
  Create(2);
  EXPECT_THAT(rank(0).CanCapture(), IsOk());
  OnRanks([&](Communicator& self) {
    const auto stream = fakes_.device->CreateStream("captured").value();
    const CaseReference reference(Small(), 2);
    CaseRun run(reference, self.rank(), memory());
    ASSERT_EQ(BeginCapture(stream->native()), kCudaSuccess);
    EXPECT_THAT(self.Enqueue(run.request(), stream.get(), [](const absl::Status&) {}), IsOk());
    void* graph = nullptr;
    ASSERT_EQ(EndCapture(stream->native(), &graph), kCudaSuccess);
    EXPECT_THAT(self.FlightRecords(), ::testing::Not(HasSubstr("all_reduce")));
    for (int replay = 0; replay < 2; ++replay) ASSERT_EQ(LaunchGraph(graph, stream->native()), kCudaSuccess);
    EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
    EXPECT_EQ(run.Check(), "");
    EXPECT_EQ(DestroyGraph(graph), kCudaSuccess);
  });
  ExpectRight(Small());
}

TEST_F(NcclCommunicatorTest, ACaptureTakesNoCallThatNeedsMemoryOfOurs) {
  Create(1);
  const auto stream = fakes_.device->CreateStream("captured").value();
  CollectiveRequest barrier;
  barrier.device = fakes_.device->id();
  ASSERT_EQ(BeginCapture(stream->native()), kCudaSuccess);
  EXPECT_THAT(rank(0).Enqueue(barrier, stream.get(), [](const absl::Status&) {}),
              StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr("barrier #1"), HasSubstr("captured"))));
  void* graph = nullptr;
  EXPECT_EQ(EndCapture(stream->native(), &graph), kCudaSuccess);
  EXPECT_THAT(rank(0).Enqueue(barrier, stream.get(), [](const absl::Status&) {}), IsOk());
  EXPECT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
}

}  // namespace
}  // namespace lockstep

// What communicators for a device share, over the plainest back end: a stream's closures call the host communicator.

#include "comm/device/device_communicator.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/device/device_work.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/fake_device.h"
#include "tests/gate.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::testing::Each;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class ClosureCommunicator : public DeviceCommunicator {
 public:
  ClosureCommunicator(HostPart host, Device* device)
      : DeviceCommunicator(std::move(host), device, std::chrono::minutes(1)) {}
  ~ClosureCommunicator() override { Close(); }

  std::vector<size_t> issued;  // calls at a time
  std::vector<Code> failures;  // what OnFailure was told
  Gate* gate = nullptr;        // that a stream waits at before its calls; may be null
  absl::Status refusal;        // of every call
  absl::Status issuing_error;  // of every issue
  using DeviceCommunicator::Fail;

 protected:
  absl::Status CheckOnDevice(const DeviceCall& call) override {
    if (!std::holds_alternative<CollectiveRequest>(call)) return absl::UnimplementedError("no messages");
    return refusal;
  }
  absl::Status IssueOnDevice(absl::Span<const DeviceCall> calls, Stream* stream) override {
    LOCKSTEP_RETURN_IF_ERROR(issuing_error);
    issued.push_back(calls.size());
    for (const DeviceCall& call : calls) {
      CollectiveRequest request = std::get<CollectiveRequest>(call);
      request.device = DeviceId();
      const std::vector<int64_t> counts(request.counts.begin(), request.counts.end());
      LOCKSTEP_RETURN_IF_ERROR(stream->Enqueue([this, request, counts]() mutable {
        request.counts = counts;
        if (gate != nullptr) LOCKSTEP_RETURN_IF_ERROR(gate->Await(CommTestDeadline()));
        if (absl::Status status = host()->Run(request); !status.ok()) Fail(status);
        return absl::OkStatus();
      }));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Communicator>> MakePart(std::unique_ptr<Communicator> part, int color,
                                                         int /*key*/) override {
    EXPECT_EQ(part == nullptr, color < 0);
    if (part == nullptr) return nullptr;
    return std::make_unique<ClosureCommunicator>(std::move(part), accelerator());
  }
  std::string DescribeDevice() const override { return "by closures"; }
  void OnFailure(const absl::Status& status) override { failures.push_back(status.code()); }
};

class DeviceCommunicatorTest : public ::testing::Test {
 protected:
  DeviceCommunicatorTest() : world_(2) {
    for (int r = 0; r < 2; ++r) {
      ranks_.push_back(std::make_unique<ClosureCommunicator>(world_.communicator(r), &devices_[r]));
    }
  }

  static CollectiveRequest SumOf(std::vector<int>* values, DeviceId device = {DeviceKind::kCuda, 0}) {
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kI32, values->size(), values->data(), values->data());
    request.device = device;
    return request;
  }

  void OnRanks(const std::function<void(int rank, ClosureCommunicator& self)>& body) {
    ::lockstep::testing::RunRanks(2, [&](int r) { body(r, *ranks_[r]); });
  }

  FakeDevice devices_[2];
  LoopbackWorld world_;
  std::vector<std::unique_ptr<ClosureCommunicator>> ranks_;
};

TEST_F(DeviceCommunicatorTest, CallsGoWhereTheirBuffersAre) {
  OnRanks([](int, ClosureCommunicator& self) {
    std::vector<int> values(10, 1);
    EXPECT_THAT(self.Run(SumOf(&values)), IsOk());
    EXPECT_THAT(self.issued, ::testing::ElementsAre(1));
    EXPECT_THAT(self.Run(SumOf(&values, DeviceId())), IsOk());
    EXPECT_THAT(self.issued, ::testing::ElementsAre(1)) << "on the host";
    EXPECT_THAT(values, Each(4));
    EXPECT_EQ(self.device(), (DeviceId{DeviceKind::kCuda, 0}));
    EXPECT_THAT(self.Describe(), ::testing::StartsWith("by closures\n"));
  });
}

TEST_F(DeviceCommunicatorTest, AGroupIsIssuedAtOnceAndItsCountsAreKept) {
  OnRanks([](int r, ClosureCommunicator& self) {
    std::vector<int> values(10, 1), blocks(3, -1), host_values(5, 1);
    const int mine[] = {10 * r, 10 * r + 1};
    std::vector<int64_t> counts = {2, 1};
    CollectiveRequest gather = SumOf(&blocks);
    gather.collective = Collective::kAllGather;
    gather.input = mine;
    gather.counts = counts;
    ASSERT_THAT(self.StartGroup(), IsOk());
    EXPECT_THAT(self.Run(SumOf(&values)), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work gathered, self.Start(gather));
    counts.assign({77, 77});
    EXPECT_FALSE(gathered.done());
    EXPECT_THAT(gathered.Wait(CommTestDeadline()), StatusIs(Code::kFailedPrecondition, HasSubstr("end the group")));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work all, self.EndGroup());
    EXPECT_THAT(all.Wait(CommTestDeadline()), IsOk());
    EXPECT_TRUE(gathered.done());
    EXPECT_THAT(self.issued, ::testing::ElementsAre(2));
    EXPECT_THAT(values, Each(2));
    EXPECT_THAT(blocks, ::testing::ElementsAre(0, 1, 10));
  });
}

TEST_F(DeviceCommunicatorTest, WhatTheBackEndRefusesIsNotIssued) {
  std::vector<int> values(10, 1);
  ranks_[0]->refusal = absl::UnimplementedError("not this");
  EXPECT_THAT(ranks_[0]->Run(SumOf(&values)), StatusIs(Code::kUnimplemented));
  EXPECT_THAT(ranks_[0]->Prepare(SumOf(&values)).status(), StatusIs(Code::kUnimplemented));
  ASSERT_THAT(ranks_[0]->StartGroup(), IsOk());
  EXPECT_THAT(ranks_[0]->Start(SumOf(&values)).status(), StatusIs(Code::kUnimplemented));
  EXPECT_THAT(ranks_[0]->EndGroup().status(), StatusIs(Code::kUnimplemented));
  ReceiveRequest receive;
  receive.device = ranks_[0]->device();
  EXPECT_THAT(ranks_[0]->StartReceive(receive).status(), StatusIs(Code::kUnimplemented, HasSubstr("no messages")));
  CollectiveRequest broadcast = SumOf(&values);
  broadcast.collective = Collective::kBroadcast;
  broadcast.root = Rank(2);
  EXPECT_THAT(ranks_[0]->Run(broadcast), StatusIs(Code::kInvalidArgument, HasSubstr("root 2")));
  EXPECT_TRUE(ranks_[0]->issued.empty());
  EXPECT_THAT(ranks_[0]->status(), IsOk());
}

// The calls on the host are under way when those on the device turn out not to be: the ranks would be out of step.
TEST_F(DeviceCommunicatorTest, AGroupThatIsLaunchedByHalvesEndsTheCommunicator) {
  std::vector<int> values(10, 1), host_values(10, 1);
  ranks_[0]->issuing_error = absl::ResourceExhaustedError("full");
  ASSERT_THAT(ranks_[0]->StartGroup(), IsOk());
  EXPECT_THAT(ranks_[0]->Start(SumOf(&values)), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work on_host, ranks_[0]->Start(SumOf(&host_values, DeviceId())));
  EXPECT_THAT(ranks_[0]->EndGroup().status(), StatusIs(Code::kResourceExhausted));
  EXPECT_THAT(on_host.Wait(CommTestDeadline()), StatusIs(Code::kAborted, HasSubstr("full")));
  EXPECT_THAT(ranks_[0]->status(), StatusIs(Code::kResourceExhausted));
}

TEST_F(DeviceCommunicatorTest, AFailureIsTheSameEverywhereAndToldOnce) {
  std::vector<int> values(10, 1);
  Gate gate;
  ranks_[0]->gate = &gate;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, ranks_[0]->Start(SumOf(&values)));
  ranks_[0]->Fail(absl::InternalError("first"));
  ranks_[0]->Fail(absl::InternalError("second"));
  EXPECT_FALSE(work.done()) << "its buffers are in use until the stream gets there";
  gate.Open();
  EXPECT_THAT(work.Wait(CommTestDeadline()), StatusIs(Code::kInternal, "all_reduce #1 (10 i32 sum, auto): first"));
  ExpectErrorOf(Collective::kAllReduce, ranks_[0]->Run(SumOf(&values)), ranks_[0]->status());
  ExpectErrorOf(Collective::kAllReduce, ranks_[0]->Run(SumOf(&values, DeviceId())), ranks_[0]->status());
  EXPECT_THAT(ranks_[0]->failures, ::testing::ElementsAre(Code::kInternal));
  EXPECT_THAT(world_.communicator(0)->status(), StatusIs(Code::kAborted, HasSubstr("first")));
}

TEST_F(DeviceCommunicatorTest, AWorkOutlivesItsCommunicator) {
  std::vector<int> values(10, 1);
  Gate gate;
  ranks_[0]->gate = &gate;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, ranks_[0]->Start(SumOf(&values)));
  gate.Open();
  std::vector<int> others(10, 1);
  EXPECT_THAT(ranks_[1]->Run(SumOf(&others)), IsOk());
  ranks_[0] = nullptr;
  EXPECT_TRUE(work.done());
  EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kCancelled, HasSubstr("destroyed")));
}

TEST_F(DeviceCommunicatorTest, PartsAreOfTheSameKind) {
  OnRanks([](int r, ClosureCommunicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> part, self.Split(r == 0 ? -1 : 0, 0));
    ASSERT_EQ(part == nullptr, r == 0);
    if (part == nullptr) return;
    EXPECT_EQ(part->device(), self.device());
    std::vector<int> values(10, 1);
    EXPECT_THAT(part->Run(SumOf(&values)), IsOk());
    EXPECT_THAT(values, Each(1));
  });
}

TEST_F(DeviceCommunicatorTest, APreparedCallMayNotBeStartedTwiceAtATime) {
  Gate gate;
  ranks_[0]->gate = &gate;
  std::vector<int> values(10, 1), others(10, 1);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, ranks_[0]->Prepare(SumOf(&values)));
  ASSERT_THAT(prepared->Start(), IsOk());
  EXPECT_THAT(prepared->Start(), StatusIs(Code::kFailedPrecondition));
  gate.Open();
  EXPECT_THAT(ranks_[1]->Run(SumOf(&others)), IsOk());
  EXPECT_THAT(prepared->Wait(CommTestDeadline()), IsOk());
  EXPECT_THAT(values, Each(2));
}

}  // namespace
}  // namespace lockstep

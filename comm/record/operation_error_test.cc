#include "comm/record/operation_error.h"

#include "absl/status/status.h"
#include "base/error_info.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/point_to_point.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

Signature AllReduce17() {
  Signature signature;
  signature.sequence = 17;
  signature.collective = Collective::kAllReduce;
  signature.algorithm = Algorithm::kRing;
  signature.dtype = DType::kF32;
  signature.count = 100;
  return signature;
}

FlightRecord HalfDone() {
  FlightRecord record;
  record.state = FlightRecord::State::kRunning;
  record.bytes = 400;
  record.AddSent(Rank(1), 200);
  record.AddReceived(Rank(3), 100);
  return record;
}

const char kName[] = "all_reduce #17 (100 f32 sum, ring)";
const char kProgress[] = "400 B, sent 200 B, received 100 B (rank 1: 200/0, rank 3: 0/100)";

TEST(OperationErrorTest, SaysWhichHowFarAndWhy) {
  const absl::Status cause = WithFailedRank(absl::AbortedError("rank 2 died"), 2);
  const absl::Status error = OperationError(cause, NameOf(AllReduce17()), ProgressOf(HalfDone()));
  EXPECT_THAT(error, StatusIs(Code::kAborted, std::string(kName) + ", " + kProgress + ": rank 2 died"));
  const ErrorInfo info = GetErrorInfo(error);
  EXPECT_EQ(info.failed_rank, 2);
  EXPECT_EQ(info.collective, "all_reduce");
  EXPECT_EQ(info.sequence, 17u);
  EXPECT_EQ(OperationError(absl::OkStatus(), NameOf(AllReduce17())), absl::OkStatus());
}

TEST(OperationErrorTest, ACauseThatNamesTheOperationDoesNotDoSoTwice) {
  const auto of = [](const char* cause) {
    return std::string(OperationError(absl::AbortedError(cause), NameOf(AllReduce17()), "0 B, not begun").message());
  };
  EXPECT_EQ(of("all_reduce #17 (100 f32 sum, ring): connection lost"),
            std::string(kName) + ", 0 B, not begun: connection lost");
  EXPECT_EQ(of("all_reduce #17 (100 f32 sum, ring) did not finish in time: who"),
            std::string(kName) + ", 0 B, not begun: did not finish in time: who");
  EXPECT_EQ(of("all_reduce #17 (100 f32 sum, ring), piece 2 of 5: lost"),
            std::string(kName) + ", 0 B, not begun, piece 2 of 5: lost");
  EXPECT_EQ(of("all_reduce #16 (100 f32 sum, ring): connection lost"),
            std::string(kName) + ", 0 B, not begun: all_reduce #16 (100 f32 sum, ring): connection lost");
}

TEST(OperationErrorTest, AnotherCollectiveOfTheCauseIsNotTheOperations) {
  ErrorInfo other;
  other.failed_rank = 2;
  other.collective = "broadcast";
  other.sequence = 16;
  MessageCall call;
  call.send = true;
  call.peer = Rank(1);
  call.tag = 7;
  call.bytes = 8;
  const absl::Status error = OperationError(WithErrorInfo(absl::AbortedError("x"), other), NameOf(call));
  EXPECT_THAT(error, StatusIs(Code::kAborted, "send to rank 1 with tag 7 (8 B): x"));
  EXPECT_EQ(ToText(GetErrorInfo(error)), "failed_rank=2 collective=send");
}

TEST(OperationErrorTest, ACallAfterTheEndSaysWhatEndedIt) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF32;
  request.count = 8;
  const absl::Status cause = WithFailedRank(absl::AbortedError("rank 2 died"), 2);
  EXPECT_THAT(NotStarted(cause, NameOf(request), NameOf(AllReduce17())),
              StatusIs(Code::kAborted,
                       "all_reduce (8 f32 sum): the communicator has ended, in all_reduce #17 (100 f32 "
                       "sum, ring): rank 2 died"));
  const absl::Status idle = NotStarted(cause, NameOf(CollectiveRequest()), OperationName());
  EXPECT_THAT(idle, StatusIs(Code::kAborted, "barrier: the communicator has ended: rank 2 died"));
  EXPECT_EQ(ToText(GetErrorInfo(idle)), "failed_rank=2 collective=barrier");
}

}  // namespace
}  // namespace lockstep

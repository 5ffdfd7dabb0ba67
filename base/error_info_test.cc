#include "base/error_info.h"

#include "absl/status/status.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

ErrorInfo Everything() {
  ErrorInfo info;
  info.failed_rank = 0;
  info.parameter = 160;
  info.collective = "all_reduce";
  info.sequence = 17;
  info.bucket = 3;
  return info;
}

TEST(ErrorInfoTest, TravelsWithTheStatusAndThroughAnnotations) {
  const absl::Status status = WithErrorInfo(absl::AbortedError("rank 0 died"), Everything());
  EXPECT_TRUE(GetErrorInfo(status) == Everything());
  EXPECT_TRUE(GetErrorInfo(Annotate(status, "splitting")) == Everything());
  const absl::Status reworded = Reworded(status, absl::StatusCode::kCancelled, "not launched");
  EXPECT_THAT(reworded, StatusIs(absl::StatusCode::kCancelled, testing::Eq("not launched")));
  EXPECT_TRUE(GetErrorInfo(reworded) == Everything());
}

TEST(ErrorInfoTest, WhatIsKnownAlreadyStays) {
  ErrorInfo first;
  first.collective = "send";
  const absl::Status status = WithErrorInfo(WithErrorInfo(absl::AbortedError("x"), first), Everything());
  ErrorInfo both = Everything();
  both.collective = "send";
  both.sequence.reset();  // another collective's
  EXPECT_TRUE(GetErrorInfo(status) == both) << status;
}

TEST(ErrorInfoTest, NothingIsNoPayload) {
  EXPECT_TRUE(GetErrorInfo(absl::AbortedError("x")).empty());
  EXPECT_EQ(WithErrorInfo(absl::AbortedError("x"), ErrorInfo()), absl::AbortedError("x"));
  EXPECT_THAT(WithErrorInfo(absl::OkStatus(), Everything()), IsOk());
}

TEST(ErrorInfoTest, TextComesBackAndNonsenseIsNothing) {
  EXPECT_EQ(ToText(Everything()), "failed_rank=0 parameter=160 collective=all_reduce sequence=17 bucket=3");
  EXPECT_TRUE(ErrorInfoFromText(ToText(Everything())) == Everything());
  for (const char* text : {"", " ", "=", "failed_rank", "failed_rank=", "failed_rank=x sequence=-1", "colour=3"}) {
    EXPECT_TRUE(ErrorInfoFromText(text).empty()) << text;
  }
}

TEST(ErrorInfoTest, MessagesAreToldAnotherRankWithIt) {
  const absl::Status with = WithErrorInfo(absl::AbortedError("rank 0 died"), Everything());
  const absl::Status without = absl::AbortedError("rank 0 died");
  EXPECT_EQ(PackMessage(without), "rank 0 died");
  EXPECT_EQ(UnpackMessage(absl::StatusCode::kAborted, PackMessage(with)), with);
  EXPECT_EQ(UnpackMessage(absl::StatusCode::kAborted, PackMessage(without)), without);
}

}  // namespace
}  // namespace lockstep

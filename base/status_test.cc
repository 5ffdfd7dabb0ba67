#include "base/status.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/error_info.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Eq;
using testing::Gt;
using testing::HasSubstr;
using testing::Not;
using testing::Pointee;

TEST(StatusTest, AnnotateKeepsTheCodeAndPutsTheContextFirst) {
  EXPECT_THAT(Annotate(absl::AbortedError("peer died"), "allreduce #3"),
              StatusIs(absl::StatusCode::kAborted, Eq("allreduce #3: peer died")));
  EXPECT_THAT(Annotate(absl::OkStatus(), "allreduce #3"), IsOk());
}

TEST(StatusTest, ErrnoBecomesTheCodeThatTellsWhatToDo) {
  const struct {
    int error;
    absl::StatusCode code;
  } cases[] = {
      {ECONNREFUSED, absl::StatusCode::kUnavailable}, {ECONNRESET, absl::StatusCode::kUnavailable},
      {EHOSTUNREACH, absl::StatusCode::kUnavailable}, {ETIMEDOUT, absl::StatusCode::kDeadlineExceeded},
      {EADDRINUSE, absl::StatusCode::kAlreadyExists}, {ENOENT, absl::StatusCode::kNotFound},
      {EACCES, absl::StatusCode::kPermissionDenied},  {EPERM, absl::StatusCode::kPermissionDenied},
      {ENOMEM, absl::StatusCode::kResourceExhausted}, {EMFILE, absl::StatusCode::kResourceExhausted},
      {ENFILE, absl::StatusCode::kResourceExhausted}, {EINVAL, absl::StatusCode::kInternal},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ErrnoStatus(c.error, "connect"), StatusIs(c.code, HasSubstr("connect: "))) << c.error;
  }
  EXPECT_THAT(ErrnoStatus(ECONNREFUSED, "connect to 10.0.0.7:4411"),
              StatusIs(absl::StatusCode::kUnavailable, Eq("connect to 10.0.0.7:4411: Connection refused")));
}

TEST(StatusTest, WhatIsExhaustedIsNamed) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = std::min<rlim_t>(before.rlim_max, rlim_t{1} << 47);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_THAT(ErrnoStatus(ENOMEM, "mmap"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("RLIMIT_AS allows 140737488355328 bytes of address space, "),
                             Not(HasSubstr("RLIMIT_NOFILE")))));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(ErrnoStatus(ENOMEM, "mmap").message(), Not(HasSubstr("RLIMIT_NOFILE")));
  EXPECT_THAT(ErrnoStatus(EMFILE, "socket").message(), HasSubstr("RLIMIT_NOFILE allows "));
}

absl::Status ReturnIfError(absl::Status status, bool* went_on) {
  LOCKSTEP_RETURN_IF_ERROR(status);
  *went_on = true;
  return absl::OkStatus();
}

TEST(StatusTest, ReturnIfErrorReturnsOnlyErrors) {
  bool went_on = false;
  EXPECT_THAT(ReturnIfError(absl::NotFoundError("x"), &went_on), StatusIs(absl::StatusCode::kNotFound, Eq("x")));
  EXPECT_FALSE(went_on);
  EXPECT_THAT(ReturnIfError(absl::OkStatus(), &went_on), IsOk());
  EXPECT_TRUE(went_on);
}

absl::StatusOr<std::unique_ptr<int>> AddOne(absl::StatusOr<std::unique_ptr<int>> input) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<int> value, std::move(input));
  ++*value;
  return value;
}

TEST(StatusTest, AssignOrReturnMovesTheValueOrReturnsTheError) {
  EXPECT_THAT(AddOne(std::make_unique<int>(4)), IsOkAndHolds(Pointee(5)));
  EXPECT_THAT(AddOne(absl::NotFoundError("x")), StatusIs(absl::StatusCode::kNotFound, Eq("x")));
}

// ---- base/status_matchers.h

const absl::Status kNotFound = absl::NotFoundError("no key \"a\"");

TEST(StatusMatchersTest, IsOkTakesStatusAndStatusOr) {
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(absl::StatusOr<int>(1), IsOk());
  EXPECT_THAT(kNotFound, Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(kNotFound), Not(IsOk()));
}

TEST(StatusMatchersTest, IsOkAndHoldsTakesValuesAndMatchers) {
  EXPECT_THAT(absl::StatusOr<int>(4), IsOkAndHolds(4));
  EXPECT_THAT(absl::StatusOr<int>(4), IsOkAndHolds(Gt(3)));
  EXPECT_THAT(absl::StatusOr<int>(4), Not(IsOkAndHolds(5)));
  EXPECT_THAT(absl::StatusOr<int>(kNotFound), Not(IsOkAndHolds(testing::_)));
  EXPECT_THAT(absl::StatusOr<std::string>("text"), IsOkAndHolds("text"));
  EXPECT_THAT(absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(3)), IsOkAndHolds(Pointee(3)));
}

TEST(StatusMatchersTest, StatusIsComparesCodeAndMessage) {
  EXPECT_THAT(kNotFound, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(kNotFound, StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"a\"")));
  EXPECT_THAT(kNotFound, StatusIs(AnyOf(absl::StatusCode::kNotFound, absl::StatusCode::kAborted)));
  EXPECT_THAT(kNotFound, Not(StatusIs(absl::StatusCode::kAborted)));
  EXPECT_THAT(kNotFound, Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"b\""))));
  EXPECT_THAT(absl::StatusOr<int>(kNotFound), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no key")));
  EXPECT_THAT(absl::StatusOr<int>(1), Not(StatusIs(absl::StatusCode::kNotFound)));
  EXPECT_THAT(absl::OkStatus(), StatusIs(absl::StatusCode::kOk));
}

TEST(StatusMatchersTest, FailuresAreReadable) {
  EXPECT_EQ(testing::PrintToString(kNotFound), "NOT_FOUND: no key \"a\"");
  EXPECT_EQ(testing::PrintToString(absl::StatusOr<int>(kNotFound)), "NOT_FOUND: no key \"a\"");
  EXPECT_EQ(testing::PrintToString(absl::StatusOr<int>(7)), "OK: 7");
  EXPECT_THAT(testing::DescribeMatcher<absl::Status>(StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2"))),
              testing::AllOf(HasSubstr("ABORTED"), HasSubstr("rank 2")));
  EXPECT_THAT(testing::DescribeMatcher<absl::StatusOr<int>>(IsOkAndHolds(Gt(3))), HasSubstr("is > 3"));
}

TEST(StatusMatchersTest, AssertOkAndAssignMovesTheValue) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto value, absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(3)));
  EXPECT_EQ(*value, 3);
}

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
  // A text of somebody else's, in which the separator is.
  const absl::Status foreign = absl::AbortedError("failed_rank=3\x1e died");
  EXPECT_EQ(UnpackMessage(absl::StatusCode::kAborted, PackMessage(foreign)), foreign);
}

}  // namespace
}  // namespace lockstep

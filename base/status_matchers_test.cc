#include "base/status_matchers.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::AnyOf;
using testing::Gt;
using testing::HasSubstr;
using testing::Not;
using testing::Pointee;

template <typename Matcher, typename Value>
std::string Explanation(const Matcher& matcher, const Value& value) {
  testing::StringMatchResultListener listener;
  testing::ExplainMatchResult(matcher, value, &listener);
  return listener.str();
}

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
  EXPECT_THAT(Explanation(IsOkAndHolds(Pointee(4)), absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(3))),
              HasSubstr("3"));
}

TEST(StatusMatchersTest, AssertOkAndAssignMovesTheValue) {
  LOCKSTEP_ASSERT_OK(absl::OkStatus());
  LOCKSTEP_EXPECT_OK(absl::StatusOr<int>(1));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto value, absl::StatusOr<std::unique_ptr<int>>(std::make_unique<int>(3)));
  EXPECT_EQ(*value, 3);
}

}  // namespace
}  // namespace lockstep

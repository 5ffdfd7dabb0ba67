#include "reducer/pipeline/step_outcome.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using ::testing::Pair;

constexpr uint64_t kFirstTopic = 1000;

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> NotesOf(Communicator* communicator, uint64_t step) {
  return communicator->AwaitMessages(kFirstTopic + step, 1, Deadline::Now());
}

class StepOutcomeTest : public ::testing::Test {
 protected:
  StepOutcomeTest() : world_(2), outcome_(world_.communicator(0)), others_(world_.communicator(1)) {
    outcome_.set_first_topic(kFirstTopic);
    others_.set_first_topic(kFirstTopic);
    outcome_.Begin(1);
    others_.Begin(1);
  }

  LoopbackWorld world_;
  StepOutcome outcome_;
  StepOutcome others_;  // of rank 1
};

TEST_F(StepOutcomeTest, AFailureConcernsTheBucketsFromTheFirstOn) {
  outcome_.Fail(absl::OkStatus(), 0);
  EXPECT_FALSE(outcome_.MarksFailed(0)) << "no error is no failure";
  outcome_.Fail(absl::InternalError("it broke"), 2);
  EXPECT_FALSE(outcome_.MarksFailed(0));
  EXPECT_FALSE(outcome_.MarksFailed(1));
  EXPECT_FALSE(NotesOf(world_.communicator(1), 1).ok()) << "nothing is noted before a bucket carries it";
  EXPECT_TRUE(outcome_.MarksFailed(2));
  // Before the mark is sent the note is there, which the others look for once they see the mark.
  EXPECT_THAT(NotesOf(world_.communicator(1), 1), IsOkAndHolds(ElementsAre(Pair(Rank(0), "it broke"))));
  EXPECT_TRUE(outcome_.MarksFailed(3));
  EXPECT_FALSE(outcome_.MarksFailed(1));
}

// A later one may concern an earlier bucket: a hook that cannot be issued for bucket 3 ends its communicator, over which that of bucket 1
// may be under way.
TEST_F(StepOutcomeTest, TheFirstFailureIsToldForTheBucketsOfAll) {
  for (const size_t first : {1, 3}) {
    outcome_.Begin(first);
    outcome_.Fail(absl::InternalError("first"), first);
    outcome_.Fail(absl::InternalError("second"), 4 - first);
    EXPECT_FALSE(outcome_.MarksFailed(0));
    EXPECT_TRUE(outcome_.MarksFailed(1));
    EXPECT_TRUE(outcome_.MarksFailed(3));
    EXPECT_THAT(NotesOf(world_.communicator(0), first), IsOkAndHolds(ElementsAre(Pair(Rank(0), "first"))));
  }
}

TEST_F(StepOutcomeTest, AProvisionalFailureGivesWayUnlessItWasTold) {
  for (const bool told : {false, true}) {
    outcome_.Begin(told ? 2 : 3);
    outcome_.Fail(absl::InternalError("a mark"), 1, /*provisional=*/true);
    outcome_.Fail(absl::InternalError("another mark"), 1, /*provisional=*/true);
    EXPECT_EQ(told, told && outcome_.MarksFailed(1));
    outcome_.Fail(absl::InternalError("all of it"), 1);
    outcome_.Fail(absl::InternalError("more"), 1);
    EXPECT_TRUE(outcome_.MarksFailed(2));
    EXPECT_THAT(NotesOf(world_.communicator(0), told ? 2 : 3),
                IsOkAndHolds(ElementsAre(Pair(Rank(0), told ? "a mark" : "all of it"))));
  }
}

TEST_F(StepOutcomeTest, AllRanksConcludeTheSame) {
  outcome_.Fail(absl::InternalError("zero broke"), 0);
  others_.Fail(absl::DataLossError("one broke"), 0);
  EXPECT_TRUE(others_.MarksFailed(0));
  EXPECT_TRUE(outcome_.MarksFailed(0));
  const std::string text = "backward 1 is incomplete: rank 0: zero broke; rank 1: one broke. Try again.";
  EXPECT_THAT(outcome_.Conclude(2, "Try again."), StatusIs(absl::StatusCode::kFailedPrecondition, text));
  EXPECT_THAT(others_.Conclude(2, "Try again."), StatusIs(absl::StatusCode::kFailedPrecondition, text));
}

TEST_F(StepOutcomeTest, WhatTheFailureIsAboutTravelsBesideItsText) {
  others_.Fail(WithParameter(absl::InvalidArgumentError("parameter 3 is wrong"), 3), 0);
  EXPECT_TRUE(others_.MarksFailed(0));
  const absl::Status concluded = outcome_.Conclude(1, "More.");
  EXPECT_THAT(concluded, StatusIs(absl::StatusCode::kFailedPrecondition,
                                  "backward 1 is incomplete: rank 1: parameter 3 is wrong. More."));
  EXPECT_EQ(GetErrorInfo(concluded).failed_rank, 1);
  EXPECT_EQ(GetErrorInfo(concluded).parameter, 3);
}

TEST_F(StepOutcomeTest, AFailureThatCameTooLateIsThisRanksOwn) {
  outcome_.Fail(absl::InternalError("too late"), 0);
  EXPECT_THAT(outcome_.Conclude(0, "unused"), StatusIs(absl::StatusCode::kInternal, "too late"));
  LOCKSTEP_EXPECT_OK(others_.Conclude(0, "unused"));
}

TEST_F(StepOutcomeTest, TheCommunicatorsFailureComesBeforeAll) {
  outcome_.Fail(absl::InternalError("mine"), 0);
  outcome_.FailCommunication(absl::OkStatus());
  outcome_.FailCommunication(absl::AbortedError("the first"));
  outcome_.FailCommunication(absl::UnavailableError("the second"));
  // No notes are waited for: nobody may be there to leave them.
  EXPECT_THAT(outcome_.Conclude(1, "unused"), StatusIs(absl::StatusCode::kAborted, "the first"));
}

TEST_F(StepOutcomeTest, EveryStepStartsAnewAndHasATopicOfItsOwn) {
  outcome_.Fail(absl::InternalError("in step one"), 1);
  outcome_.FailCommunication(absl::AbortedError("in step one"));
  EXPECT_TRUE(outcome_.MarksFailed(1));
  outcome_.Begin(2);
  EXPECT_FALSE(outcome_.MarksFailed(1));
  LOCKSTEP_EXPECT_OK(outcome_.Conclude(0, "unused"));
  outcome_.Fail(absl::InternalError("in step two"), 0);
  EXPECT_TRUE(outcome_.MarksFailed(0));
  EXPECT_THAT(NotesOf(world_.communicator(1), 2), IsOkAndHolds(ElementsAre(Pair(Rank(0), "in step two"))));
  EXPECT_THAT(outcome_.Conclude(1, "More."),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("backward 2 is incomplete: rank 0: in step")));
}

}  // namespace
}  // namespace lockstep

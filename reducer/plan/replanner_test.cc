#include "reducer/plan/replanner.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/log_testing.h"
#include "reducer/plan/plan_testing.h"
#include "tests/noting_communicator.h"

namespace lockstep::testing {
namespace {

constexpr uint64_t kFirstTopic = 5000;

bool AnyFits(const BucketPlan&) { return true; }

PlanRules Caps(size_t cap) {
  PlanRules rules;
  rules.caps_bytes = {cap};
  return rules;
}

const Order kUp = {0, 1, 2, 3, 4, 5, 6, 7};
const Order kDown = {7, 6, 5, 4, 3, 2, 1, 0};

// Two ranks' replanners, driven by one thread.
class ReplannerTest : public ::testing::Test {
 protected:
  void Create(std::vector<Parameter> table, const PlanRules& rules) {
    replanners_.clear();
    table_ = std::move(table);
    rules_ = rules;
    for (int rank = 0; rank < 2; ++rank) {
      replanners_.push_back(std::make_unique<Replanner>(world_.communicator(rank), kFirstTopic, table_, &rules_));
    }
  }

  Replanner& of(int rank) { return *replanners_[rank]; }
  void RequestOnAll() {
    for (const auto& replanner : replanners_) replanner->Request();
  }
  // A request, and the ranks' orders.
  void Plan(const Order& order_0, const Order& order_1) {
    RequestOnAll();
    of(0).Record(order_0, AnyFits);
    of(1).Record(order_1, AnyFits);
  }
  void Plan(const Order& order) { Plan(order, order); }
  // EXPECTs that of the plan that either rank takes.
  void ExpectTaken(const ::testing::Matcher<const BucketGroups&>& groups) {
    for (const auto& replanner : replanners_) {
      const absl::StatusOr<BucketGroups> taken = replanner->Take();
      LOCKSTEP_ASSERT_OK(taken);
      EXPECT_THAT(*taken, groups);
    }
  }
  // EXPECTs that rank 1 finds out about that disorder as it takes its plan. Its warnings.
  std::vector<std::string> TakeInDisorder(double disorder) {
    const LogLines warnings;
    LOCKSTEP_EXPECT_OK(of(1).Take());
    EXPECT_DOUBLE_EQ(of(1).disorder(), disorder);
    return warnings.lines();
  }
  LoopbackWorld world_{2};
  std::vector<Parameter> table_;
  PlanRules rules_;
  std::vector<std::unique_ptr<Replanner>> replanners_;  // behind what they borrow
};

// Before all others, which might use up the one warning.
TEST_F(ReplannerTest, ARankInAnotherOrderWarnsOnceAProcess) {
  Create(Vectors(8, 1), Caps(0));
  Plan(kUp, kDown);
  {
    const LogLines warnings;
    LOCKSTEP_EXPECT_OK(of(0).Take());
    EXPECT_EQ(of(0).disorder(), 0);
    EXPECT_THAT(warnings.lines(), IsEmpty());
  }
  const std::string where =
      absl::StrCat("where ", Describe(0, table_[0]), " comes next on rank 0, ", Describe(7, table_[7]), " does here");
  EXPECT_THAT(TakeInDisorder(1),
              ElementsAre(AllOf(HasSubstr("rank 1 computes its gradients in another order than rank 0"),
                                HasSubstr(where), HasSubstr("100 % of all pairs of parameters"))));
  // Another reducer of the process, which is no better.
  Create(Vectors(8, 1), Caps(0));
  Plan(kUp, kDown);
  EXPECT_THAT(TakeInDisorder(1), IsEmpty());
}

TEST_F(ReplannerTest, RankZerosOrderWins) {
  Create(Vectors(4, 1), Caps(8));
  // Rank 1 sees the end of the step first, and asks for the plan before there is one.
  RequestOnAll();
  of(1).Record({3, 2, 1, 0}, AnyFits);
  of(0).Record({1, 3, 0, 2}, AnyFits);
  for (const int rank : {0, 1}) EXPECT_TRUE(of(rank).requested());
  ExpectTaken(ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
  for (const int rank : {0, 1}) EXPECT_FALSE(of(rank).requested());
}

TEST_F(ReplannerTest, WhatDidNotComeIsTakenToComeLast) {
  std::vector<Parameter> table = Vectors(6, 1);
  table[4].ignored = true;
  PlanRules rules = Caps(0);
  rules.delayed = {5};
  rules.delayed_trigger = 0;
  Create(table, rules);
  Plan({1, 0});
  ExpectTaken(ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(3), ElementsAre(2)));
}

TEST_F(ReplannerTest, ARequestWhileOneIsOnItsWayIsThatOne) {
  Create(Vectors(2, 1), Caps(0));
  Plan({1, 0});
  RequestOnAll();
  ExpectTaken(ElementsAre(ElementsAre(1), ElementsAre(0)));
  for (const int rank : {0, 1}) EXPECT_FALSE(of(rank).requested());
  // Afterwards it is one of its own again.
  Plan({0, 1});
  ExpectTaken(ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST_F(ReplannerTest, APlanThatIsTooLongForANoteIsNone) {
  Create(Vectors(12000, 1), Caps(0));
  Plan(ExpectedOrder(table_, rules_));
  ExpectTaken(IsEmpty());
}

// Ranks that are threads without a board have no messages: none of them gets a plan.
TEST_F(ReplannerTest, WithoutMessagesBucketsStay) {
  class Mute : public NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t, int, Deadline) override {
      return absl::UnimplementedError("no messages here");
    }
  };
  MemoryMessageBoard board;
  Mute mute(world_.communicator(0), &board);
  Create(Vectors(2, 1), Caps(0));
  Replanner replanner(&mute, kFirstTopic, table_, &rules_);
  replanner.Request();
  replanner.Record({1, 0}, AnyFits);
  EXPECT_THAT(replanner.Take(), IsOkAndHolds(IsEmpty()));
}

TEST_F(ReplannerTest, ALittleDisorderIsNoWarning) {
  Create(Vectors(8, 1), Caps(0));
  Plan(kUp, {1, 0, 2, 3, 4, 5, 7, 6});
  EXPECT_THAT(TakeInDisorder(2.0 / 28), IsEmpty());
}

// Buckets are of one dtype, so that a plan follows no order to the letter: nobody can do better.
TEST_F(ReplannerTest, RanksInOneOrderDoNotWarnHoweverDTypesMix) {
  std::vector<Parameter> table = Vectors(9, 1);
  for (const size_t index : {0, 1, 2, 3, 8}) table[index].dtype = DType::kF16;
  Create(table, Caps(1 << 20));
  Plan({0, 1, 2, 3, 4, 5, 6, 7, 8});
  const LogLines warnings;
  ExpectTaken(ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3, 8)));
  for (const int rank : {0, 1}) EXPECT_EQ(of(rank).disorder(), 0);
  EXPECT_THAT(warnings.lines(), Each(Not(HasSubstr("another order"))));
}

TEST(Disorder, IsZeroForEqualAndOneForOppositeOrders) {
  EXPECT_EQ(Disorder(Order(), Order()), 0);
  EXPECT_EQ(Disorder(Order{5}, Order{5}), 0);
  EXPECT_EQ(Disorder(kUp, kUp), 0);
  EXPECT_EQ(Disorder(kUp, kDown), 1);
  EXPECT_EQ(Disorder(kDown, kUp), 1);
}

TEST(Disorder, IsTheShareOfPairsThatAreSwapped) {
  EXPECT_DOUBLE_EQ(Disorder(Order{3, 9, 5, 4}, Order{9, 3, 5, 4}), 1.0 / 6);
  EXPECT_DOUBLE_EQ(Disorder(Order{3, 9, 5, 4}, Order{4, 3, 9, 5}), 3.0 / 6);
  EXPECT_DOUBLE_EQ(Disorder(Order{3, 9, 5, 4}, Order{5, 4, 9, 3}), 5.0 / 6);
}

}  // namespace
}  // namespace lockstep::testing

#include "reducer/plan/replanner.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/log_testing.h"
#include "reducer/plan/plan_testing.h"

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
  void RecordOnAll(const Order& order) {
    for (const auto& replanner : replanners_) replanner->Record(order, AnyFits);
  }
  // EXPECTs that rank 1 holds a plan. It arrives on a thread of its own.
  void AwaitPlan() {
    const Deadline deadline = Deadline::AfterMs(20000);
    while (!of(1).held() && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(of(1).held());
  }
  // A request, the ranks' orders, and a plan on both.
  void Plan(const Order& order_0, const Order& order_1) {
    RequestOnAll();
    of(0).Record(order_0, AnyFits);
    of(1).Record(order_1, AnyFits);
    AwaitPlan();
  }
  void Plan(const Order& order) { Plan(order, order); }
  // EXPECTs that of the plan that either rank holds, which it takes.
  void ExpectTaken(const ::testing::Matcher<const BucketGroups&>& groups) {
    for (const auto& replanner : replanners_) EXPECT_THAT(replanner->Take(), groups);
  }
  // EXPECTs that rank 1 finds out about that disorder as it takes its plan. Its warnings.
  std::vector<std::string> TakeInDisorder(double disorder) {
    const LogLines warnings;
    of(1).Take();
    EXPECT_DOUBLE_EQ(of(1).disorder(), disorder);
    return warnings.lines();
  }
  bool Posted(uint64_t plan) {
    return world_.communicator(0)->AwaitMessages(kFirstTopic + plan, 1, Deadline::Now()).ok();
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
    of(0).Take();
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

TEST_F(ReplannerTest, DoesNothingUnasked) {
  Create(Vectors(3, 1), Caps(0));
  RecordOnAll({0, 1, 2});
  EXPECT_FALSE(of(0).held());
  EXPECT_FALSE(of(1).held());
  EXPECT_FALSE(Posted(0));
}

TEST_F(ReplannerTest, RankZerosOrderWins) {
  Create(Vectors(4, 1), Caps(8));
  RequestOnAll();
  EXPECT_FALSE(of(0).held());
  of(1).Record({3, 2, 1, 0}, AnyFits);
  EXPECT_FALSE(of(1).held()) << "rank 0 has not seen an order yet";
  of(0).Record({1, 3, 0, 2}, AnyFits);
  EXPECT_TRUE(of(0).held());
  AwaitPlan();
  ExpectTaken(ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
  for (const int rank : {0, 1}) EXPECT_FALSE(of(rank).held());
}

TEST_F(ReplannerTest, TheFirstOrderAfterTheRequestCounts) {
  Create(Vectors(2, 1), Caps(0));
  RequestOnAll();
  of(0).Record({1, 0}, AnyFits);
  of(0).Record({0, 1}, AnyFits);
  EXPECT_THAT(of(0).Take(), ElementsAre(ElementsAre(1), ElementsAre(0)));
}

TEST_F(ReplannerTest, WhatDidNotComeIsTakenToComeLast) {
  std::vector<Parameter> table = Vectors(6, 1);
  table[4].ignored = true;
  PlanRules rules = Caps(0);
  rules.delayed = {5};
  rules.delayed_trigger = 0;
  Create(table, rules);
  RequestOnAll();
  of(0).Record({1, 0}, AnyFits);
  EXPECT_THAT(of(0).Take(), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(3), ElementsAre(2)));
}

// Rank 0 holds its plan as soon as it has made it, the others later. A request in between must mean the same on all of
// them.
TEST_F(ReplannerTest, ARequestWhileOneIsOnItsWayIsThatOne) {
  Create(Vectors(2, 1), Caps(0));
  RequestOnAll();
  RecordOnAll({1, 0});
  // Rank 1 may hold the plan by now or not.
  RequestOnAll();
  AwaitPlan();
  RequestOnAll();
  ExpectTaken(ElementsAre(ElementsAre(1), ElementsAre(0)));
  RecordOnAll({0, 1});
  EXPECT_FALSE(of(0).held());
  EXPECT_FALSE(Posted(1));
  // Afterwards it is one of its own again.
  Plan({0, 1});
  ExpectTaken(ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST_F(ReplannerTest, APlanThatIsTooLongForANoteIsNone) {
  Create(Vectors(12000, 1), Caps(0));
  Plan(ExpectedOrder(table_, rules_));
  ExpectTaken(IsEmpty());
}

TEST_F(ReplannerTest, EndsWhileAPlanIsAwaited) {
  Create(Vectors(2, 1), Caps(0));
  RequestOnAll();
  replanners_.clear();
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

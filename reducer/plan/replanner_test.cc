#include "reducer/plan/replanner.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LoopbackWorld;
using ::testing::Not;

constexpr uint64_t kFirstTopic = 5000;

bool AnyFits(const BucketPlan&) { return true; }
bool NoneFits(const BucketPlan&) { return false; }

std::vector<Parameter> Table(const std::vector<DType>& dtypes) {
  std::vector<Parameter> table(dtypes.size());
  for (size_t i = 0; i < table.size(); ++i) {
    table[i].name = absl::StrCat("p", i);
    table[i].dtype = dtypes[i];
    table[i].shape = {1};
  }
  return table;
}

std::vector<Parameter> FloatTable(int count) { return Table(std::vector<DType>(count, DType::kF32)); }

PlanRules Caps(size_t cap) {
  PlanRules rules;
  rules.caps_bytes = {cap};
  return rules;
}

// Keeps warnings while it lives. One thread logs at a time here.
class Warnings {
 public:
  Warnings() {
    SetLogSink([](void* self, LogLevel, const char* line) { static_cast<Warnings*>(self)->lines_ += line; }, this);
  }
  ~Warnings() { SetLogSink(nullptr, nullptr); }
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

// Two ranks' replanners, driven by one thread.
class ReplannerTest : public ::testing::Test {
 protected:
  void Create(std::vector<Parameter> table, const PlanRules& rules) {
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
  // The plan arrives on a thread of its own.
  bool AwaitHeld(int rank) {
    const Deadline deadline = Deadline::AfterMs(20000);
    while (!of(rank).held() && !deadline.passed()) std::this_thread::yield();
    return of(rank).held();
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
  Create(FloatTable(8), Caps(0));
  RequestOnAll();
  of(0).Record({0, 1, 2, 3, 4, 5, 6, 7}, AnyFits);
  of(1).Record({7, 6, 5, 4, 3, 2, 1, 0}, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  {
    Warnings warnings;
    of(0).Take();
    EXPECT_EQ(of(0).disorder(), 0);
    EXPECT_EQ(warnings.lines(), "");
  }
  Warnings warnings;
  of(1).Take();
  EXPECT_EQ(of(1).disorder(), 1);
  EXPECT_THAT(warnings.lines(), HasSubstr("rank 1 computes its gradients in another order than rank 0"));
  EXPECT_THAT(warnings.lines(), HasSubstr(absl::StrCat("where ", Describe(0, table_[0]), " comes next on rank 0, ",
                                                       Describe(7, table_[7]), " does here")));
  EXPECT_THAT(warnings.lines(), HasSubstr("100 % of all pairs of parameters"));
  // Another reducer of the process, which is no better.
  replanners_.clear();
  Create(FloatTable(8), Caps(0));
  RequestOnAll();
  of(0).Record({0, 1, 2, 3, 4, 5, 6, 7}, AnyFits);
  of(1).Record({7, 6, 5, 4, 3, 2, 1, 0}, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  Warnings again;
  of(1).Take();
  EXPECT_EQ(of(1).disorder(), 1);
  EXPECT_EQ(again.lines(), "");
}

TEST_F(ReplannerTest, DoesNothingUnasked) {
  Create(FloatTable(3), Caps(0));
  for (const int rank : {0, 1}) of(rank).Record({0, 1, 2}, AnyFits);
  EXPECT_FALSE(of(0).held());
  EXPECT_FALSE(of(1).held());
  EXPECT_FALSE(Posted(0));
}

TEST_F(ReplannerTest, RankZerosOrderWins) {
  Create(FloatTable(4), Caps(8));
  RequestOnAll();
  EXPECT_FALSE(of(0).held());
  of(1).Record({3, 2, 1, 0}, AnyFits);
  EXPECT_FALSE(of(1).held()) << "rank 0 has not seen an order yet";
  of(0).Record({1, 3, 0, 2}, AnyFits);
  EXPECT_TRUE(of(0).held());
  ASSERT_TRUE(AwaitHeld(1));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2)));
    EXPECT_FALSE(of(rank).held());
  }
}

TEST_F(ReplannerTest, TheFirstOrderAfterTheRequestCounts) {
  Create(FloatTable(2), Caps(0));
  RequestOnAll();
  of(0).Record({1, 0}, AnyFits);
  of(0).Record({0, 1}, AnyFits);
  EXPECT_THAT(of(0).Take(), ElementsAre(ElementsAre(1), ElementsAre(0)));
}

TEST_F(ReplannerTest, WhatDidNotComeIsTakenToComeLast) {
  std::vector<Parameter> table = FloatTable(6);
  table[4].ignored = true;
  PlanRules rules = Caps(0);
  rules.delayed = {5};
  rules.delayed_trigger = 0;
  Create(table, rules);
  RequestOnAll();
  of(0).Record({1, 0}, AnyFits);
  EXPECT_THAT(of(0).Take(), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(3), ElementsAre(2)));
}

TEST_F(ReplannerTest, MayBeAskedAgain) {
  Create(FloatTable(3), Caps(0));
  const std::vector<std::vector<size_t>> orders = {{2, 1, 0}, {0, 1, 2}, {1, 0, 2}};
  for (const std::vector<size_t>& order : orders) {
    RequestOnAll();
    for (const int rank : {0, 1}) of(rank).Record(order, AnyFits);
    ASSERT_TRUE(AwaitHeld(1));
    for (const int rank : {0, 1}) {
      EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(order[0]), ElementsAre(order[1]), ElementsAre(order[2])));
    }
  }
}

// Rank 0 holds its plan as soon as it has made it, the others later. A request in between must mean the same on all of
// them.
TEST_F(ReplannerTest, ARequestWhileOneIsOnItsWayIsThatOne) {
  Create(FloatTable(2), Caps(0));
  RequestOnAll();
  for (const int rank : {0, 1}) of(rank).Record({1, 0}, AnyFits);
  // Rank 1 may hold the plan by now or not.
  RequestOnAll();
  ASSERT_TRUE(AwaitHeld(1));
  RequestOnAll();
  for (const int rank : {0, 1}) EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(1), ElementsAre(0)));
  for (const int rank : {0, 1}) of(rank).Record({0, 1}, AnyFits);
  EXPECT_FALSE(of(0).held());
  EXPECT_FALSE(Posted(1));
  // Afterwards it is one of its own again.
  RequestOnAll();
  for (const int rank : {0, 1}) of(rank).Record({0, 1}, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  for (const int rank : {0, 1}) EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

// That there is no plan is agreed on like a plan, so that the next request finds all ranks in the same state.
TEST_F(ReplannerTest, APlanThatDoesNotFitIsNone) {
  Create(FloatTable(2), Caps(0));
  RequestOnAll();
  for (const int rank : {0, 1}) of(rank).Record({0, 1}, NoneFits);
  ASSERT_TRUE(AwaitHeld(1));
  EXPECT_TRUE(of(0).held());
  for (const int rank : {0, 1}) EXPECT_THAT(of(rank).Take(), IsEmpty());
  RequestOnAll();
  for (const int rank : {0, 1}) of(rank).Record({0, 1}, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  for (const int rank : {0, 1}) EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST_F(ReplannerTest, APlanThatIsTooLongForANoteIsNone) {
  Create(FloatTable(12000), Caps(0));
  RequestOnAll();
  const std::vector<size_t> order = ExpectedOrder(table_, rules_);
  for (const int rank : {0, 1}) of(rank).Record(order, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  for (const int rank : {0, 1}) EXPECT_THAT(of(rank).Take(), IsEmpty());
}

TEST_F(ReplannerTest, EndsWhileAPlanIsAwaited) {
  Create(FloatTable(2), Caps(0));
  RequestOnAll();
  replanners_.clear();
}

TEST_F(ReplannerTest, ALittleDisorderIsNoWarning) {
  Create(FloatTable(8), Caps(0));
  RequestOnAll();
  of(0).Record({0, 1, 2, 3, 4, 5, 6, 7}, AnyFits);
  of(1).Record({1, 0, 2, 3, 4, 5, 7, 6}, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  Warnings warnings;
  of(1).Take();
  EXPECT_NEAR(of(1).disorder(), 2.0 / 28, 1e-12);
  EXPECT_EQ(warnings.lines(), "");
}

// Buckets are of one dtype, so that a plan follows no order to the letter: nobody can do better.
TEST_F(ReplannerTest, RanksInOneOrderDoNotWarnHoweverDTypesMix) {
  std::vector<DType> dtypes(9, DType::kF16);
  std::vector<size_t> order(9);
  std::iota(order.begin(), order.end(), 0);
  for (const size_t index : {4, 5, 6, 7}) dtypes[index] = DType::kF32;
  Create(Table(dtypes), Caps(1 << 20));
  RequestOnAll();
  for (const int rank : {0, 1}) of(rank).Record(order, AnyFits);
  ASSERT_TRUE(AwaitHeld(1));
  Warnings warnings;
  for (const int rank : {0, 1}) {
    EXPECT_THAT(of(rank).Take(), ElementsAre(ElementsAre(4, 5, 6, 7), ElementsAre(0, 1, 2, 3, 8)));
    EXPECT_EQ(of(rank).disorder(), 0);
  }
  EXPECT_THAT(warnings.lines(), Not(HasSubstr("another order")));
}

TEST(Disorder, IsZeroForEqualAndOneForOppositeOrders) {
  const std::vector<size_t> none;
  const std::vector<size_t> one = {5};
  EXPECT_EQ(Disorder(none, none), 0);
  EXPECT_EQ(Disorder(one, one), 0);
  const std::vector<size_t> up = {2, 5, 9};
  const std::vector<size_t> down = {9, 5, 2};
  EXPECT_EQ(Disorder(up, up), 0);
  EXPECT_EQ(Disorder(up, down), 1);
  EXPECT_EQ(Disorder(down, up), 1);
}

TEST(Disorder, IsTheShareOfPairsThatAreSwapped) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (size_t size = 2; size < 60; ++size) {
    std::vector<size_t> a(size);
    std::iota(a.begin(), a.end(), size_t{3});
    std::shuffle(a.begin(), a.end(), random);
    std::vector<size_t> b = a;
    std::shuffle(b.begin(), b.end(), random);
    std::vector<size_t> place(size + 3);
    for (size_t i = 0; i < size; ++i) place[b[i]] = i;
    size_t swapped = 0;
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = i + 1; j < size; ++j) swapped += place[a[i]] > place[a[j]];
    }
    const double pairs = static_cast<double>(size * (size - 1)) / 2;
    EXPECT_DOUBLE_EQ(Disorder(a, b), static_cast<double>(swapped) / pairs) << size;
  }
}

}  // namespace
}  // namespace lockstep

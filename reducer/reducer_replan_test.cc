// Buckets that are planned anew: all ranks go over at the same step, whatever they do meanwhile, and no gradient is
// lost or wrong.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_replan_testing.h"
#include "reducer/reducer_testing.h"
#include "reducer/reducer_view_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MixedTable;
using ::testing::Not;
using testing::Replica;
using testing::ShortTimeout;
using testing::StepUntil;
using testing::Vectors;
using testing::Zigzag;

using Order = std::vector<size_t>;

ReducerOptions Caps(std::vector<size_t> caps) {
  ReducerOptions options;
  options.bucket_caps_bytes = std::move(caps);
  return options;
}

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

// The plan of each step on each rank.
class History {
 public:
  explicit History(int size) : plans_(size) {}

  void Add(int rank, const Reducer& reducer) {
    plans_[rank].push_back(absl::StrCat("plan ", reducer.plan_version(), "\n", ToString(reducer.plan())));
  }
  void ExpectTheSameOnAllRanks() const { EXPECT_THAT(plans_, Each(plans_[0])); }

 private:
  std::vector<std::vector<std::string>> plans_;
};

// Keeps what is logged while it lives. Thread-safe.
class LogLines {
 public:
  LogLines() {
    SetLogSink([](void* self, LogLevel, const char* line) { static_cast<LogLines*>(self)->Add(line); }, this);
  }
  ~LogLines() { SetLogSink(nullptr, nullptr); }
  std::string text() {
    MutexLock lock(&mu_);
    return text_;
  }

 private:
  void Add(const char* line) {
    MutexLock lock(&mu_);
    absl::StrAppend(&text_, line, "\n");
  }

  Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

class Replan : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, Replan, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(Replan, AllRanksGoOverAtTheSameStepAndAveragesAreRightAroundIt) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const Order order = Zigzag(replica.table().size());
    const auto reducer = Create(communicator, replica.table(), Caps({64, 500}));
    const std::string first = ToString(reducer->plan());
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, order);
      replica.ExpectAverages(size(), {step});
      history.Add(rank, *reducer);
      EXPECT_EQ(ToString(reducer->plan()) == first, reducer->plan_version() == 1);
      return status;
    };
    LOCKSTEP_EXPECT_OK(run(0));
    EXPECT_EQ(reducer->plan_version(), 1) << "nobody has seen an order before";
    int step = StepUntil(*reducer, 2, 1, run);
    EXPECT_EQ(GroupsOf(reducer->plan()), GroupByCaps(replica.table(), {{64, 500}}, order));
    // Once is enough.
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
    EXPECT_EQ(reducer->plan_version(), 2);
  });
  history.ExpectTheSameOnAllRanks();
}

TEST(ReplanOrders, RankZerosWinsAndItIsNotWarned) {
  LogLines lines;
  LoopbackWorld world(3, {}, ShortTimeout());
  History history(3);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(8, 10), rank);
    const Order orders[] = {{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {0, 1, 2, 3, 5, 4, 6, 7}};
    const auto reducer = Create(communicator, replica.table(), Caps({80}));
    StepUntil(*reducer, 2, 0, [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, orders[rank]);
      replica.ExpectAverages(3, {step});
      history.Add(rank, *reducer);
      return status;
    });
    EXPECT_THAT(GroupsOf(reducer->plan()),
                ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  });
  history.ExpectTheSameOnAllRanks();
  // Rank 1, once a process (reducer/plan/replanner_test.cc).
  EXPECT_THAT(lines.text(), AllOf(Not(HasSubstr("rank 0 computes")), Not(HasSubstr("rank 2 computes"))));
}

TEST_P(Replan, MayBeRequestedAgainAndAgain) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const size_t count = replica.table().size();
    Order order = Zigzag(count);
    const auto reducer = Create(communicator, replica.table(), Caps({64, 500}));
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, order);
      replica.ExpectAverages(size(), {step});
      history.Add(rank, *reducer);
      return status;
    };
    int step = 0;
    for (int64_t version = 2; version < 6; ++version) {
      step = StepUntil(*reducer, version, step, run);
      EXPECT_EQ(GroupsOf(reducer->plan()), GroupByCaps(replica.table(), {{64, 500}}, order));
      std::rotate(order.begin(), order.begin() + 3, order.end());
      LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
    }
  });
  history.ExpectTheSameOnAllRanks();
}

// A request at any moment, so also while some ranks hold a plan and others do not yet.
TEST_P(Replan, MayBeRequestedBeforeEveryStep) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(5, 10), rank);
    Order order = replica.order();
    const auto reducer = Create(communicator, replica.table(), Caps({40}));
    StepUntil(*reducer, 20, 0, [&](int step) {
      LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
      std::rotate(order.begin(), order.begin() + 2, order.end());
      const absl::Status status = replica.RunStep(*reducer, step, order);
      replica.ExpectAverages(size(), {step});
      history.Add(rank, *reducer);
      return status;
    });
  });
  history.ExpectTheSameOnAllRanks();
}

TEST_P(Replan, HappensOnRequestOnlyWhereItIsOff) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(4, 10), communicator.rank().value());
    ReducerOptions options = Caps({40});
    options.replan = false;
    const auto reducer = Create(communicator, replica.table(), options);
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, {0, 1, 2, 3});
      replica.ExpectAverages(size(), {step});
      return status;
    };
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(run(step));
    EXPECT_EQ(reducer->plan_version(), 1);
    LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
    StepUntil(*reducer, 2, 50, run);
    EXPECT_THAT(GroupsOf(reducer->plan()), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  });
}

// In every step another parameter is unused, by all ranks: its gradient stays as it is, whichever plan is in use.
TEST_P(Replan, GoesOnWithParametersThatAreUnusedNowAndThen) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(6, 10), rank);
    ReducerOptions options = Caps({80});
    options.find_unused = true;
    const auto reducer = Create(communicator, replica.table(), options);
    const auto run = [&](int step) {
      const size_t unused = step % 6;
      Order order = Zigzag(6);
      order.erase(std::find(order.begin(), order.end(), unused));
      const absl::Status status = replica.RunStep(*reducer, step, order);
      for (const size_t index : order) replica.ExpectAverage(index, size(), {step});
      replica.ExpectLocal(unused, step);
      history.Add(rank, *reducer);
      return status;
    };
    int step = StepUntil(*reducer, 2, 0, run);
    // What did not come in the first step, parameter 0, is taken to come last.
    EXPECT_THAT(GroupsOf(reducer->plan()), ElementsAre(ElementsAre(2, 4), ElementsAre(5, 3), ElementsAre(1, 0)));
    for (const int end = step + 12; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
  history.ExpectTheSameOnAllRanks();
}

// Parameter 2 is shared and marked twice, parameter 0 never.
TEST_P(Replan, GoesOnWithAStaticGraph) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(5, 10), rank);
    ReducerOptions options = Caps({40});
    options.static_graph = true;
    const auto reducer = Create(communicator, replica.table(), options);
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, {2, 1, 4, 2, 3});
      for (const size_t index : {1, 2, 3, 4}) replica.ExpectAverage(index, size(), {step});
      replica.ExpectLocal(0, step);
      history.Add(rank, *reducer);
      return status;
    };
    int step = StepUntil(*reducer, 2, 0, run);
    EXPECT_THAT(GroupsOf(reducer->plan()),
                ElementsAre(ElementsAre(1), ElementsAre(4), ElementsAre(2), ElementsAre(3), ElementsAre(0)));
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
  history.ExpectTheSameOnAllRanks();
}

TEST_P(Replan, GoesOnWhereBucketsTakeTurns) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(7, 100), rank);
    ReducerOptions options = Caps({400});
    options.buckets_in_memory_max = 2;
    const auto reducer = Create(communicator, replica.table(), options);
    const Order order = Zigzag(7);
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, order);
      replica.ExpectAverages(size(), {step});
      history.Add(rank, *reducer);
      return status;
    };
    int step = StepUntil(*reducer, 2, 0, run);
    EXPECT_EQ(GroupsOf(reducer->plan()), GroupByCaps(replica.table(), {{400}}, order));
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
  history.ExpectTheSameOnAllRanks();
}

// Large and small buckets take turns with a large and a small piece of memory. An order by which two large ones would
// be there at once has no plan; the next request has.
TEST_P(Replan, APlanThatNeedsMoreMemoryIsNotTaken) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  History history(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    std::vector<Parameter> table;
    for (const int64_t elements : {10, 1000, 10, 1000}) {
      table.push_back(testing::MakeParameter(absl::StrCat("p", table.size()), DType::kF32, {elements}));
    }
    Replica replica(table, rank);
    ReducerOptions options = Caps({0});
    options.buckets_in_memory_max = 2;
    const auto reducer = Create(communicator, table, options);
    Order order = {3, 1, 2, 0};
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, order);
      replica.ExpectAverages(size(), {step});
      history.Add(rank, *reducer);
      EXPECT_NE(GroupsOf(reducer->plan())[1], Order({1})) << "two large ones next to each other";
      // Heard only once the first one is over.
      LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
      order = {1, 0, 3, 2};
      return status;
    };
    StepUntil(*reducer, 2, 0, run);
    EXPECT_THAT(GroupsOf(reducer->plan()), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(3), ElementsAre(2)));
  });
  history.ExpectTheSameOnAllRanks();
}

// A window of two backwards, the first without sync: the plan changes between them.
TEST_P(Replan, InTheMiddleOfAWindowLosesNothing) {
  for (const bool views : {false, true}) {
    LoopbackWorld world(size(), {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Replica replica(MixedTable(), communicator.rank().value());
      ReducerOptions options = Caps({64, 500});
      options.gradient_as_bucket_view = views;
      const auto reducer = Create(communicator, replica.table(), options);
      const Order order = Zigzag(replica.table().size());
      const auto mark = [&] { views ? testing::MarkViews(*reducer, order) : replica.MarkAll(*reducer, order); };
      LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
      StepUntil(*reducer, 2, 0, [&](int step) {
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
        replica.Compute(2 * step);
        if (views) testing::ToViews(replica, *reducer);
        mark();
        LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
        const int64_t version = reducer->plan_version();

        LOCKSTEP_RETURN_IF_ERROR(reducer->BeginBackward({}));
        if (views) testing::FromViews(*reducer, replica);  // wherever they are now
        replica.Accumulate(2 * step + 1);
        if (views) testing::ToViews(replica, *reducer);
        mark();
        LOCKSTEP_RETURN_IF_ERROR(reducer->EndBackward(nullptr));
        if (views) testing::FromViews(*reducer, replica);
        replica.ExpectAverages(size(), {2 * step, 2 * step + 1});
        EXPECT_LE(reducer->plan_version() - version, 1);
        return absl::OkStatus();
      });
    });
  }
}

// In find_unused a gradient of a backward without sync counts although it is not marked again: also from the place to
// which the new plan has moved it, and to that place where only the average is to go there.
TEST_P(Replan, MovesGradientsThatTheWindowStillHas) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(5, 33), communicator.rank().value());
    ReducerOptions options = Caps({0});
    options.find_unused = true;
    options.gradient_as_bucket_view = true;
    const auto reducer = Create(communicator, replica.table(), options);
    LOCKSTEP_EXPECT_OK(reducer->RequestReplan());
    StepUntil(*reducer, 2, 0, [&](int step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
      replica.Compute(step);
      testing::ToViews(replica, *reducer);
      testing::MarkViews(*reducer, {3, 4});
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(2, replica.gradient(2), testing::ViewOf(*reducer, 2), nullptr));
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      LOCKSTEP_RETURN_IF_ERROR(reducer->BeginBackward({}));
      const std::vector<float> other(33, 1000.0F);
      testing::CopyAnywhere(testing::ViewOf(*reducer, 2).data(), other.data(), testing::ViewOf(*reducer, 2).bytes());
      testing::MarkViews(*reducer, {0, 1});
      LOCKSTEP_RETURN_IF_ERROR(reducer->EndBackward(nullptr));
      testing::FromViews(*reducer, replica);
      replica.ExpectAverages(size(), {step});
      return absl::OkStatus();
    });
    EXPECT_THAT(GroupsOf(reducer->plan()),
                ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(4), ElementsAre(3), ElementsAre(2)));
  });
}

// A rank's optimizer fails too late for the others to hear of it. That is its own affair, and the plan everybody's.
TEST(ReplanFailures, OfOneRankAloneDoNotKeepItBehind) {
  LoopbackWorld world(2, {}, ShortTimeout());
  History history(2);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, 10), rank);
    ReducerOptions options = Caps({40});
    options.optimizer = [rank](const ReducedBucket& bucket) {
      const bool fails = rank == 1 && bucket.index + 1 == bucket.count;
      return fails ? absl::InternalError("it broke") : absl::OkStatus();
    };
    const auto reducer = Create(communicator, replica.table(), options);
    const auto run = [&](int step) {
      const absl::Status status = replica.RunStep(*reducer, step, {0, 1, 2, 3});
      if (rank == 1) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("it broke")));
      } else {
        LOCKSTEP_EXPECT_OK(status);
      }
      replica.ExpectAverages(2, {step});
      history.Add(rank, *reducer);
      return communicator.status();
    };
    const int step = StepUntil(*reducer, 2, 0, run);
    LOCKSTEP_EXPECT_OK(run(step));
  });
  history.ExpectTheSameOnAllRanks();
}

}  // namespace
}  // namespace lockstep

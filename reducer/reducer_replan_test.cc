// Buckets that are planned anew: all ranks go over at the same step, whatever they do meanwhile, and no gradient is
// lost or wrong.

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/log_testing.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

// A worker that notes the plan of each of its steps.
class PlannedWorker : public Worker {
 public:
  PlannedWorker(Communicator& communicator, const std::vector<Parameter>& table, const ReducerOptions& options,
                std::vector<std::string>* history)
      : Worker(communicator, table, options), history_(*history) {}

  // A step in which those are marked and then have averages. Its status.
  absl::Status Run(int step, const Order& order, const Order& averaged) {
    const absl::Status status = Step(step, order);
    Worker::ExpectAverages(averaged, step);
    history_.push_back(absl::StrCat("plan ", reducer().plan_version(), "\n", ToString(plan())));
    return status;
  }
  absl::Status Run(int step, const Order& order) { return Run(step, order, Worker::order()); }
  // As testing::StepUntil does.
  int Until(int64_t version, int step, const std::function<absl::Status(int step)>& run) {
    return StepUntil(reducer(), version, step, run);
  }

 private:
  std::vector<std::string>& history_;
};

// EXPECTs that each step had the same plan on all ranks.
void RunPlanned(int size, const std::vector<Parameter>& table, const ReducerOptions& options,
                const std::function<void(PlannedWorker&)>& body) {
  std::vector<std::vector<std::string>> histories(size);
  RunWorld(size, [&](Communicator& communicator) {
    PlannedWorker worker(communicator, table, options, &histories[communicator.rank().value()]);
    body(worker);
  });
  EXPECT_THAT(histories, Each(histories[0]));
}

class Replan : public RanksTest {};

INSTANTIATE_TEST_SUITE_P(Ranks, Replan, ::testing::Values(1, 2, 3), RanksTest::NameOf);

TEST_P(Replan, AllRanksGoOverAtTheSameStepAndAveragesAreRightAroundIt) {
  RunPlanned(size(), MixedTable(), Caps({64, 500}), [](PlannedWorker& worker) {
    const Order order = Zigzag(worker.table().size());
    const std::string first = ToString(worker.plan());
    const auto run = [&](int step) {
      const absl::Status status = worker.Run(step, order);
      EXPECT_EQ(ToString(worker.plan()) == first, worker.reducer().plan_version() == 1);
      return status;
    };
    int step = worker.Until(2, 0, run);
    EXPECT_EQ(step, 4) << "the first step shows that all ranks ask for a plan, and the fourth is the first that has it";
    EXPECT_EQ(GroupsOf(worker.plan()), GroupByCaps(worker.table(), {{64, 500}}, order));
    // Once is enough.
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
    EXPECT_EQ(worker.reducer().plan_version(), 2);
  });
}

TEST(ReplanOrders, RankZerosWinsAndItIsNotWarned) {
  const LogLines lines;
  RunPlanned(3, Vectors(8, 10), Caps({80}), [](PlannedWorker& worker) {
    const Order orders[] = {{0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {0, 1, 2, 3, 5, 4, 6, 7}};
    worker.Until(2, 0, [&](int step) { return worker.Run(step, orders[worker.rank()]); });
    EXPECT_THAT(GroupsOf(worker.plan()),
                ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  });
  // Rank 1, once a process (reducer/plan/replanner_test.cc).
  EXPECT_THAT(lines.lines(), Each(AllOf(Not(HasSubstr("rank 0 computes")), Not(HasSubstr("rank 2 computes")))));
}

TEST_P(Replan, MayBeRequestedAgainAndAgain) {
  RunPlanned(size(), MixedTable(), Caps({64, 500}), [](PlannedWorker& worker) {
    Order order = Zigzag(worker.table().size());
    int step = 0;
    for (int64_t version = 2; version < 6; ++version) {
      step = worker.Until(version, step, [&](int s) { return worker.Run(s, order); });
      EXPECT_EQ(GroupsOf(worker.plan()), GroupByCaps(worker.table(), {{64, 500}}, order));
      std::rotate(order.begin(), order.begin() + 3, order.end());
      LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
    }
  });
}

// The ranks ask for it before different steps, rank 2 before step 2, which fails: step 3 shows all requests. Requests before then, and
// until step 6 has the plan, change nothing, and neither does the time that the plan takes to arrive.
TEST(ReplanRequests, TakeEffectAtTheThirdStepAfterTheOneThatShowsThemAll) {
  for (const int repetition : {1, 2, 3}) {
    ReducerOptions options = Caps({0});
    options.replan = false;
    RunPlanned(3, Vectors(4, 10), options, [&](PlannedWorker& worker) {
      for (int step = 0; step < 9; ++step) {
        if (step == worker.rank() || step == 4) {
          LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
        }
        Order order = worker.order();
        if (step != 3) std::reverse(order.begin(), order.end());
        if (step == 2) {
          EXPECT_THAT(worker.Step(step, worker.OrderWithout(1)), FailedPrecondition("no gradient came"));
        } else {
          LOCKSTEP_EXPECT_OK(worker.Run(step, order));
        }
        EXPECT_EQ(worker.reducer().plan_version(), step < 6 ? 1 : 2) << "step " << step << ", run " << repetition;
      }
      EXPECT_THAT(GroupsOf(worker.plan()), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
    });
  }
}

// A request at any moment, so also while a plan is on its way.
TEST_P(Replan, MayBeRequestedBeforeEveryStep) {
  RunPlanned(size(), Vectors(5, 10), Caps({40}), [](PlannedWorker& worker) {
    Order order = worker.order();
    worker.Until(20, 0, [&](int step) {
      LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
      std::rotate(order.begin(), order.begin() + 2, order.end());
      return worker.Run(step, order);
    });
  });
}

TEST_P(Replan, HappensOnRequestOnlyWhereItIsOff) {
  ReducerOptions options = Caps({40});
  options.replan = false;
  RunPlanned(size(), Vectors(4, 10), options, [](PlannedWorker& worker) {
    const auto run = [&](int step) { return worker.Run(step, worker.order()); };
    for (int step = 0; step < 50; ++step) LOCKSTEP_EXPECT_OK(run(step));
    EXPECT_EQ(worker.reducer().plan_version(), 1);
    LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
    worker.Until(2, 50, run);
    EXPECT_THAT(GroupsOf(worker.plan()), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  });
}

// In every step another parameter is unused, by all ranks: its gradient stays as it is, whichever plan is in use.
TEST_P(Replan, GoesOnWithParametersThatAreUnusedNowAndThen) {
  ReducerOptions options = Caps({80});
  options.find_unused = true;
  RunPlanned(size(), Vectors(6, 10), options, [](PlannedWorker& worker) {
    const auto run = [&](int step) {
      const size_t unused = step % 6;
      Order order = Zigzag(6);
      order.erase(std::find(order.begin(), order.end(), unused));
      const absl::Status status = worker.Run(step, order, order);
      worker.ExpectLocal(unused, step);
      return status;
    };
    int step = worker.Until(2, 0, run);
    // What did not come in the first step, parameter 0, is taken to come last.
    EXPECT_THAT(GroupsOf(worker.plan()), ElementsAre(ElementsAre(2, 4), ElementsAre(5, 3), ElementsAre(1, 0)));
    for (const int end = step + 12; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
}

// Parameter 2 is shared and marked twice, parameter 0 never.
TEST_P(Replan, GoesOnWithAStaticGraph) {
  ReducerOptions options = Caps({40});
  options.static_graph = true;
  RunPlanned(size(), Vectors(5, 10), options, [](PlannedWorker& worker) {
    const auto run = [&](int step) {
      const absl::Status status = worker.Run(step, {2, 1, 4, 2, 3}, {1, 2, 3, 4});
      // The first one cannot know when a gradient is final.
      EXPECT_EQ(worker.reducer().statistics().buckets_launched_in_backward > 0, step > 0);
      worker.ExpectLocal(0, step);
      return status;
    };
    int step = worker.Until(2, 0, run);
    EXPECT_THAT(GroupsOf(worker.plan()),
                ElementsAre(ElementsAre(1), ElementsAre(4), ElementsAre(2), ElementsAre(3), ElementsAre(0)));
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
}

TEST_P(Replan, GoesOnWhereBucketsTakeTurns) {
  ReducerOptions options = Caps({400});
  options.buckets_in_memory_max = 2;
  RunPlanned(size(), Vectors(7, 100), options, [](PlannedWorker& worker) {
    const Order order = Zigzag(7);
    const auto run = [&](int step) { return worker.Run(step, order); };
    int step = worker.Until(2, 0, run);
    EXPECT_EQ(GroupsOf(worker.plan()), GroupByCaps(worker.table(), {{400}}, order));
    for (const int end = step + 5; step < end; ++step) LOCKSTEP_EXPECT_OK(run(step));
  });
}

// Large and small buckets take turns with a large and a small piece of memory. An order by which two large ones would
// be there at once has no plan; the next request has.
TEST_P(Replan, APlanThatNeedsMoreMemoryIsNotTaken) {
  ReducerOptions options = Caps({0});
  options.buckets_in_memory_max = 2;
  options.copy_gradients = true;
  RunPlanned(size(), VectorsOf({10, 1000, 10, 1000}), options, [](PlannedWorker& worker) {
    Order order = {3, 1, 2, 0};
    worker.Until(2, 0, [&](int step) {
      const absl::Status status = worker.Run(step, order);
      EXPECT_NE(GroupsOf(worker.plan())[1], Order({1})) << "two large ones next to each other";
      // Heard only once the first one is over.
      LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
      order = {1, 0, 3, 2};
      return status;
    });
    EXPECT_THAT(GroupsOf(worker.plan()), ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(3), ElementsAre(2)));
  });
}

// A window of two backwards, the first without sync: the plan changes between them.
TEST_P(Replan, InTheMiddleOfAWindowLosesNothing) {
  for (const bool views : {false, true}) {
    ReducerOptions options = Caps({64, 500});
    options.gradient_as_bucket_view = views;
    RunWorkers(size(), MixedTable(), options, [&](Worker& worker) {
      const Order order = Zigzag(worker.table().size());
      // The backward that has begun, over the replica's gradients.
      const auto finish = [&] {
        if (views) worker.ToViews();
        views ? worker.MarkViews(order) : worker.MarkAll(order);
        return worker.End();
      };
      LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
      StepUntil(worker.reducer(), 2, 0, [&](int step) {
        LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
        worker.Compute(2 * step);
        LOCKSTEP_EXPECT_OK(finish());
        const int64_t version = worker.reducer().plan_version();

        LOCKSTEP_RETURN_IF_ERROR(worker.Begin());
        if (views) worker.FromViews();  // wherever they are now
        worker.Accumulate(2 * step + 1);
        LOCKSTEP_RETURN_IF_ERROR(finish());
        if (views) worker.FromViews();
        worker.ExpectAveragesOf({2 * step, 2 * step + 1});
        EXPECT_LE(worker.reducer().plan_version() - version, 1);
        return absl::OkStatus();
      });
    });
  }
}

// In find_unused a gradient of a backward without sync counts although it is not marked again: also from the place to
// which the new plan has moved it, and to that place where only the average is to go there.
TEST_P(Replan, MovesGradientsThatTheWindowStillHas) {
  ReducerOptions options = Caps({0});
  options.find_unused = true;
  options.gradient_as_bucket_view = true;
  RunWorkers(size(), Vectors(5, 33), options, [](Worker& worker) {
    LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
    StepUntil(worker.reducer(), 2, 0, [&](int step) {
      LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
      worker.Compute(step);
      worker.ToViews();
      worker.MarkViews({3, 4});
      LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(2, worker.gradient(2), worker.View(2), nullptr));
      LOCKSTEP_EXPECT_OK(worker.End());
      LOCKSTEP_RETURN_IF_ERROR(worker.Begin());
      Fill(worker.View(2), 1000);
      worker.MarkViews({0, 1});
      LOCKSTEP_RETURN_IF_ERROR(worker.End());
      worker.FromViews();
      worker.ExpectAverages(step);
      return absl::OkStatus();
    });
    EXPECT_THAT(GroupsOf(worker.plan()),
                ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(4), ElementsAre(3), ElementsAre(2)));
  });
}

// A rank's optimizer fails too late for the others to hear of it. That is its own affair, and the plan everybody's.
TEST(ReplanFailures, OfOneRankAloneDoNotKeepItBehind) {
  std::vector<std::vector<std::string>> histories(2);
  RunWorld(2, [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options = Caps({40});
    options.optimizer = [rank](const ReducedBucket& bucket) {
      const bool fails = rank == 1 && bucket.index + 1 == bucket.count;
      return fails ? absl::InternalError("it broke") : absl::OkStatus();
    };
    PlannedWorker worker(communicator, Vectors(4, 10), options, &histories[rank]);
    const auto run = [&](int step) {
      const absl::Status status = worker.Run(step, worker.order());
      if (rank == 1) {
        EXPECT_THAT(status, Fails(absl::StatusCode::kInternal, "it broke"));
      } else {
        LOCKSTEP_EXPECT_OK(status);
      }
      return communicator.status();
    };
    const int step = worker.Until(2, 0, run);
    LOCKSTEP_EXPECT_OK(run(step));
  });
  EXPECT_THAT(histories, Each(histories[0]));
}

}  // namespace
}  // namespace lockstep::testing

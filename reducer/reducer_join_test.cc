// Ranks that run out of inputs at different times, and reducers that go over to another communicator.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

constexpr int kElements = 16;

ReducerOptions Uneven() {
  ReducerOptions options = Caps({0});
  options.uneven_inputs = true;
  return options;
}

// A worker that trains by plain gradient descent: weights plus averages.
class Model : public Worker {
 public:
  using Worker::Worker;

  // Every gradient is `value`. The step's status.
  absl::Status Step(float value) {
    LOCKSTEP_RETURN_IF_ERROR(Begin());
    for (size_t index = table().size(); index-- > 0;) {
      Fill(gradient(index), value);
      LOCKSTEP_RETURN_IF_ERROR(Mark(index));
    }
    LOCKSTEP_RETURN_IF_ERROR(End());
    const std::vector<float> average = Floats(gradient(0));
    for (int i = 0; i < kElements; ++i) weights[i] += average[i];
    return absl::OkStatus();
  }
  absl::Status Join() { return reducer().Join({VectorView(weights.data(), DType::kF32, kElements)}); }

  ReachableVector<float> weights = ReachableVector<float>(kElements, 0.0F);
};

// Leaves buckets as they are.
class FailsOnce : public CommHook {
 public:
  std::string name() const override { return "fails once"; }
  absl::Status Issue(HookBucket& bucket, Stream&) override {
    return bucket.step > 1 ? absl::OkStatus() : absl::DataLossError("it failed");
  }
};

void RunModels(int size, int parameters, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Vectors(parameters, kElements), options, body);
}

TEST(Joined, CannotBeWhileAnotherBackwardHasTheCommunicator) {
  RunModels(2, 1, Uneven(), [](Model& model) {
    Model other(model.communicator(), model.table(), Uneven());
    LOCKSTEP_EXPECT_OK(other.Begin());
    EXPECT_THAT(model.Join(), FailedPrecondition("join: the backward of another reducer is under way"));
    other.MarkAll(other.order());
    LOCKSTEP_EXPECT_OK(other.End());
    LOCKSTEP_EXPECT_OK(model.Join());
  });
}

TEST(Joined, AreAsManyAsTheirDTypeCounts) {
  RunWorld(9, [](Communicator& communicator) {
    ReducerOptions options = Uneven();
    options.copy_gradients = true;
    EXPECT_THAT(Reducer::Create(&communicator, {MakeParameter("w", DType::kF8E5M2, {4})}, options).status(),
                InvalidArgument("buckets in f8e5m2 count at most 8 ranks, and there are 9"));
  });
}

// Rank r has 2 + r steps of gradients 12 each: of four ranks 4, 3, 2 and 1 take part in the steps.
TEST(Joined, AverageOverTheInitialOrTheLiveRanksAndHaveTheLastModelInTheEnd) {
  for (const bool live : {false, true}) {
    const float averages[] = {12, 12, live ? 12.0F : 9.0F, live ? 12.0F : 6.0F, live ? 12.0F : 3.0F};
    ReducerOptions options = Uneven();
    options.divide_by_live = live;
    RunModels(4, 3, options, [&](Model& model) {
      // Twice, as in two epochs.
      for (int epoch = 0; epoch < 2; ++epoch) {
        model.weights.assign(kElements, 0);
        float expected = 0;
        for (int step = 0; step < 5; ++step) {
          expected += averages[step];
          if (step >= 2 + model.rank()) continue;
          LOCKSTEP_EXPECT_OK(model.Step(12));
          EXPECT_THAT(model.weights, Each(::testing::FloatNear(expected, 1e-4F)));
        }
        LOCKSTEP_EXPECT_OK(model.Join());
        EXPECT_THAT(model.weights, Each(::testing::FloatNear(expected, 1e-4F)));
      }
    });
  }
}

TEST(Joined, IsAnErrorOnAllRanksWhereAnEarlyEndIsThrown) {
  ReducerOptions options = Uneven();
  options.throw_on_early_end = true;
  RunModels(3, 2, options, [](Model& model) {
    LOCKSTEP_EXPECT_OK(model.Step(3));
    if (model.rank() == 1) {
      EXPECT_THAT(model.Join(), FailedPrecondition("rank 1 has exhausted its inputs before others"));
    } else {
      EXPECT_THAT(model.Step(3), FailedPrecondition("1 rank(s) have exhausted their inputs"));
    }
    // All of them may go on.
    LOCKSTEP_EXPECT_OK(model.Step(3));
  });
}

// Rank 0 joins at once. The other then takes longer than an operation may, which is long enough for all else they do.
TEST(Joined, WaitsLongerThanAnOperationMay) {
  TransportCommunicatorOptions short_deadline;
  short_deadline.timeout = std::chrono::milliseconds(2000);
  for (const bool hooked : {false, true}) {
    LoopbackWorld world(2, {}, short_deadline);
    world.Run([&](Communicator& communicator) {
      ReducerOptions options = Uneven();
      if (hooked) options.hook = std::make_shared<FailsOnce>();
      Model model(communicator, Vectors(2, kElements), options);
      if (model.rank() == 1) {
        if (hooked) {
          EXPECT_THAT(model.Step(9), FailedPrecondition("it failed"));  // the next one has another hook's communicator
        }
        // As if it were computing.
        std::this_thread::sleep_for(short_deadline.timeout + std::chrono::milliseconds(500));
        LOCKSTEP_EXPECT_OK(model.Step(4));
      }
      LOCKSTEP_EXPECT_OK(model.Join());
      EXPECT_THAT(model.weights, Each(hooked ? 4 : 2));
    });
  }
}

TEST(Joined, StaysThroughAStepThatFails) {
  RunModels(2, 2, Uneven(), [](Model& model) {
    if (model.rank() == 0) {
      EXPECT_THAT(model.BackwardOf({}), FailedPrecondition("no gradient came"));
      LOCKSTEP_EXPECT_OK(model.Step(8));
    }
    LOCKSTEP_EXPECT_OK(model.Join());
    EXPECT_THAT(model.weights, Each(4));
    // The step that failed is not counted, and a rank that has joined knows what the others used.
    for (const ParameterUse& use : model.reducer().parameter_use()) {
      EXPECT_EQ(use.by_any_rank, 1);
      EXPECT_EQ(use.by_this_rank, model.rank() == 0 ? 1 : 0);
    }
  });
}

TEST(ChangeOfCommunicator, AfterAFailureGoesOnAmongTheSurvivors) {
  for (const bool views : {false, true}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    LoopbackWorld smaller(2, {}, ShortTimeout());
    ReducerOptions options = Caps({800});
    options.gradient_as_bucket_view = views;
    const auto workers = MakeWorkers(world, Vectors(4, 100), options);
    std::vector<std::string> plans(3);
    RunRanks(3, [&](int rank) {
      Worker& worker = *workers[rank];
      // The survivors are to keep the plan that was agreed on, which with views is asked for.
      LOCKSTEP_EXPECT_OK(worker.reducer().RequestReplan());
      StepUntil(worker.reducer(), 2, 0, [&](int step) { return worker.Step(step); });
      plans[rank] = worker.reducer().ExportPlan();
      LOCKSTEP_EXPECT_OK(worker.Begin());
      worker.MarkAll({3, 2});
    });
    // In the middle of that backward, on all of them.
    world.network().Disconnect(Rank(2));
    RunRanks(2, [&](int rank) {
      Reducer& reducer = workers[rank]->reducer();
      EXPECT_THAT(workers[rank]->End(), Aborted());
      LOCKSTEP_ASSERT_OK(reducer.ChangeCommunicator(smaller.communicator(rank)));
      EXPECT_EQ(reducer.ExportPlan(), plans[rank]);
      const auto run = [&](int step) {
        const absl::Status status = workers[rank]->Step(step);
        workers[rank]->Replica::ExpectAverages(2, {step});
        return status;
      };
      for (int step = 7; step < 9; ++step) LOCKSTEP_EXPECT_OK(run(step));
      // A plan may be asked for again.
      LOCKSTEP_EXPECT_OK(reducer.RequestReplan());
      const int64_t version = reducer.plan_version();
      StepUntil(reducer, version + 1, 9, run);
      EXPECT_EQ(reducer.plan_version(), version + 1);
    });
  }
}

TEST(ChangeOfCommunicator, TakesInARankThatIsNew) {
  LoopbackWorld world(2, {}, ShortTimeout());
  LoopbackWorld larger(3, {}, ShortTimeout());
  const ReducerOptions options = Caps({800});
  auto workers = MakeWorkers(world, Vectors(4, 100), options);
  workers.resize(3);
  std::vector<std::string> plans(2);
  RunRanks(2, [&](int rank) {
    Worker& worker = *workers[rank];
    StepUntil(worker.reducer(), 2, 0, [&](int step) { return worker.Step(step, {0, 2, 1, 3}); });
    plans[rank] = worker.reducer().ExportPlan();
  });
  EXPECT_EQ(plans[0], plans[1]);
  larger.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    if (rank == 2) {
      ReducerOptions imported = options;
      imported.plan = plans[0];
      workers[rank] = std::make_unique<Worker>(communicator, Vectors(4, 100), imported);
    } else {
      LOCKSTEP_ASSERT_OK(workers[rank]->reducer().ChangeCommunicator(&communicator));
    }
    EXPECT_EQ(workers[rank]->reducer().ExportPlan(), plans[0]);
    LOCKSTEP_EXPECT_OK(workers[rank]->Step(5));
    workers[rank]->Replica::ExpectAverages(3, {5});
  });
}

TEST(ChangeOfCommunicator, BetweenBackwardsIsNoEndOfWhatAccumulates) {
  LoopbackWorld again(2, {}, ShortTimeout());
  ReducerOptions options = Caps({0});
  options.find_unused = true;
  RunWorkers(2, Vectors(2, kElements), options, [&](Worker& worker) {
    worker.Compute(1);
    LOCKSTEP_EXPECT_OK(worker.BackwardOf(worker.order(), {/*sync=*/false}));
    LOCKSTEP_ASSERT_OK(worker.reducer().ChangeCommunicator(again.communicator(worker.rank())));
    Worker other(worker.communicator(), worker.table());
    LOCKSTEP_EXPECT_OK(other.Begin());
    EXPECT_THAT(other.reducer().MarkReady(0, worker.gradient(1), nullptr), InvalidArgument("shares memory"));
    LOCKSTEP_EXPECT_OK(worker.BackwardOf({}));
    worker.ExpectAveragesOf({1});
  });
}

// A view whose parameter is unused, or whose gradient was marked elsewhere, in a bucket that was not launched.
TEST(ChangeOfCommunicator, InAStepLeavesViewsAsTheyWere) {
  LoopbackWorld again(2, {}, ShortTimeout());
  ReducerOptions options = Caps({1 << 20});
  options.gradient_as_bucket_view = options.find_unused = true;
  RunWorkers(2, Vectors(4, kElements), options, [&](Worker& worker) {
    for (const size_t index : {0, 1, 2, 3}) Fill(worker.View(index), static_cast<float>(index + 1));
    const std::vector<size_t> unused = {0};
    BackwardOptions backward;
    backward.unused = unused;
    LOCKSTEP_EXPECT_OK(worker.Begin(backward));
    worker.MarkAll({1}, nullptr);
    worker.MarkAll({2}, &worker.stream());
    LOCKSTEP_ASSERT_OK(worker.reducer().ChangeCommunicator(again.communicator(worker.rank())));
    for (const size_t index : {0, 1, 2, 3}) EXPECT_THAT(Floats(worker.View(index)), Each(index + 1));
  });
}

TEST(ChangeOfCommunicator, KeepsWhatHasAccumulatedInBucketViews) {
  LoopbackWorld again(2, {}, ShortTimeout());
  ReducerOptions options;
  options.gradient_as_bucket_view = true;
  RunWorkers(2, Vectors(2, kElements), options, [&](Worker& worker) {
    for (const size_t index : {0, 1}) Fill(worker.View(index), static_cast<float>(worker.rank() + 1));
    LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
    worker.MarkViews({1, 0});
    LOCKSTEP_EXPECT_OK(worker.End());
    LOCKSTEP_ASSERT_OK(worker.reducer().ChangeCommunicator(again.communicator(worker.rank())));
    EXPECT_EQ(worker.reducer().plan_version(), 2);
    LOCKSTEP_EXPECT_OK(worker.Begin());
    for (const size_t index : {1, 0}) {
      std::vector<float> values = Floats(worker.View(index));
      for (float& value : values) value += 10;
      CopyAnywhere(worker.View(index).data(), values.data(), worker.View(index).bytes());
      worker.MarkViews({index});
    }
    LOCKSTEP_EXPECT_OK(worker.End());
    EXPECT_EQ(Floats(worker.View(0)).front(), 11.5F);
    EXPECT_EQ(Floats(worker.View(1)).back(), 11.5F);
  });
}

}  // namespace
}  // namespace lockstep::testing

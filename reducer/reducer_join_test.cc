// Ranks that run out of inputs at different times, and reducers that go over to another communicator.

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/reducer.h"
#include "reducer/reducer_replan_testing.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::StepUntil;
using testing::Vectors;
using testing::VectorView;

constexpr int kElements = 16;

ReducerOptions Uneven() {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.uneven_inputs = true;
  return options;
}

// A model that is trained by plain gradient descent: weights minus averages.
struct Model {
  explicit Model(int parameters) : weights(kElements, 0.0F), memory(parameters, ReachableVector<float>(kElements)) {}

  TensorView gradient(size_t index) { return VectorView(memory[index].data(), DType::kF32, kElements); }
  std::vector<TensorView> all() { return {VectorView(weights.data(), DType::kF32, kElements)}; }

  // Every gradient is `value`. The step's status.
  absl::Status Step(Reducer& reducer, float value) {
    BackwardOptions options;
    LOCKSTEP_RETURN_IF_ERROR(reducer.BeginBackward(options));
    for (size_t index = memory.size(); index-- > 0;) {
      memory[index].assign(kElements, value);
      LOCKSTEP_RETURN_IF_ERROR(reducer.MarkReady(index, gradient(index), nullptr));
    }
    LOCKSTEP_RETURN_IF_ERROR(reducer.EndBackward(nullptr));
    for (int i = 0; i < kElements; ++i) weights[i] += memory[0][i];
    return absl::OkStatus();
  }

  ReachableVector<float> weights;
  std::vector<ReachableVector<float>> memory;
};

struct Way {
  const char* name;
  Average average;
  bool live;
  bool views;
};

class Join : public ::testing::TestWithParam<Way> {};

INSTANTIATE_TEST_SUITE_P(Reducer, Join,
                         ::testing::Values(Way{"Initial", Average::kBefore, false, false},
                                           Way{"Live", Average::kBefore, true, false},
                                           Way{"LiveAfter", Average::kAfter, true, false},
                                           Way{"LiveInCollective", Average::kInCollective, true, false},
                                           Way{"LiveInViews", Average::kBefore, true, true}),
                         [](const auto& info) { return info.param.name; });

// Rank r has 2 + r steps of gradients 12 each: of four ranks 4, 3, 2 and 1 take part in the steps.
TEST_P(Join, AveragesOverTheInitialOrTheLiveRanksAndEndsWithTheLastModelEverywhere) {
  constexpr int kRanks = 4;
  const std::vector<float> averages =
      GetParam().live ? std::vector<float>{12, 12, 12, 12, 12} : std::vector<float>{12, 12, 9, 6, 3};
  LoopbackWorld world(kRanks, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options = Uneven();
    options.average = GetParam().average;
    options.divide_by_live = GetParam().live;
    options.gradient_as_bucket_view = GetParam().views;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(3, kElements), options));
    // Twice, as in two epochs.
    for (int epoch = 0; epoch < 2; ++epoch) {
      Model model(3);
      float expected = 0;
      for (int step = 0; step < 2 + rank; ++step) {
        LOCKSTEP_EXPECT_OK(model.Step(*reducer, 12));
        expected += averages[step];
        EXPECT_THAT(model.weights, Each(::testing::FloatNear(expected, 1e-4F)));
      }
      LOCKSTEP_EXPECT_OK(reducer->Join(model.all()));
      float last = 0;
      for (const float average : averages) last += average;
      EXPECT_THAT(model.weights, Each(::testing::FloatNear(last, 1e-4F)));
    }
  });
}

TEST(Joined, MayBeAllRanksAtOnce) {
  for (const bool throws : {false, true}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      ReducerOptions options = Uneven();
      options.throw_on_early_end = throws;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), options));
      Model model(2);
      LOCKSTEP_EXPECT_OK(model.Step(*reducer, 3));
      LOCKSTEP_EXPECT_OK(reducer->Join(model.all()));
      EXPECT_THAT(model.weights, Each(3));
    });
  }
}

TEST(Joined, IsAnErrorOnAllRanksWhereAnEarlyEndIsThrown) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options = Uneven();
    options.throw_on_early_end = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), options));
    Model model(2);
    LOCKSTEP_EXPECT_OK(model.Step(*reducer, 3));
    if (rank == 1) {
      EXPECT_THAT(reducer->Join(model.all()), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                       HasSubstr("rank 1 has exhausted its inputs before others")));
    } else {
      EXPECT_THAT(model.Step(*reducer, 3),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("1 rank(s) have exhausted their inputs")));
    }
    // All of them may go on.
    LOCKSTEP_EXPECT_OK(model.Step(*reducer, 3));
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
      if (hooked) options.hook = MakeNoopHook();
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), options));
      Model model(2);
      if (communicator.rank().value() == 1) {
        // As if it were computing.
        std::this_thread::sleep_for(short_deadline.timeout + std::chrono::milliseconds(500));
        LOCKSTEP_EXPECT_OK(model.Step(*reducer, 4));
      }
      LOCKSTEP_EXPECT_OK(reducer->Join(model.all()));
      EXPECT_THAT(model.weights, Each(hooked ? 4 : 2));
    });
  }
}

TEST(Joined, TakesPartInAHook) {
  class Doubling : public CommHook {
   public:
    std::string name() const override { return "doubling"; }
    absl::Status Issue(HookBucket& bucket, Stream& stream) override {
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.device = bucket.communicator->device();
      request.dtype = bucket.dtype;
      request.count = bucket.elements;
      request.input = bucket.data;
      request.output = bucket.data;
      return bucket.communicator->Enqueue(request, &stream,
                                          [&bucket](const absl::Status& status) { bucket.status = status; });
    }
  };
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    ReducerOptions options = Uneven();
    options.hook = std::make_shared<Doubling>();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), options));
    Model model(2);
    for (int step = 0; step <= communicator.rank().value(); ++step) {
      LOCKSTEP_EXPECT_OK(model.Step(*reducer, 5));
      EXPECT_THAT(model.memory[0], Each(5 * (3 - step)));
    }
    LOCKSTEP_EXPECT_OK(reducer->Join(model.all()));
    EXPECT_THAT(model.weights, Each(15 + 10 + 5));
  });
}

TEST(Joined, StaysThroughAStepThatFails) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), Uneven()));
    Model model(2);
    if (communicator.rank().value() == 0) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      EXPECT_THAT(reducer->EndBackward(nullptr),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no gradient came")));
      LOCKSTEP_EXPECT_OK(model.Step(*reducer, 8));
    }
    LOCKSTEP_EXPECT_OK(reducer->Join(model.all()));
    EXPECT_THAT(model.weights, Each(4));
    // The step that failed is not counted, and a rank that has joined knows what the others used.
    for (const ParameterUse& use : reducer->parameter_use()) {
      EXPECT_EQ(use.by_any_rank, 1);
      EXPECT_EQ(use.by_this_rank, communicator.rank().value() == 0 ? 1 : 0);
    }
  });
}

TEST(Joined, NeedsAReducerThatWasMadeForIt) {
  LoopbackWorld world(1, {}, ShortTimeout());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                Reducer::Create(world.communicator(0), Vectors(2, kElements), ReducerOptions()));
  EXPECT_THAT(reducer->Join({}), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("set uneven_inputs")));
}

TEST(ChangeOfCommunicator, AfterAFailureGoesOnAmongTheSurvivors) {
  for (const bool views : {false, true}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    LoopbackWorld smaller(2, {}, ShortTimeout());
    std::vector<std::unique_ptr<Replica>> replicas(3);
    std::vector<std::unique_ptr<Reducer>> reducers(3);
    std::vector<std::string> plans(3);
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      replicas[rank] = std::make_unique<Replica>(Vectors(4, 100), rank);
      ReducerOptions options;
      options.bucket_caps_bytes = {800};
      options.gradient_as_bucket_view = views;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank], Reducer::Create(&communicator, replicas[rank]->table(), options));
      for (int step = 0; step < 6; ++step) LOCKSTEP_EXPECT_OK(replicas[rank]->RunStep(*reducers[rank], step));
      plans[rank] = reducers[rank]->ExportPlan();
      LOCKSTEP_EXPECT_OK(reducers[rank]->BeginBackward({}));
      replicas[rank]->MarkAll(*reducers[rank], {3, 2});
    });
    // In the middle of that backward, on all of them.
    world.network().Disconnect(Rank(2));
    testing::RunRanks(2, [&](int rank) {
      Reducer& reducer = *reducers[rank];
      Replica& replica = *replicas[rank];
      EXPECT_THAT(reducer.EndBackward(nullptr), StatusIs(absl::StatusCode::kAborted));
      LOCKSTEP_ASSERT_OK(reducer.ChangeCommunicator(smaller.communicator(rank)));
      EXPECT_EQ(reducer.ExportPlan(), plans[rank]);
      for (int step = 7; step < 9; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(reducer, step));
        replica.ExpectAverages(2, {step});
      }
      // A plan may be asked for again.
      LOCKSTEP_EXPECT_OK(reducer.RequestReplan());
      const int64_t version = reducer.plan_version();
      StepUntil(reducer, version + 1, 9, [&](int step) {
        const absl::Status status = replica.RunStep(reducer, step);
        replica.ExpectAverages(2, {step});
        return status;
      });
      EXPECT_EQ(reducer.plan_version(), version + 1);
    });
  }
}

TEST(ChangeOfCommunicator, TakesInARankThatIsNew) {
  LoopbackWorld world(2, {}, ShortTimeout());
  LoopbackWorld larger(3, {}, ShortTimeout());
  std::vector<std::string> plans(2);
  std::vector<std::unique_ptr<Reducer>> reducers(3);
  ReducerOptions options;
  options.bucket_caps_bytes = {800};
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, 100), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank], Reducer::Create(&communicator, replica.table(), options));
    StepUntil(*reducers[rank], 2, 0, [&](int step) { return replica.RunStep(*reducers[rank], step, {0, 2, 1, 3}); });
    plans[rank] = reducers[rank]->ExportPlan();
  });
  EXPECT_EQ(plans[0], plans[1]);
  larger.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, 100), rank);
    if (rank == 2) {
      ReducerOptions imported = options;
      imported.plan = plans[0];
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank], Reducer::Create(&communicator, replica.table(), imported));
    } else {
      LOCKSTEP_ASSERT_OK(reducers[rank]->ChangeCommunicator(&communicator));
    }
    EXPECT_EQ(reducers[rank]->ExportPlan(), plans[0]);
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducers[rank], 5));
    replica.ExpectAverages(3, {5});
  });
}

TEST(ChangeOfCommunicator, KeepsWhatHasAccumulatedInBucketViews) {
  LoopbackWorld world(2, {}, ShortTimeout());
  LoopbackWorld again(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    ReducerOptions options;
    options.gradient_as_bucket_view = true;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(2, kElements), options));
    const auto view = [&](size_t index) { return reducer->GradientView(index).value(); };
    const auto set = [&](size_t index, const std::vector<float>& values) {
      testing::CopyAnywhere(view(index).data(), values.data(), view(index).bytes());
    };
    BackwardOptions accumulating;
    accumulating.sync = false;
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(accumulating));
    for (const size_t index : {1, 0}) {
      set(index, std::vector<float>(kElements, static_cast<float>(rank + 1)));
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, view(index), nullptr));
    }
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    LOCKSTEP_ASSERT_OK(reducer->ChangeCommunicator(again.communicator(rank)));
    EXPECT_EQ(reducer->plan_version(), 2);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : {1, 0}) {
      std::vector<float> values = testing::Floats(view(index));
      for (float& value : values) value += 10;
      set(index, values);
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, view(index), nullptr));
    }
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    EXPECT_EQ(testing::Floats(view(0)).front(), 11.5F);
    EXPECT_EQ(testing::Floats(view(1)).back(), 11.5F);
  });
}

}  // namespace
}  // namespace lockstep

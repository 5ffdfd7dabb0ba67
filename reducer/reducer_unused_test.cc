// Parameters that are not used in every backward: said by the embedder, found out at the end, recorded by a static graph, or kept for a
// trigger.

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

constexpr int kElements = 20;

ReducerOptions FindUnused(size_t cap_bytes = 0) {
  ReducerOptions options;
  options.bucket_caps_bytes = {cap_bytes};
  options.find_unused = true;
  return options;
}

float First(const TensorView& view) { return testing::Floats(view)[0]; }

// One float each, of which tests know the sum.
class Model {
 public:
  explicit Model(int parameters) : memory_(parameters, ReachableVector<float>(kElements)) {}

  TensorView gradient(size_t index) { return testing::VectorView(memory_[index].data(), DType::kF32, kElements); }
  void Set(size_t index, float value) { memory_[index].assign(kElements, value); }
  void ExpectAll(size_t index, float value) const {
    EXPECT_THAT(memory_[index], ::testing::Each(value)) << "parameter " << index;
  }
  absl::Status Mark(Reducer& reducer, size_t index, float value) {
    Set(index, value);
    return reducer.MarkReady(index, gradient(index), nullptr);
  }

 private:
  std::vector<ReachableVector<float>> memory_;
};

std::vector<int64_t> UseByAnyRank(const Reducer& reducer) {
  std::vector<int64_t> counts;
  for (const ParameterUse& use : reducer.parameter_use()) counts.push_back(use.by_any_rank);
  return counts;
}
std::vector<int64_t> UseByThisRank(const Reducer& reducer) {
  std::vector<int64_t> counts;
  for (const ParameterUse& use : reducer.parameter_use()) counts.push_back(use.by_this_rank);
  return counts;
}

class Unused : public ::testing::TestWithParam<bool> {
 protected:
  // Whether the embedder says which they are.
  bool said() const { return GetParam(); }
  BackwardOptions Of(const std::vector<size_t>& unused) const {
    BackwardOptions options;
    if (said()) options.unused = unused;
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Reducer, Unused, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "SaidBeforehand" : "FoundOut"; });

// Of four parameters in one bucket or one each: 0 is used by all, 1 by rank 0 alone, 2 by nobody, 3 by all but rank 0.
TEST_P(Unused, AverageOverAllRanksAndStayUntouchedWhereNobodyUsesThem) {
  for (const size_t cap : {size_t{0}, size_t{1} << 20}) {
    for (const Average average : {Average::kBefore, Average::kAfter, Average::kInCollective}) {
      LoopbackWorld world(4, {}, ShortTimeout());
      world.Run([&](Communicator& communicator) {
        const int rank = communicator.rank().value();
        ReducerOptions options = FindUnused(cap);
        options.average = average;
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                      Reducer::Create(&communicator, Vectors(4, kElements), options));
        Model model(4);
        for (int step = 0; step < 3; ++step) {
          for (const size_t index : {0, 1, 2, 3}) model.Set(index, -1);
          LOCKSTEP_EXPECT_OK(reducer->BeginBackward(rank == 0 ? Of({2, 3}) : Of({1, 2})));
          LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 8));
          LOCKSTEP_EXPECT_OK(model.Mark(*reducer, rank == 0 ? 1 : 3, 4));
          LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));

          model.ExpectAll(0, 8);
          model.ExpectAll(1, rank == 0 ? 1 : -1);
          model.ExpectAll(2, -1);
          model.ExpectAll(3, rank == 0 ? -1 : 3);
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView of_one, reducer->AverageOf(1));
          EXPECT_EQ(First(of_one), 1);
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView of_two, reducer->AverageOf(2));
          EXPECT_EQ(of_two.data(), nullptr);
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView of_three, reducer->AverageOf(3));
          EXPECT_EQ(First(of_three), 3);
        }
        using ::testing::ElementsAre;
        EXPECT_THAT(UseByAnyRank(*reducer), ElementsAre(3, 3, 0, 3));
        EXPECT_THAT(UseByThisRank(*reducer), rank == 0 ? ElementsAre(3, 3, 0, 0) : ElementsAre(3, 0, 0, 3));
      });
    }
  }
}

TEST_P(Unused, MayBeAllOfARank) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(3, kElements), FindUnused()));
    Model model(3);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(rank == 1 ? Of({0, 1, 2}) : Of({})));
    if (rank == 0) {
      for (const size_t index : {2, 1, 0}) LOCKSTEP_EXPECT_OK(model.Mark(*reducer, index, 6));
    }
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    for (const size_t index : {0, 1, 2}) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView average, reducer->AverageOf(index));
      EXPECT_EQ(First(average), 3);
    }
    // And of all ranks.
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(Of({0, 1, 2})));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView average, reducer->AverageOf(1));
    EXPECT_EQ(average.data(), nullptr);
  });
}

// Parameter 1 is used in the first of three backwards only, which is not synchronised.
TEST_P(Unused, AreUsedWhenTheyWereInABackwardWithoutSync) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(2, kElements), FindUnused()));
    Model model(2);
    BackwardOptions accumulating = Of({});
    accumulating.sync = false;
    const auto run_window = [&](float one) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward(accumulating));
      LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 1));
      if (one != 0) {
        LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 1, one));
      }
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward(Of({1})));
      LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 2));
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    };
    run_window(communicator.rank().value() == 0 ? 10.0F : 0.0F);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView used, reducer->AverageOf(1));
    EXPECT_EQ(First(used), 5);
    // The window is over: nobody has used it in the next one.
    run_window(0);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView unused, reducer->AverageOf(1));
    EXPECT_EQ(unused.data(), nullptr);
    EXPECT_THAT(UseByAnyRank(*reducer), ::testing::ElementsAre(2, 1));
    EXPECT_THAT(UseByThisRank(*reducer), ::testing::ElementsAre(2, communicator.rank().value() == 0 ? 1 : 0));
  });
}

TEST(UnusedSaidBeforehand, ThatCameAfterAllIsAnErrorOnAllRanks) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(2, kElements), FindUnused()));
    Model model(2);
    const std::vector<size_t> unused = {1};
    BackwardOptions options;
    options.unused = unused;
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(options));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 1));
    if (rank == 1) {
      EXPECT_THAT(model.Mark(*reducer, 1, 1),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'p1' (f32[20]) was said to be unused")));
    }
    EXPECT_THAT(reducer->EndBackward(nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("rank 1: a mark was refused (mark_ready: parameter 1 'p1' (f32[20]) was said to be "
                                   "unused in this backward)")));
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 1));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
  });
}

TEST(UnusedSaidBeforehand, WithAMissingOneBesideIsAnError) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(3, kElements), FindUnused()));
    Model model(3);
    const std::vector<size_t> unused = {2};
    BackwardOptions options;
    options.unused = unused;
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(options));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 1));
    EXPECT_THAT(reducer->EndBackward(nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no gradient came for parameter 1 'p1'")));
  });
}

TEST(UnusedSaidBeforehand, NeedsFindUnusedAndParametersThatThereAre) {
  LoopbackWorld world(1, {}, ShortTimeout());
  Communicator* const communicator = world.communicator(0);
  const std::vector<size_t> unused = {7};
  BackwardOptions backward;
  backward.unused = unused;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto reducer, Reducer::Create(communicator, Vectors(2, kElements), FindUnused()));
  EXPECT_THAT(reducer->BeginBackward(backward),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter 7 is out of range: there are 2")));
  ReducerOptions options;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducer, Reducer::Create(communicator, Vectors(2, kElements), options));
  EXPECT_THAT(reducer->BeginBackward(backward),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("set find_unused")));
  options.static_graph = true;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducer, Reducer::Create(communicator, Vectors(2, kElements), options));
  EXPECT_THAT(reducer->BeginBackward(backward),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("from its first backward")));
  LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
}

ReducerOptions StaticGraph() {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.static_graph = true;
  return options;
}

// Parameter 1 is shared and marked three times, with sums that grow; 2 is never used.
void RunStatic(Reducer& reducer, Model& model, float last) {
  LOCKSTEP_EXPECT_OK(model.Mark(reducer, 1, 100));
  LOCKSTEP_EXPECT_OK(model.Mark(reducer, 0, last));
  LOCKSTEP_EXPECT_OK(model.Mark(reducer, 1, 200));
  LOCKSTEP_EXPECT_OK(model.Mark(reducer, 1, last));
}

TEST(StaticGraph, CountsMarksOnceAndReplaysThem) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(3, kElements), StaticGraph()));
    Model model(3);
    model.Set(2, -1);
    for (int step = 0; step < 5; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      RunStatic(*reducer, model, rank == 0 ? 2 : 6);
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      model.ExpectAll(0, 4);
      model.ExpectAll(1, 4);
      model.ExpectAll(2, -1);
      // The first one cannot know when a gradient is final.
      const int launched = reducer->statistics().buckets_launched_in_backward;
      EXPECT_EQ(launched > 0, step > 0);
    }
  });
}

TEST(StaticGraph, ThatChangesIsAnErrorInTheSameBackwardOnAllRanks) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(3, kElements), StaticGraph()));
    Model model(3);
    const auto run = [&](int extra) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      RunStatic(*reducer, model, 2);
      if (extra >= 0 && rank == 1) {
        EXPECT_THAT(reducer->MarkReady(extra, model.gradient(extra), nullptr),
                    StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the graph changed")));
      }
      return reducer->EndBackward(nullptr);
    };
    LOCKSTEP_EXPECT_OK(run(-1));
    EXPECT_THAT(run(1),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("rank 1: a mark was refused (mark_ready: the graph changed: parameter 1 'p1' "
                                   "(f32[20]) was marked more than the 3 time(s) of the first backward)")));
    EXPECT_THAT(run(2),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("rank 1: a mark was refused (mark_ready: the graph changed: parameter 2 'p2' "
                                   "(f32[20]) was not used in the first backward)")));
    // Too few.
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, 2));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 1, 2));
    EXPECT_THAT(
        reducer->EndBackward(nullptr),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("rank 0: the graph changed: no gradient came for parameter 1 'p1' (f32[20]) after "
                                 "1 of 3 marks"),
                       HasSubstr("rank 1: the graph changed"))));
    LOCKSTEP_EXPECT_OK(run(-1));
    model.ExpectAll(1, 2);
  });
}

TEST(StaticGraph, IsCountedInABackwardWithoutSyncToo) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, Vectors(3, kElements), StaticGraph()));
    Model model(3);
    for (const bool sync : {false, true, false, true}) {
      BackwardOptions options;
      options.sync = sync;
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward(options));
      RunStatic(*reducer, model, communicator.rank().value() == 0 ? 1 : 3);
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      if (sync) model.ExpectAll(1, 2);
    }
    BackwardOptions accumulating;
    accumulating.sync = false;
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward(accumulating));
    EXPECT_THAT(reducer->EndBackward(nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the graph changed: no gradient came")));
  });
}

// Parameters 0 and 1 are delayed until 3 is ready. What is marked of them behind it waits for the next time.
TEST(DelayedParameters, AreReducedWhenTheirTriggerIsReady) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const float rank = communicator.rank().value() == 0 ? 1 : 3;
    std::vector<Parameter> table = Vectors(4, kElements);
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.delayed = {0, 1};
    options.delayed_trigger = 3;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, table, options));
    ASSERT_EQ(reducer->plan().buckets.size(), 3);
    EXPECT_TRUE(reducer->plan().buckets[1].delayed);
    Model model(4);
    model.Set(1, -1);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 0, rank));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 3, rank));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 2, rank));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 1, 10 * rank));  // too late for this one
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    for (const size_t index : {0, 2, 3}) model.ExpectAll(index, 2);
    model.ExpectAll(1, 10 * rank);

    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 3, rank));
    LOCKSTEP_EXPECT_OK(model.Mark(*reducer, 2, rank));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    model.ExpectAll(1, 20);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView zero, reducer->AverageOf(0));
    EXPECT_EQ(zero.data(), nullptr);
  });
}

TEST(DelayedParameters, KeepTheirDTypes) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(testing::MixedTable(), communicator.rank().value());
    ReducerOptions options;
    options.delayed = {0, 1, 2, 3, 4};
    options.delayed_trigger = replica.table().size() - 1;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
      replica.ExpectAverages(2, {step});
    }
  });
}

TEST(DelayedParameters, ThatCannotBeAreRefused) {
  LoopbackWorld world(1, {}, ShortTimeout());
  const auto create = [&](std::vector<size_t> delayed, size_t trigger) {
    std::vector<Parameter> table = Vectors(4, kElements);
    table[2].ignored = true;
    ReducerOptions options;
    options.delayed = std::move(delayed);
    options.delayed_trigger = trigger;
    return Reducer::Create(world.communicator(0), table, options).status();
  };
  LOCKSTEP_EXPECT_OK(create({0}, 1));
  EXPECT_THAT(create({4}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("out of range")));
  EXPECT_THAT(create({0, 0}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("named twice")));
  EXPECT_THAT(create({2}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is ignored")));
  EXPECT_THAT(create({0, 1}, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("itself delayed")));
  EXPECT_THAT(create({0}, 2), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("itself ignored")));
  EXPECT_THAT(create({0}, 9), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("trigger of delayed")));
}

}  // namespace
}  // namespace lockstep

// Parameters that are not used in every backward: said by the embedder, found out at the end, recorded by a static graph, or kept for a
// trigger.

#include <utility>
#include <vector>

#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

constexpr int kElements = 20;

ReducerOptions FindUnused() {
  ReducerOptions options = Caps({0});
  options.find_unused = true;
  return options;
}

float First(const TensorView& view) { return Floats(view)[0]; }

// A worker whose gradients are one float each, of which tests know the sum.
class Model : public Worker {
 public:
  using Worker::Worker;

  void Set(size_t index, float value) { Fill(gradient(index), value); }
  void ExpectAll(size_t index, float value) const {
    EXPECT_THAT(Floats(gradient(index)), Each(value)) << "parameter " << index;
  }
  // EXPECTs that there is an average, or none.
  void ExpectAverageOf(size_t index, float value) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView average, reducer().AverageOf(index));
    EXPECT_EQ(First(average), value);
  }
  void ExpectNoAverageOf(size_t index) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const TensorView average, reducer().AverageOf(index));
    EXPECT_EQ(average.data(), nullptr);
  }
  absl::Status Mark(size_t index, float value) {
    Set(index, value);
    return Worker::Mark(index);
  }
  // EXPECTs that these marks are taken.
  void MarkAll(const std::vector<std::pair<size_t, float>>& marks) {
    for (const auto& [index, value] : marks) LOCKSTEP_EXPECT_OK(Mark(index, value));
  }
  absl::Status Backward(const BackwardOptions& options, const std::vector<std::pair<size_t, float>>& marks) {
    LOCKSTEP_EXPECT_OK(Begin(options));
    MarkAll(marks);
    return End();
  }

  std::vector<int64_t> UseByAnyRank() { return Use(&ParameterUse::by_any_rank); }
  std::vector<int64_t> UseByThisRank() { return Use(&ParameterUse::by_this_rank); }

 private:
  std::vector<int64_t> Use(int64_t ParameterUse::*by) {
    std::vector<int64_t> counts;
    for (const ParameterUse& use : reducer().parameter_use()) counts.push_back(use.*by);
    return counts;
  }
};

void RunModels(int size, int parameters, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Vectors(parameters, kElements), options, body);
}

// `unused` outlives the options.
BackwardOptions Saying(const std::vector<size_t>& unused) {
  BackwardOptions options;
  options.unused = unused;
  return options;
}

class Unused : public ::testing::TestWithParam<bool> {
 protected:
  // Where the embedder says which they are.
  BackwardOptions Of(const std::vector<size_t>& unused) const {
    return GetParam() ? Saying(unused) : BackwardOptions();
  }
};

INSTANTIATE_TEST_SUITE_P(Reducer, Unused, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "SaidBeforehand" : "FoundOut"; });

TEST_P(Unused, MayBeAllOfARank) {
  RunModels(2, 3, FindUnused(), [this](Model& model) {
    LOCKSTEP_EXPECT_OK(model.Begin(model.rank() == 1 ? Of({0, 1, 2}) : Of({})));
    if (model.rank() == 0) model.MarkAll({{2, 6}, {1, 6}, {0, 6}});
    LOCKSTEP_EXPECT_OK(model.End());
    for (const size_t index : {0, 1, 2}) model.ExpectAverageOf(index, 3);
    // And of all ranks.
    LOCKSTEP_EXPECT_OK(model.Backward(Of({0, 1, 2}), {}));
    model.ExpectNoAverageOf(1);
  });
}

// Parameter 1 is used in the first of three backwards only, which is not synchronised.
TEST_P(Unused, AreUsedWhenTheyWereInABackwardWithoutSync) {
  RunModels(2, 2, FindUnused(), [this](Model& model) {
    BackwardOptions accumulating = Of({});
    accumulating.sync = false;
    const auto run_window = [&](bool uses_one) {
      LOCKSTEP_EXPECT_OK(model.Begin(accumulating));
      model.MarkAll({{0, 1}});
      if (uses_one) model.MarkAll({{1, 10}});
      LOCKSTEP_EXPECT_OK(model.End());
      LOCKSTEP_EXPECT_OK(model.Backward(Of({1}), {{0, 2}}));
    };
    run_window(model.rank() == 0);
    model.ExpectAverageOf(1, 5);
    // The window is over: nobody has used it in the next one.
    run_window(false);
    model.ExpectNoAverageOf(1);
    EXPECT_THAT(model.UseByAnyRank(), ElementsAre(2, 1));
    EXPECT_THAT(model.UseByThisRank(), ElementsAre(2, model.rank() == 0 ? 1 : 0));
  });
}

TEST(UnusedSaidBeforehand, ThatCameAfterAllIsAnErrorOnAllRanks) {
  RunModels(2, 2, FindUnused(), [](Model& model) {
    const std::vector<size_t> unused = {1};
    LOCKSTEP_EXPECT_OK(model.Begin(Saying(unused)));
    model.MarkAll({{0, 1}});
    if (model.rank() == 1) {
      EXPECT_THAT(model.Mark(1, 1), FailedPrecondition("'p1' (f32[20]) was said to be unused"));
    }
    EXPECT_THAT(model.End(), FailedPrecondition("rank 1: a mark was refused (mark_ready: parameter 1 'p1' (f32[20]) "
                                                "was said to be unused in this backward)"));
    LOCKSTEP_EXPECT_OK(model.Backward({}, {{0, 1}}));
  });
}

ReducerOptions StaticGraph() {
  ReducerOptions options = Caps({0});
  options.static_graph = true;
  return options;
}

// Parameter 1 is shared and marked three times, with sums that grow; 2 is never used.
void MarkStatic(Model& model, float last) { model.MarkAll({{1, 100}, {0, last}, {1, 200}, {1, last}}); }

TEST(StaticGraph, CountsMarksOnceAndReplaysThem) {
  RunModels(2, 3, StaticGraph(), [](Model& model) {
    model.Set(2, -1);
    for (int step = 0; step < 5; ++step) {
      LOCKSTEP_EXPECT_OK(model.Begin());
      MarkStatic(model, model.rank() == 0 ? 2 : 6);
      LOCKSTEP_EXPECT_OK(model.End());
      model.ExpectAll(0, 4);
      model.ExpectAll(1, 4);
      model.ExpectAll(2, -1);
      // The first one cannot know when a gradient is final.
      EXPECT_EQ(model.reducer().statistics().buckets_launched_in_backward > 0, step > 0);
    }
  });
}

TEST(StaticGraph, ThatChangesIsAnErrorInTheSameBackwardOnAllRanks) {
  RunModels(2, 3, StaticGraph(), [](Model& model) {
    const auto run = [&](int extra) {
      LOCKSTEP_EXPECT_OK(model.Begin());
      MarkStatic(model, 2);
      if (extra >= 0 && model.rank() == 1) {
        EXPECT_THAT(model.Worker::Mark(extra), FailedPrecondition("the graph changed"));
      }
      return model.End();
    };
    LOCKSTEP_EXPECT_OK(run(-1));
    EXPECT_THAT(run(1),
                FailedPrecondition("rank 1: a mark was refused (mark_ready: the graph changed: parameter 1 'p1' "
                                   "(f32[20]) was marked more than the 3 time(s) of the first backward)"));
    EXPECT_THAT(run(2),
                FailedPrecondition("rank 1: a mark was refused (mark_ready: the graph changed: parameter 2 'p2' "
                                   "(f32[20]) was not used in the first backward)"));
    // Too few.
    EXPECT_THAT(model.Backward({}, {{0, 2}, {1, 2}}),
                FailedPrecondition("rank 0: the graph changed: no gradient came for parameter 1 'p1' (f32[20]) after "
                                   "1 of 3 marks",
                                   "rank 1: the graph changed"));
    LOCKSTEP_EXPECT_OK(run(-1));
    model.ExpectAll(1, 2);
  });
}

TEST(StaticGraph, IsCountedInABackwardWithoutSyncToo) {
  RunModels(2, 3, StaticGraph(), [](Model& model) {
    for (const bool sync : {false, true, false, true}) {
      LOCKSTEP_EXPECT_OK(model.Begin({sync}));
      MarkStatic(model, model.rank() == 0 ? 1 : 3);
      LOCKSTEP_EXPECT_OK(model.End());
      if (sync) model.ExpectAll(1, 2);
    }
    EXPECT_THAT(model.Backward({/*sync=*/false}, {}), FailedPrecondition("the graph changed: no gradient came"));
  });
}

// Parameters 0 and 1 are delayed until 3 is ready. What is marked of them behind it waits for the next time.
TEST(DelayedParameters, AreReducedWhenTheirTriggerIsReady) {
  ReducerOptions options = Caps({0});
  options.delayed = {0, 1};
  options.delayed_trigger = 3;
  RunModels(2, 4, options, [](Model& model) {
    const float own = model.rank() == 0 ? 1 : 3;
    ASSERT_EQ(model.plan().buckets.size(), 3);
    EXPECT_TRUE(model.plan().buckets[1].delayed);
    model.Set(1, -1);
    // The last one is too late for this one.
    LOCKSTEP_EXPECT_OK(model.Backward({}, {{0, own}, {3, own}, {2, own}, {1, 10 * own}}));
    for (const size_t index : {0, 2, 3}) model.ExpectAll(index, 2);
    model.ExpectAll(1, 10 * own);

    LOCKSTEP_EXPECT_OK(model.Backward({}, {{3, own}, {2, own}}));
    model.ExpectAll(1, 20);
    model.ExpectNoAverageOf(0);
  });
}

TEST(DelayedParameters, KeepTheirDTypes) {
  ReducerOptions options;
  options.delayed = {0, 1, 2, 3, 4};
  options.delayed_trigger = MixedTable().size() - 1;
  RunWorkers(2, MixedTable(), options, [](Worker& worker) {
    for (int step = 0; step < 3; ++step) worker.ExpectStep(step);
  });
}

}  // namespace
}  // namespace lockstep::testing

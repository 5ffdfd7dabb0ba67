// Parameters that are not used in every backward: said by the embedder, or recorded by a static graph. Their averages, and which are found
// to be unused: reducer_matrix_test.cc.

#include <utility>
#include <vector>

#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

constexpr int kElements = 20;

// A worker whose gradients are one float each, of which tests know the sum.
class Model : public Worker {
 public:
  using Worker::Worker;

  void Set(size_t index, float value) { Fill(gradient(index), value); }
  void ExpectAll(size_t index, float value) const {
    EXPECT_THAT(Floats(gradient(index)), Each(value)) << "parameter " << index;
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
};

void RunModels(int size, int parameters, const ReducerOptions& options, const std::function<void(Model&)>& body) {
  RunWorkers<Model>(size, Vectors(parameters, kElements), options, body);
}

TEST(UnusedSaidBeforehand, ThatCameAfterAllIsAnErrorOnAllRanks) {
  ReducerOptions options = Caps({0});
  options.find_unused = true;
  RunModels(2, 2, options, [](Model& model) {
    const std::vector<size_t> unused = {1};
    BackwardOptions backward;
    backward.unused = unused;
    LOCKSTEP_EXPECT_OK(model.Begin(backward));
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

}  // namespace
}  // namespace lockstep::testing

// What tests of captured steps share, with ranks that are threads or processes, on the fake CUDA or a GPU.

#ifndef REDUCER_REDUCER_CAPTURE_TESTING_H_
#define REDUCER_REDUCER_CAPTURE_TESTING_H_

#include <functional>
#include <vector>

#include "base/device/cuda/cuda_graph_testing.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {

// A worker that trains in one stream: the embedder's.
class CapturingRank : public Worker {
 public:
  static std::vector<Parameter> Table() { return Vectors(7, 90); }
  // Three buckets.
  static ReducerOptions Options() {
    ReducerOptions options = Caps({size_t{3} * 90 * 4});
    options.replan = false;
    return options;
  }

  // Collective.
  explicit CapturingRank(Communicator& communicator, const ReducerOptions& options = Options())
      : Worker(communicator, Table(), options), in_views_(options.gradient_as_bucket_view) {}

  BackwardOptions InStream() {
    BackwardOptions options;
    options.stream = &stream();
    return options;
  }
  absl::Status Synchronize() { return stream().Synchronize(Deadline::AfterMs(60'000)); }

  TensorView Gradient(size_t index) { return in_views_ ? View(index) : gradient(index); }
  // What this rank computes in the step, where it is marked. Nothing may be under way.
  void Compute(int step) {
    Worker::Compute(step);
    if (in_views_) ToViews();
  }
  absl::Status Mark(size_t index, Stream* on) { return reducer().MarkReady(index, Gradient(index), on); }
  void MarkAll(const Order& order) {
    for (const size_t index : order) LOCKSTEP_EXPECT_OK(Mark(index, &stream()));
  }

  // Issues a backward in which those gradients are marked.
  absl::Status Backward(const BackwardOptions& options, const Order& order) {
    LOCKSTEP_RETURN_IF_ERROR(Begin(options));
    MarkAll(order);
    return End(&stream());
  }
  absl::Status Backward(const BackwardOptions& options) { return Backward(options, order()); }
  absl::Status Backward() { return Backward(InStream()); }
  void ExpectAverages(int step) {
    if (in_views_) FromViews();
    Worker::ExpectAverages(step);
  }

  // An ordinary step that comes out right.
  void ExpectStep(int step, const BackwardOptions& options) {
    Compute(step);
    LOCKSTEP_EXPECT_OK(Backward(options));
    LOCKSTEP_EXPECT_OK(Synchronize());
    ExpectAverages(step);
  }
  void ExpectStep(int step) { ExpectStep(step, InStream()); }

  // The graph of what `issue` puts into the stream; null, as the test fails, if there is none.
  void* Capture(const std::function<void()>& issue) {
    EXPECT_EQ(BeginCapture(stream().native()), 0);
    issue();
    void* graph = nullptr;
    EXPECT_EQ(EndCapture(stream().native(), &graph), 0);
    return graph;
  }
  void* CaptureStep(const BackwardOptions& options) {
    return Capture([&] { LOCKSTEP_EXPECT_OK(Backward(options)); });
  }
  void* CaptureStep() { return CaptureStep(InStream()); }

  void Launch(void* graph) {
    EXPECT_EQ(LaunchGraph(graph, stream().native()), 0);
    LOCKSTEP_EXPECT_OK(Synchronize());
  }
  // A replay that comes out right.
  void Replay(void* graph, int step) {
    Compute(step);
    Launch(graph);
    LOCKSTEP_EXPECT_OK(reducer().CheckReplays());
    ExpectAverages(step);
  }

 private:
  const bool in_views_;
};

// Ordinary steps, a capture, replays, and both by turns, come out right.
inline void CaptureAndReplay(Communicator& communicator, const ReducerOptions& options,
                             const std::function<void(BackwardOptions*)>& change = nullptr) {
  CapturingRank rank(communicator, options);
  BackwardOptions backward = rank.InStream();
  if (change) change(&backward);
  int step = 0;
  while (step < 2) rank.ExpectStep(step++, backward);
  void* const graph = rank.CaptureStep(backward);
  ASSERT_NE(graph, nullptr);
  for (int replay = 0; replay < 4; ++replay) rank.Replay(graph, step++);
  while (step < 8) rank.ExpectStep(step++, backward);
  rank.Replay(graph, step++);
  void* const another = rank.CaptureStep(backward);
  ASSERT_NE(another, nullptr);
  rank.Replay(another, step++);
  rank.Replay(graph, step++);
  rank.ExpectStep(step++, backward);
  EXPECT_EQ(DestroyGraph(graph), 0);
  EXPECT_EQ(DestroyGraph(another), 0);
}

}  // namespace lockstep::testing

#endif  // REDUCER_REDUCER_CAPTURE_TESTING_H_

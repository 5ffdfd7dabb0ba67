// What tests of captured steps share, with ranks that are threads or processes, on the fake CUDA or a GPU.

#ifndef REDUCER_REDUCER_CAPTURE_TESTING_H_
#define REDUCER_REDUCER_CAPTURE_TESTING_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "reducer/reducer_view_testing.h"

namespace lockstep {
namespace testing {

// A rank that trains in one stream: the embedder's.
class CapturingRank {
 public:
  static std::vector<Parameter> Table() { return Vectors(7, 90); }
  // Three buckets.
  static ReducerOptions Options() {
    ReducerOptions options;
    options.bucket_caps_bytes = {size_t{3} * 90 * 4};
    options.replan = false;
    return options;
  }

  // Collective.
  CapturingRank(Communicator& communicator, const ReducerOptions& options)
      : size_(communicator.size()),
        average_(options.average),
        in_views_(options.gradient_as_bucket_view),
        replica_(Table(), communicator.rank().value()),
        stream_(communicator.accelerator()->CreateStream("embedder").value()) {
    auto created = Reducer::Create(&communicator, Table(), options);
    LOCKSTEP_EXPECT_OK(created);
    if (created.ok()) reducer_ = *std::move(created);
  }

  Reducer& reducer() { return *reducer_; }
  Stream& stream() { return *stream_; }
  Replica& replica() { return replica_; }
  BackwardOptions InStream() {
    BackwardOptions options;
    options.stream = stream_.get();
    return options;
  }
  absl::Status Synchronize() { return stream_->Synchronize(Deadline::AfterMs(60'000)); }

  TensorView Gradient(size_t index) { return in_views_ ? ViewOf(*reducer_, index) : replica_.gradient(index); }
  // What this rank computes in the step, where it is marked. Nothing may be under way.
  void Compute(int step) {
    replica_.Compute(step);
    if (in_views_) ToViews(replica_, *reducer_);
  }
  void Mark(size_t index) { LOCKSTEP_EXPECT_OK(reducer_->MarkReady(index, Gradient(index), stream_.get())); }

  // Issues a backward in which those gradients are marked.
  absl::Status Backward(const BackwardOptions& options, const std::vector<size_t>& order) {
    LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward(options));
    for (const size_t index : order) Mark(index);
    return reducer_->EndBackward(stream_.get());
  }
  absl::Status Backward(const BackwardOptions& options) { return Backward(options, replica_.order()); }
  void ExpectAverages(int step) {
    if (in_views_) FromViews(*reducer_, replica_);
    replica_.ExpectAverages(size_, {step}, average_);
  }

  // An ordinary step that comes out right.
  void Step(int step, const BackwardOptions& options) {
    Compute(step);
    LOCKSTEP_EXPECT_OK(Backward(options));
    LOCKSTEP_EXPECT_OK(Synchronize());
    ExpectAverages(step);
  }
  void Step(int step) { Step(step, InStream()); }

  // The graph of what `issue` puts into the stream; null, as the test fails, if there is none.
  void* Capture(const std::function<void()>& issue) {
    EXPECT_EQ(BeginCapture(stream_->native()), 0);
    issue();
    void* graph = nullptr;
    EXPECT_EQ(EndCapture(stream_->native(), &graph), 0);
    return graph;
  }
  void* CaptureStep(const BackwardOptions& options) {
    return Capture([&] { LOCKSTEP_EXPECT_OK(Backward(options)); });
  }
  void* CaptureStep() { return CaptureStep(InStream()); }

  void Launch(void* graph) {
    EXPECT_EQ(LaunchGraph(graph, stream_->native()), 0);
    LOCKSTEP_EXPECT_OK(Synchronize());
  }
  // A replay that comes out right.
  void Replay(void* graph, int step) {
    Compute(step);
    Launch(graph);
    LOCKSTEP_EXPECT_OK(reducer_->CheckReplays());
    ExpectAverages(step);
  }

 private:
  const int size_;
  const Average average_;
  const bool in_views_;
  Replica replica_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Reducer> reducer_;  // ends first: it uses the stream
};

// Ordinary steps, a capture, replays, and both by turns, come out right.
inline void CaptureAndReplay(Communicator& communicator, const ReducerOptions& options,
                             const std::function<void(BackwardOptions*)>& change = nullptr) {
  CapturingRank rank(communicator, options);
  BackwardOptions backward = rank.InStream();
  if (change) change(&backward);
  int step = 0;
  while (step < 2) rank.Step(step++, backward);
  void* const graph = rank.CaptureStep(backward);
  ASSERT_NE(graph, nullptr);
  for (int replay = 0; replay < 4; ++replay) rank.Replay(graph, step++);
  while (step < 8) rank.Step(step++, backward);
  rank.Replay(graph, step++);
  void* const another = rank.CaptureStep(backward);
  ASSERT_NE(another, nullptr);
  rank.Replay(another, step++);
  rank.Replay(graph, step++);
  rank.Step(step++, backward);
  EXPECT_EQ(DestroyGraph(graph), 0);
  EXPECT_EQ(DestroyGraph(another), 0);
}

}  // namespace testing
}  // namespace lockstep

#endif  // REDUCER_REDUCER_CAPTURE_TESTING_H_

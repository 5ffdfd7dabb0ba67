// Steps that are captured into CUDA graphs, over the fake CUDA and the fake NCCL. Ranks are threads. The fake replays
// a graph's nodes in one order and another by turns, so that what should wait for something else and does not is
// found out.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/barrier.h"
#include "absl/types/span.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_capture_testing.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/device/nccl/nccl_testing.h"
#include "comm/device/staged/staged_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/average.h"
#include "reducer/pipeline/bucket_pipeline.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/reducer.h"
#include "reducer/reducer_capture_testing.h"
#include "reducer/reducer_options.h"
#include "reducer/reducer_replan_testing.h"
#include "tests/fake_cuda_kernels.h"
#include "tests/ranks.h"

namespace lockstep {
namespace testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StepUntil;
constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
constexpr int kRanks = 2;

class ReducerCapture : public NcclTest {
 protected:
  static void SetUpTestSuite() {
    static const auto* const kernels = new FakeCudaKernels(NcclFakes::Get().cuda);
    ReplaceKernelsForTesting(kernels);
  }
  void SetUp() override {
    NcclTest::SetUp();
    Create(kRanks);
  }
};

// ---- What can be captured

struct Case {
  std::string name;
  std::function<void(ReducerOptions*)> set;
  std::function<void(BackwardOptions*)> begin;
};

class ReducerCaptureOf : public ReducerCapture, public ::testing::WithParamInterface<Case> {};

TEST_P(ReducerCaptureOf, ReplaysAverageWhatGradientsAreThen) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    if (GetParam().set) GetParam().set(&options);
    CaptureAndReplay(self, options, GetParam().begin);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Options, ReducerCaptureOf,
    ::testing::Values(
        Case{"Default", nullptr, nullptr},
        Case{"BucketViews", [](ReducerOptions* options) { options->gradient_as_bucket_view = true; }, nullptr},
        Case{"BucketsInTurns", [](ReducerOptions* options) { options->buckets_in_memory_max = 1; }, nullptr},
        Case{"Compressed", [](ReducerOptions* options) { options->compress = DType::kBF16; }, nullptr},
        Case{"AverageAfter", [](ReducerOptions* options) { options->average = Average::kAfter; }, nullptr},
        Case{"NoOverlap", [](ReducerOptions* options) { options->overlap = false; }, nullptr},
        Case{"StaticGraph", [](ReducerOptions* options) { options->static_graph = true; }, nullptr},
        Case{"NoneUnused", [](ReducerOptions* options) { options->find_unused = true; },
             [](BackwardOptions* backward) { backward->unused = absl::Span<const size_t>(); }}),
    [](const auto& info) { return info.param.name; });

TEST_F(ReducerCapture, NeedsNoStepBefore) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    void* const graph = rank.CaptureStep();
    rank.Replay(graph, 0);
  });
}

TEST_F(ReducerCapture, GradientsMayBeOnStreamsThatTheEmbedderForks) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    const auto other = self.accelerator()->CreateStream("other").value();
    const auto forked = self.accelerator()->CreateEvent().value();
    void* const graph = rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward(rank.InStream()));
      LOCKSTEP_EXPECT_OK(rank.stream().Record(forked.get()));
      LOCKSTEP_EXPECT_OK(other->Wait(forked.get()));
      for (const size_t index : rank.replica().order()) {
        Stream* const stream = index % 2 == 0 ? &rank.stream() : other.get();
        LOCKSTEP_EXPECT_OK(rank.replica().ComputeOn(*stream, index, /*step=*/3));
        LOCKSTEP_EXPECT_OK(rank.reducer().MarkReady(index, rank.Gradient(index), stream));
      }
      LOCKSTEP_EXPECT_OK(rank.reducer().EndBackward(&rank.stream()));
    });
    for (int replay = 0; replay < 2; ++replay) {
      rank.Compute(/*step=*/0);  // and the graph computes it anew
      rank.Launch(graph);
      rank.ExpectAverages(3);
    }
  });
}

TEST_F(ReducerCapture, WaitsUntilBucketsArePlannedAnew) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    options.replan = true;
    CapturingRank rank(self, options);
    const int step = StepUntil(rank.reducer(), 2, 0, [&](int s) {
      if (s == 1) {
        rank.Capture([&] {
          EXPECT_THAT(rank.Backward(rank.InStream()), StatusIs(kRefused, HasSubstr("planned anew: run steps until")));
        });
      }
      rank.Step(s);
      return absl::OkStatus();
    });
    rank.Replay(rank.CaptureStep(), step);
  });
}

TEST_F(ReducerCapture, AGraphOutlivesANewPlan) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    void* const graph = rank.CaptureStep();
    rank.Replay(graph, 0);
    LOCKSTEP_EXPECT_OK(rank.reducer().RequestReplan());
    const int step = StepUntil(rank.reducer(), 2, 1, [&](int s) {
      rank.Step(s);
      return absl::OkStatus();
    });
    rank.Replay(graph, step);
    rank.Replay(rank.CaptureStep(), step + 1);
    rank.Replay(graph, step + 2);
  });
}

// ---- What cannot

struct Refusal {
  std::string name;
  std::function<void(ReducerOptions*)> set;
  std::string why;
};

class ReducerCaptureRefusal : public ReducerCapture, public ::testing::WithParamInterface<Refusal> {};

// On every rank, before anything is issued: the capture ends well, and so does the next step.
TEST_P(ReducerCaptureRefusal, SaysWhyAndLeavesTheReducerToOrdinarySteps) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    GetParam().set(&options);
    CapturingRank rank(self, options);
    rank.Capture([&] {
      EXPECT_THAT(rank.reducer().BeginBackward(rank.InStream()),
                  StatusIs(kRefused, AllOf(StartsWith("begin_backward: the stream is being captured"),
                                           HasSubstr(GetParam().why))));
      EXPECT_THAT(rank.reducer().EndBackward(&rank.stream()), StatusIs(kRefused, HasSubstr("no backward was begun")));
    });
    rank.Step(1);
  });
}

absl::Status Nothing(const ReducedBucket&) { return absl::OkStatus(); }

INSTANTIATE_TEST_SUITE_P(
    Options, ReducerCaptureRefusal,
    ::testing::Values(
        Refusal{"Optimizer", [](ReducerOptions* options) { options->optimizer = Nothing; }, "behind this one"},
        Refusal{"UnevenInputs", [](ReducerOptions* options) { options->uneven_inputs = true; }, "who has inputs"},
        Refusal{"Delayed",
                [](ReducerOptions* options) {
                  options->delayed = {2};
                  options->delayed_trigger = 6;
                },
                "delayed parameters"},
        Refusal{"StaticGraph", [](ReducerOptions* options) { options->static_graph = true; }, "run one step before"},
        Refusal{"FindUnused", [](ReducerOptions* options) { options->find_unused = true; },
                "name it in begin_backward, or set static_graph"}),
    [](const auto& info) { return info.param.name; });

TEST_F(ReducerCapture, RefusesHooks) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    options.hook = MakeNoopHook();
    CapturingRank rank(self, options);
    rank.Capture([&] {
      EXPECT_THAT(rank.Backward(rank.InStream()), StatusIs(kRefused, HasSubstr("make the reducer without one")));
    });
    LOCKSTEP_EXPECT_OK(rank.Backward(rank.InStream()));
    LOCKSTEP_EXPECT_OK(rank.Synchronize());
  });
}

TEST_F(ReducerCapture, RefusesParametersThatAreUnused) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    options.find_unused = true;
    CapturingRank rank(self, options);
    const std::vector<size_t> unused = {4};
    BackwardOptions backward = rank.InStream();
    backward.unused = unused;
    rank.Capture([&] {
      EXPECT_THAT(rank.Backward(backward),
                  StatusIs(kRefused, AllOf(HasSubstr("unused, as parameter 4"), HasSubstr("p4"))));
    });
    LOCKSTEP_EXPECT_OK(rank.Backward(backward, {0, 1, 2, 3, 5, 6}));
    LOCKSTEP_EXPECT_OK(rank.Synchronize());
  });
}

TEST_F(ReducerCapture, RefusesBuffersThatTheHostBrings) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    float mean = 1;
    LOCKSTEP_ASSERT_OK(rank.reducer().SetBuffers({TensorView::Vector(&mean, DType::kF32, 1).value()}, {}));
    rank.Capture([&] {
      EXPECT_THAT(rank.Backward(rank.InStream()), StatusIs(kRefused, HasSubstr("broadcast them by yourself")));
    });
  });
}

TEST_F(ReducerCapture, RefusesABackEndWhoseHostTakesPart) {
  testing::RunRanks(kRanks, [this](int r) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto staged,
                                  StagedCommunicator::Create(world_->worlds[r]->communicator(), fakes_.device));
    CapturingRank rank(*staged, CapturingRank::Options());
    rank.Capture([&] {
      EXPECT_THAT(rank.Backward(rank.InStream()),
                  StatusIs(kRefused, AllOf(HasSubstr("staged"), HasSubstr("choose the back end nccl"))));
    });
  });
}

TEST_F(ReducerCapture, MarksOnOtherStreamsAreRefused) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    const auto other = self.accelerator()->CreateStream("other").value();
    // A step that was not begun as a captured one.
    LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward({}));
    rank.Capture([&] {
      EXPECT_THAT(rank.reducer().MarkReady(0, rank.Gradient(0), &rank.stream()),
                  StatusIs(kRefused, HasSubstr("name the stream in begin_backward")));
    });
    for (const size_t index : rank.replica().order()) rank.Mark(index);
    LOCKSTEP_EXPECT_OK(rank.reducer().EndBackward(&rank.stream()));
    LOCKSTEP_EXPECT_OK(rank.Synchronize());
    // And one that was.
    void* const graph = rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward(rank.InStream()));
      for (Stream* const stream : {other.get(), static_cast<Stream*>(nullptr)}) {
        EXPECT_THAT(rank.reducer().MarkReady(0, rank.Gradient(0), stream),
                    StatusIs(kRefused, HasSubstr("the gradient's stream is not")));
      }
      for (const size_t index : rank.replica().order()) rank.Mark(index);
      LOCKSTEP_EXPECT_OK(rank.reducer().EndBackward(&rank.stream()));
    });
    rank.Replay(graph, 2);
  });
}

TEST_F(ReducerCapture, ABackwardWithoutSyncIssuesNothing) {
  OnRanks([](Communicator& self) {
    ReducerOptions options = CapturingRank::Options();
    options.optimizer = Nothing;  // refused with sync
    CapturingRank rank(self, options);
    BackwardOptions backward = rank.InStream();
    backward.sync = false;
    EXPECT_NE(rank.CaptureStep(backward), nullptr);
    rank.Step(1);
  });
}

// ---- What goes wrong

// With some, and with all of them, when our streams have nothing to follow into the capture but its beginning.
TEST_F(ReducerCapture, GradientsThatWereMissingFailEachReplayOnEveryRank) {
  for (const std::vector<size_t>& marked : {std::vector<size_t>{0, 1, 3, 4, 5, 6}, std::vector<size_t>()}) {
    OnRanks([&marked](Communicator& self) {
      CapturingRank rank(self, CapturingRank::Options());
      const bool failing = self.rank() == Rank(1);
      rank.Step(0);
      void* const good = rank.CaptureStep();
      void* const graph = rank.Capture([&] {
        const absl::Status ended = rank.Backward(rank.InStream(), failing ? marked : rank.replica().order());
        EXPECT_EQ(ended.ok(), !failing) << ended;
        if (failing) {
          EXPECT_THAT(ended,
                      StatusIs(kRefused, AllOf(HasSubstr("captured backward 3, each launch of which fails on every"),
                                               HasSubstr("no gradient came for parameter"))));
        }
      });
      rank.Replay(good, 1);
      for (int replay = 0; replay < 2; ++replay) {
        rank.Compute(5);
        rank.Launch(graph);
        EXPECT_THAT(rank.reducer().CheckReplays(),
                    StatusIs(kRefused, AllOf(StartsWith("a replay: backward 3 is incomplete: rank 1: no gradient came"),
                                             HasSubstr("parameter 2"), HasSubstr("No gradient of the buckets"))));
        rank.replica().ExpectLocal(2, 5);
      }
      rank.Step(6);
    });
  }
}

// What would tell the other ranks has been captured by then.
TEST_F(ReducerCapture, AMarkTooManyIsThisRanksErrorAndItsGraphIsNotToBeLaunched) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    rank.Step(0);
    rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward(rank.InStream()));
      for (const size_t index : rank.replica().order()) rank.Mark(index);
      const bool failing = self.rank() == Rank(1);
      if (failing) {
        EXPECT_THAT(rank.reducer().MarkReady(2, rank.replica().gradient(2), &rank.stream()),
                    StatusIs(kRefused, HasSubstr("marked ready twice")));
      }
      const absl::Status ended = rank.reducer().EndBackward(&rank.stream());
      EXPECT_EQ(ended.ok(), !failing) << ended;
      if (failing) {
        EXPECT_THAT(ended, StatusIs(kRefused, AllOf(HasSubstr("its graph must not be launched"),
                                                    HasSubstr("'p2' (f32[90]) was marked ready twice"))));
      }
    });
    rank.Step(6);
  });
}

TEST_F(ReducerCapture, WhatEndsTheCaptureEndsTheStepAndNothingElse) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto barrier, self.Duplicate());
    rank.Step(0);
    ASSERT_EQ(BeginCapture(rank.stream().native()), 0);
    LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward(rank.InStream()));
    for (size_t index = 0; index < 5; ++index) rank.Mark(index);
    // On either rank it ends the captures of both.
    LOCKSTEP_EXPECT_OK(barrier->Run({}));
    void* memory = nullptr;
    EXPECT_EQ(TheCudaApi().malloc(&memory, 64), kCudaCaptureUnsupported);
    LOCKSTEP_EXPECT_OK(barrier->Run({}));
    for (size_t index = 5; index < 7; ++index) rank.Mark(index);
    EXPECT_THAT(
        rank.reducer().EndBackward(&rank.stream()),
        StatusIs(kRefused, HasSubstr("captured backward 2, which is not whole: its graph must not be launched")));
    void* graph = nullptr;
    EXPECT_EQ(EndCapture(rank.stream().native(), &graph), kCudaCaptureInvalidated);
    LOCKSTEP_EXPECT_OK(self.status());
    rank.Step(1);
    rank.Replay(rank.CaptureStep(), 2);
  });
}

TEST_F(ReducerCapture, ABackwardThatOutlivesItsCaptureIsGivenUp) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    for (const bool named : {true, false}) {
      ASSERT_EQ(BeginCapture(rank.stream().native()), 0);
      LOCKSTEP_EXPECT_OK(rank.reducer().BeginBackward(rank.InStream()));
      for (size_t index = 3; index < 7; ++index) rank.Mark(index);
      void* graph = nullptr;
      EXPECT_EQ(EndCapture(rank.stream().native(), &graph), kCudaCaptureUnjoined);
      EXPECT_THAT(rank.reducer().EndBackward(named ? &rank.stream() : nullptr),
                  StatusIs(kRefused, AllOf(HasSubstr("was being captured"), HasSubstr("given up"))));
    }
    rank.Step(1);
  });
}

TEST_F(ReducerCapture, AveragesOfACapturedBackwardAreNotToBeAskedFor) {
  OnRanks([](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    void* const graph = rank.CaptureStep();
    EXPECT_THAT(rank.reducer().AverageOf(0), StatusIs(kRefused, HasSubstr("the last backward was captured")));
    rank.Replay(graph, 0);
    rank.Step(1);
    EXPECT_THAT(rank.reducer().AverageOf(0), IsOk());
  });
}

TEST_F(ReducerCapture, AFailedCommunicatorIsToldByTheCheck) {
  absl::Barrier captured(2);  // an abort would end the capture of a rank that is not so far
  OnRanks([&](Communicator& self) {
    CapturingRank rank(self, CapturingRank::Options());
    rank.CaptureStep();
    captured.Block();
    self.Abort("the test says so");
    EXPECT_THAT(rank.reducer().CheckReplays(), StatusIs(absl::StatusCode::kAborted, HasSubstr("the test says so")));
  });
}

}  // namespace
}  // namespace testing
}  // namespace lockstep

// Steps that are captured into CUDA graphs, over the fake CUDA and the fake NCCL. Ranks are threads. The fake replays
// a graph's nodes in one order and another by turns, so that what should wait for something else and does not is
// found out.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/types/span.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_capture_testing.h"
#include "comm/device/nccl/nccl_testing.h"
#include "comm/device/staged/staged_communicator.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/reducer_capture_testing.h"
#include "tests/fake_cuda_kernels.h"

namespace lockstep::testing {
namespace {

using ::testing::StartsWith;
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
  // Ranks whose options are the usual ones, changed.
  void OnCapturingRanks(const std::function<void(CapturingRank&)>& body,
                        const std::function<void(ReducerOptions*)>& change = nullptr) {
    OnRanks([&](Communicator& self) {
      ReducerOptions options = CapturingRank::Options();
      if (change) change(&options);
      CapturingRank rank(self, options);
      body(rank);
    });
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

TEST_F(ReducerCapture, GradientsMayBeOnStreamsThatTheEmbedderForks) {
  OnCapturingRanks([](CapturingRank& rank) {
    const auto other = rank.communicator().accelerator()->CreateStream("other").value();
    const auto forked = rank.communicator().accelerator()->CreateEvent().value();
    void* const graph = rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.Begin(rank.InStream()));
      LOCKSTEP_EXPECT_OK(rank.stream().Record(forked.get()));
      LOCKSTEP_EXPECT_OK(other->Wait(forked.get()));
      for (const size_t index : rank.order()) {
        Stream* const stream = index % 2 == 0 ? &rank.stream() : other.get();
        LOCKSTEP_EXPECT_OK(rank.ComputeOn(*stream, index, /*step=*/3));
        LOCKSTEP_EXPECT_OK(rank.Mark(index, stream));
      }
      LOCKSTEP_EXPECT_OK(rank.End(&rank.stream()));
    });
    for (int replay = 0; replay < 2; ++replay) {
      rank.Compute(/*step=*/0);  // and the graph computes it anew
      rank.Launch(graph);
      rank.ExpectAverages(3);
    }
  });
}

TEST_F(ReducerCapture, WaitsUntilBucketsArePlannedAnew) {
  OnCapturingRanks(
      [](CapturingRank& rank) {
        const int step = StepUntil(rank.reducer(), 2, 0, [&](int s) {
          if (s == 1) {
            rank.Capture([&] { EXPECT_THAT(rank.Backward(), FailedPrecondition("planned anew: run steps until")); });
          }
          rank.ExpectStep(s);
          return absl::OkStatus();
        });
        rank.Replay(rank.CaptureStep(), step);
      },
      [](ReducerOptions* options) { options->replan = true; });
}

// And needs no step before.
TEST_F(ReducerCapture, AGraphOutlivesANewPlan) {
  OnCapturingRanks([](CapturingRank& rank) {
    void* const graph = rank.CaptureStep();
    rank.Replay(graph, 0);
    LOCKSTEP_EXPECT_OK(rank.reducer().RequestReplan());
    const int step = StepUntil(rank.reducer(), 2, 1, [&](int s) {
      rank.ExpectStep(s);
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
  OnCapturingRanks(
      [](CapturingRank& rank) {
        rank.Capture([&] {
          EXPECT_THAT(rank.Begin(rank.InStream()),
                      FailedPrecondition(StartsWith("begin_backward: the stream is being captured"), GetParam().why));
          EXPECT_THAT(rank.End(&rank.stream()), FailedPrecondition("no backward was begun"));
        });
        rank.ExpectStep(1);
      },
      GetParam().set);
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
  OnCapturingRanks(
      [](CapturingRank& rank) {
        rank.Capture([&] { EXPECT_THAT(rank.Backward(), FailedPrecondition("make the reducer without one")); });
        LOCKSTEP_EXPECT_OK(rank.Backward());
        LOCKSTEP_EXPECT_OK(rank.Synchronize());
      },
      [](ReducerOptions* options) { options->hook = MakeNoopHook(); });
}

TEST_F(ReducerCapture, RefusesParametersThatAreUnused) {
  OnCapturingRanks(
      [](CapturingRank& rank) {
        const std::vector<size_t> unused = {4};
        BackwardOptions backward = rank.InStream();
        backward.unused = unused;
        rank.Capture([&] { EXPECT_THAT(rank.Backward(backward), FailedPrecondition("unused, as parameter 4", "p4")); });
        LOCKSTEP_EXPECT_OK(rank.Backward(backward, {0, 1, 2, 3, 5, 6}));
        LOCKSTEP_EXPECT_OK(rank.Synchronize());
      },
      [](ReducerOptions* options) { options->find_unused = true; });
}

TEST_F(ReducerCapture, RefusesBuffersThatTheHostBrings) {
  OnCapturingRanks([](CapturingRank& rank) {
    float mean = 1;
    LOCKSTEP_ASSERT_OK(rank.reducer().SetBuffers({TensorView::Vector(&mean, DType::kF32, 1).value()}, {}));
    rank.Capture([&] { EXPECT_THAT(rank.Backward(), FailedPrecondition("broadcast them by yourself")); });
  });
}

TEST_F(ReducerCapture, RefusesABackEndWhoseHostTakesPart) {
  testing::RunRanks(kRanks, [this](int r) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto staged,
                                  StagedCommunicator::Create(world_->worlds[r]->communicator(), fakes_.device));
    CapturingRank rank(*staged, CapturingRank::Options());
    rank.Capture([&] { EXPECT_THAT(rank.Backward(), FailedPrecondition("staged", "choose the back end nccl")); });
  });
}

TEST_F(ReducerCapture, MarksOnOtherStreamsAreRefused) {
  OnCapturingRanks([](CapturingRank& rank) {
    const auto other = rank.communicator().accelerator()->CreateStream("other").value();
    // A step that was not begun as a captured one.
    LOCKSTEP_EXPECT_OK(rank.Begin());
    rank.Capture(
        [&] { EXPECT_THAT(rank.Mark(0, &rank.stream()), FailedPrecondition("name the stream in begin_backward")); });
    rank.MarkAll(rank.order());
    LOCKSTEP_EXPECT_OK(rank.End(&rank.stream()));
    LOCKSTEP_EXPECT_OK(rank.Synchronize());
    // And one that was.
    void* const graph = rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.Begin(rank.InStream()));
      for (Stream* const stream : {other.get(), static_cast<Stream*>(nullptr)}) {
        EXPECT_THAT(rank.Mark(0, stream), FailedPrecondition("the gradient's stream is not"));
      }
      rank.MarkAll(rank.order());
      LOCKSTEP_EXPECT_OK(rank.End(&rank.stream()));
    });
    rank.Replay(graph, 2);
  });
}

TEST_F(ReducerCapture, ABackwardWithoutSyncIssuesNothing) {
  OnCapturingRanks(
      [](CapturingRank& rank) {
        BackwardOptions backward = rank.InStream();
        backward.sync = false;
        EXPECT_NE(rank.CaptureStep(backward), nullptr);
        rank.ExpectStep(1);
      },
      [](ReducerOptions* options) { options->optimizer = Nothing; });  // refused with sync
}

// ---- What goes wrong

// With some, and with all of them, when our streams have nothing to follow into the capture but its beginning.
TEST_F(ReducerCapture, GradientsThatWereMissingFailEachReplayOnEveryRank) {
  for (const std::vector<size_t>& marked : {std::vector<size_t>{0, 1, 3, 4, 5, 6}, std::vector<size_t>()}) {
    OnCapturingRanks([&marked](CapturingRank& rank) {
      const bool failing = rank.rank() == 1;
      rank.ExpectStep(0);
      void* const good = rank.CaptureStep();
      void* const graph = rank.Capture([&] {
        const absl::Status ended = rank.Backward(rank.InStream(), failing ? marked : rank.order());
        EXPECT_EQ(ended.ok(), !failing) << ended;
        if (failing) {
          EXPECT_THAT(ended, FailedPrecondition("captured backward 3, each launch of which fails on every",
                                                "no gradient came for parameter"));
        }
      });
      rank.Replay(good, 1);
      for (int replay = 0; replay < 2; ++replay) {
        rank.Compute(5);
        rank.Launch(graph);
        EXPECT_THAT(rank.reducer().CheckReplays(),
                    FailedPrecondition(StartsWith("a replay: backward 3 is incomplete: rank 1: no gradient came"),
                                       "parameter 2", "No gradient of the buckets"));
        rank.ExpectLocal(2, 5);
      }
      rank.ExpectStep(6);
    });
  }
}

// What would tell the other ranks has been captured by then.
TEST_F(ReducerCapture, AMarkTooManyIsThisRanksErrorAndItsGraphIsNotToBeLaunched) {
  OnCapturingRanks([](CapturingRank& rank) {
    rank.ExpectStep(0);
    rank.Capture([&] {
      LOCKSTEP_EXPECT_OK(rank.Begin(rank.InStream()));
      rank.MarkAll(rank.order());
      const bool failing = rank.rank() == 1;
      if (failing) {
        EXPECT_THAT(rank.Mark(2, &rank.stream()), FailedPrecondition("marked ready twice"));
      }
      const absl::Status ended = rank.End(&rank.stream());
      EXPECT_EQ(ended.ok(), !failing) << ended;
      if (failing) {
        EXPECT_THAT(ended,
                    FailedPrecondition("its graph must not be launched", "'p2' (f32[90]) was marked ready twice"));
      }
    });
    rank.ExpectStep(6);
  });
}

TEST_F(ReducerCapture, WhatEndsTheCaptureEndsTheStepAndNothingElse) {
  OnCapturingRanks([](CapturingRank& rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto barrier, rank.communicator().Duplicate());
    rank.ExpectStep(0);
    ASSERT_EQ(BeginCapture(rank.stream().native()), 0);
    LOCKSTEP_EXPECT_OK(rank.Begin(rank.InStream()));
    rank.MarkAll({0, 1, 2, 3, 4});
    // On either rank it ends the captures of both.
    LOCKSTEP_EXPECT_OK(barrier->Run({}));
    void* memory = nullptr;
    EXPECT_EQ(TheCudaApi().malloc(&memory, 64), kCudaCaptureUnsupported);
    LOCKSTEP_EXPECT_OK(barrier->Run({}));
    rank.MarkAll({5, 6});
    EXPECT_THAT(rank.End(&rank.stream()),
                FailedPrecondition("captured backward 2, which is not whole: its graph must not be launched"));
    void* graph = nullptr;
    EXPECT_EQ(EndCapture(rank.stream().native(), &graph), kCudaCaptureInvalidated);
    LOCKSTEP_EXPECT_OK(rank.communicator().status());
    rank.ExpectStep(1);
    rank.Replay(rank.CaptureStep(), 2);
  });
}

TEST_F(ReducerCapture, ABackwardThatOutlivesItsCaptureIsGivenUp) {
  OnCapturingRanks([](CapturingRank& rank) {
    for (const bool named : {true, false}) {
      ASSERT_EQ(BeginCapture(rank.stream().native()), 0);
      LOCKSTEP_EXPECT_OK(rank.Begin(rank.InStream()));
      rank.MarkAll({3, 4, 5, 6});
      void* graph = nullptr;
      EXPECT_EQ(EndCapture(rank.stream().native(), &graph), kCudaCaptureUnjoined);
      EXPECT_THAT(rank.End(named ? &rank.stream() : nullptr), FailedPrecondition("was being captured", "given up"));
    }
    rank.ExpectStep(1);
  });
}

TEST_F(ReducerCapture, AveragesOfACapturedBackwardAreNotToBeAskedFor) {
  OnCapturingRanks([](CapturingRank& rank) {
    void* const graph = rank.CaptureStep();
    EXPECT_THAT(rank.reducer().AverageOf(0), FailedPrecondition("the last backward was captured"));
    rank.Replay(graph, 0);
    rank.ExpectStep(1);
    EXPECT_THAT(rank.reducer().AverageOf(0), IsOk());
  });
}

TEST_F(ReducerCapture, AFailedCommunicatorIsToldByTheCheck) {
  absl::Barrier captured(2);  // an abort would end the capture of a rank that is not so far
  OnCapturingRanks([&](CapturingRank& rank) {
    rank.CaptureStep();
    captured.Block();
    rank.communicator().Abort("the test says so");
    EXPECT_THAT(rank.reducer().CheckReplays(), Aborted("the test says so"));
  });
}

}  // namespace
}  // namespace lockstep::testing

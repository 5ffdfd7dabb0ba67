// A step that goes wrong on one rank: what the others are told, what stays untouched, and that the next step is right, or that
// nobody hangs when there can be none.

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "base/error_info.h"
#include "comm/schedule/schedule.h"
#include "reducer/reducer_testing.h"
#include "tests/noting_communicator.h"

namespace lockstep::testing {
namespace {

Deadline Soon() { return Deadline::AfterMs(15000); }

ReducerOptions BucketEach(bool overlap = true) {
  ReducerOptions options = Caps({0});
  options.overlap = overlap;
  return options;
}

// EXPECTs that the gradients are this rank's own after a failure of the communicator, where that is promised: a device goes on with what
// was issued, so there they are undefined (reducer/pipeline/device_pipeline.cc).
void ExpectUntouched(const Replica& replica, int step) {
  if (OnHost()) replica.ExpectLocals(step);
}

struct Way {
  const char* name;
  ReducerOptions options;
};

Way WayOf(const char* name, bool overlap, size_t in_memory_max, Average average) {
  Way way{name, BucketEach(overlap)};
  way.options.buckets_in_memory_max = in_memory_max;
  way.options.copy_gradients = in_memory_max > 0;
  way.options.average = average;
  return way;
}

class MissingGradient : public ::testing::TestWithParam<Way> {
 protected:
  ReducerOptions options() const { return GetParam().options; }
};

INSTANTIATE_TEST_SUITE_P(Reducer, MissingGradient,
                         ::testing::Values(WayOf("WithOverlap", true, 0, Average::kBefore),
                                           WayOf("WithoutOverlap", false, 0, Average::kBefore),
                                           WayOf("OneInMemory", true, 1, Average::kAfter),
                                           WayOf("TwoInMemoryWithoutOverlap", false, 2, Average::kInCollective)),
                         [](const auto& info) { return info.param.name; });

// Five parameters in five buckets, and p2 is missing: its bucket and those behind it, of p1 and p0, must stay as they were.
TEST_P(MissingGradient, OnAnyRanksIsTheSameErrorOnAllAndTheNextStepIsRight) {
  const std::set<int> cases[] = {{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}};
  for (const std::set<int>& forgetful : cases) {
    std::vector<std::string> messages(3);
    RunWorkers(3, Vectors(5, 20), options(), [&](Worker& worker) {
      worker.ExpectStep(0);
      const bool forgets = forgetful.count(worker.rank()) > 0;
      const absl::Status result = worker.Step(1, forgets ? worker.OrderWithout(2) : worker.order());
      EXPECT_THAT(result, FailedPrecondition());
      messages[worker.rank()] = std::string(result.message());
      worker.ExpectLocals({0, 1, 2}, 1);
      worker.ExpectAverages({3, 4}, 1);

      LOCKSTEP_EXPECT_OK(worker.communicator().status());
      for (int step = 2; step < 4; ++step) worker.ExpectStep(step);
    });
    EXPECT_THAT(messages, Each(messages[0]));
    EXPECT_THAT(messages[0], HasSubstr("backward 2 is incomplete"));
    for (int rank = 0; rank < 3; ++rank) {
      const std::string named = absl::StrCat("rank ", rank, ": no gradient came for parameter 2 'p2' (f32[20])");
      EXPECT_EQ(messages[0].find(named) != std::string::npos, forgetful.count(rank) > 0) << messages[0];
    }
  }
}

TEST_P(MissingGradient, MayBeAnotherOneOnEveryRank) {
  RunWorkers(3, Vectors(4, 20), options(), [](Worker& worker) {
    // The first hole of all is p2's, in the second bucket.
    EXPECT_THAT(worker.Step(0, worker.OrderWithout(worker.rank())),
                FailedPrecondition("rank 0: no gradient came for parameter 0 'p0'",
                                   "rank 1: no gradient came for parameter 1 'p1'",
                                   "rank 2: no gradient came for parameter 2 'p2'"));
    worker.ExpectLocals({0, 1, 2}, 0);
    worker.ExpectAverage(3, 0);
    worker.ExpectStep(1);
  });
}

TEST_P(MissingGradient, MayBeAllOfThem) {
  RunWorkers(2, Vectors(30, 2), options(), [](Worker& worker) {
    EXPECT_THAT(
        worker.Step(0, worker.rank() == 0 ? worker.order() : Order()),
        FailedPrecondition("rank 1: no gradient came for parameter 0 'p0' (f32[2]), parameter 1 'p1'",
                           "parameter 19 'p19' (f32[2]), and 10 more (set find_unused", Not(HasSubstr("'p20'"))));
    worker.ExpectLocals(0);
    worker.ExpectStep(1);
  });
}

TEST_P(MissingGradient, LeavesItsWholeBucketAlone) {
  ReducerOptions one_each = options();
  one_each.bucket_caps_bytes = {SIZE_MAX};
  RunWorkers(2, MixedTable(), one_each, [](Worker& worker) {
    // f32, whose bucket is the last: the other dtypes' are averaged.
    EXPECT_THAT(worker.Step(0, worker.rank() == 0 ? worker.order() : worker.OrderWithout(0)),
                FailedPrecondition("rank 1: no gradient came for parameter 0 'f32'"));
    for (const size_t index : worker.order()) {
      const bool untouched = worker.table()[index].dtype == DType::kF32;
      untouched ? worker.ExpectLocal(index, 0) : worker.ExpectAverage(index, 0);
    }
  });
}

TEST_P(MissingGradient, LosesNothingOnAStream) {
  RunWorkers(2, Vectors(3, 20), options(), [](Worker& worker) {
    worker.BeginStep(0);
    worker.MarkAll(worker.rank() == 0 ? worker.order() : worker.OrderWithout(1), &worker.stream());
    const auto incomplete = FailedPrecondition("rank 1: no gradient came for parameter 1 'p1'");
    if (worker.rank() == 1) {
      EXPECT_THAT(worker.End(&worker.stream()), incomplete);
    } else {
      // It does not wait, and learns it at the next step, once: on the host as that begins, on a device at its end.
      LOCKSTEP_EXPECT_OK(worker.End(&worker.stream()));
      if (OnHost()) {
        EXPECT_THAT(worker.Begin(), incomplete);
      }
    }
    LOCKSTEP_EXPECT_OK(worker.stream().Synchronize(Soon()));
    worker.ExpectLocals({0, 1}, 0);
    worker.ExpectAverage(2, 0);
    const absl::Status next = worker.Step(1);
    if (worker.rank() == 1 || OnHost()) {
      LOCKSTEP_EXPECT_OK(next);
    } else {
      EXPECT_THAT(next, incomplete);
    }
    worker.ExpectAverages(1);
    LOCKSTEP_EXPECT_OK(worker.Step(2));
  });
}

// The mark is one element of the last bucket, and counts ranks in its dtype: up to 8 in f8e5m2. So many notes are awaited: a
// rank that took fewer would name other ranks than the rest does.
TEST(MissingGradients, AreCountedInEveryDType) {
  class CheckedNotes : public NotingCommunicator {
   public:
    CheckedNotes(Communicator* communicator, MemoryMessageBoard* board, int awaited)
        : NotingCommunicator(communicator, board), awaited_(awaited) {}
    absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                            Deadline deadline) override {
      EXPECT_EQ(count, awaited_);
      return NotingCommunicator::AwaitMessages(topic, count, deadline);
    }

   private:
    const int awaited_;
  };
  for (const auto& [size, average] :
       {std::make_pair(3, Average::kBefore), std::make_pair(10, Average::kBefore),
        std::make_pair(3, Average::kInCollective), std::make_pair(10, Average::kInCollective)}) {
    ReducerOptions options;
    options.average = average;
    options.replan = false;  // which awaits a note too
    options.copy_gradients = true;
    for (const DType dtype : kAllDTypes) {
      if (!IsFloat(dtype) && !IsComplex(dtype)) continue;
      LoopbackWorld world(size, {}, ShortTimeout());
      const ReduceOp op = average == Average::kInCollective ? ReduceOp::kAvg : ReduceOp::kSum;
      // Over NCCL, averages of 8-bit floats.
      const bool supported = world.communicator(0)->Supports(Collective::kAllReduce, dtype, op).ok();
      MemoryMessageBoard board;
      world.Run([&, ranks = size](Communicator& communicator) {
        CheckedNotes noting(&communicator, &board, dtype == DType::kF8E5M2 ? std::min(ranks, 8) : ranks);
        const std::string w = absl::StrCat("parameter 0 'w' (", Name(dtype), "[5])");
        const auto reducer = Reducer::Create(&noting, {MakeParameter("w", dtype, {5})}, options);
        if (!supported) {
          EXPECT_THAT(reducer, Fails(absl::StatusCode::kUnimplemented, absl::StrCat("averages of ", w)));
          return;
        }
        LOCKSTEP_ASSERT_OK(reducer);
        LOCKSTEP_EXPECT_OK((*reducer)->BeginBackward({}));
        EXPECT_THAT((*reducer)->EndBackward(nullptr), FailedPrecondition(absl::StrCat("no gradient came for ", w)));
      });
    }
  }
}

ReducerOptions With(bool ReducerOptions::*option) {
  ReducerOptions options = BucketEach();
  options.*option = true;
  return options;
}

TEST(MissingGradients, OfOneReducerAreNotTakenForAnothers) {
  RunWorld(2, [](Communicator& communicator) {
    // The same step of each: rank 0 forgets in the first, rank 1 in the second.
    for (const int forgetful : {0, 1}) {
      Worker worker(communicator, Vectors(3, 20), BucketEach());
      const size_t missing = forgetful + 1;
      EXPECT_THAT(worker.Step(0, worker.rank() == forgetful ? worker.OrderWithout(missing) : worker.order()),
                  FailedPrecondition(absl::StrCat("rank ", forgetful, ": no gradient came for parameter ", missing),
                                     Not(HasSubstr(absl::StrCat("rank ", 1 - forgetful, ":")))));
    }
  });
}

TEST(MissingGradients, AreAnErrorWithoutNotesToo) {
  // A communicator without a control channel has none.
  class Mute : public NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    void PostMessage(uint64_t topic, const std::string& text) override {}
    absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                            Deadline deadline) override {
      return absl::UnimplementedError("no notes here");
    }
  };
  RunWorld(2, [](Communicator& communicator) {
    Mute mute(&communicator, nullptr);
    Worker worker(mute, Vectors(3, 20), BucketEach());
    EXPECT_THAT(worker.Step(0, worker.rank() == 0 ? worker.order() : worker.OrderWithout(1)),
                FailedPrecondition("1 rank(s) failed, whose messages did not arrive (no notes here)"));
    worker.ExpectStep(1);
  });
}

TEST(ReducerFailure, OfAStreamIsToldToTheOtherRanks) {
  for (const size_t failing : {0, 1, 2}) {
    RunWorkers(3, Vectors(3, 20), BucketEach(), [&](Worker& worker) {
      worker.BeginStep(0);
      if (worker.rank() == 1) {
        LOCKSTEP_EXPECT_OK(worker.stream().Enqueue([] { return absl::InternalError("bad kernel"); }));
        // On a device the others are told what is known when the bucket is launched.
        if (!OnHost()) {
          EXPECT_THAT(worker.stream().Synchronize(Soon()), Fails(absl::StatusCode::kInternal, "bad kernel"));
        }
      }
      for (const size_t index : {2, 1, 0}) worker.MarkAll({index}, index == failing ? &worker.stream() : nullptr);
      EXPECT_THAT(worker.End(), FailedPrecondition("rank 1: the stream of a gradient failed: bad kernel"));
      for (size_t index = 0; index <= failing; ++index) worker.ExpectLocal(index, 0);
      worker.ExpectStep(1);
    });
  }
}

TEST(ReducerFailure, ToLaunchABucketAbortsTheCommunicator) {
  class Refusing : public NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                         absl::AnyInvocable<void(const absl::Status&)> done) override {
      return absl::ResourceExhaustedError("no room");
    }
  };
  MemoryMessageBoard board;
  RunWorld(2, [&](Communicator& communicator) {
    Refusing refusing(&communicator, &board);
    const bool refuses = communicator.rank() == Rank(0);
    Worker worker(refuses ? static_cast<Communicator&>(refusing) : communicator, Vectors(3, 20),
                  With(&ReducerOptions::copy_gradients));
    // The last of the creation's collectives is a broadcast: its root may be through while the other has not begun it.
    LOCKSTEP_ASSERT_OK(communicator.Run(CollectiveRequest()));
    const absl::Status result = worker.Step(0);
    if (refuses) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, "bucket 0: no room"));
      EXPECT_THAT(worker.Begin(), Aborted("a bucket cannot be launched: bucket 0: no room"));
    } else {
      EXPECT_THAT(result, Aborted());
    }
    ExpectUntouched(worker, 0);
  });
}

TEST(ReducerFailure, OfAPeerInTheMiddleOfAStepEndsItOnTheSurvivors) {
  for (const bool overlap : {true, false}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    const auto workers = MakeWorkers(world, Vectors(4, 1000), BucketEach(overlap));
    RunRanks(3, [&](int rank) {
      LOCKSTEP_EXPECT_OK(workers[rank]->Step(0));
      workers[rank]->BeginStep(1);
      if (rank != 2) workers[rank]->MarkAll({3, 2});
    });
    world.network().Disconnect(Rank(2));
    RunRanks(2, [&](int rank) {
      Worker& worker = *workers[rank];
      worker.MarkAll({1, 0});
      const absl::Status error = worker.End();
      const ErrorInfo info = GetErrorInfo(error);
      EXPECT_THAT(error, Aborted(absl::StrCat("bucket ", info.bucket.value_or(-1), ": all_reduce"), "rank "));
      EXPECT_EQ(info.collective, "all_reduce");
      EXPECT_TRUE(info.failed_rank.has_value()) << error;
      ExpectUntouched(worker, 1);
      EXPECT_THAT(worker.Begin(), Aborted());
      EXPECT_THAT(worker.Mark(0), FailedPrecondition("outside a backward"));
    });
  }
}

TEST(ReducerFailure, AnAbortDuringBackwardIsReturnedAtItsEnd) {
  LoopbackWorld world(2, {}, ShortTimeout());
  const auto workers = MakeWorkers(world, Vectors(3, 20), BucketEach());
  RunRanks(2, [&](int rank) { workers[rank]->BeginStep(0); });
  // Begun on both, since a communicator may tell the other of it at once.
  RunRanks(2, [&](int rank) {
    Worker& worker = *workers[rank];
    worker.communicator().Abort("the user lost patience");
    worker.MarkAll({2, 1, 0});
    EXPECT_THAT(worker.End(), Aborted("the user lost patience"));
    worker.ExpectLocals(0);
    EXPECT_THAT(worker.Begin(), Aborted("the user lost patience"));
  });
}

TEST(ReducerFailure, MayBeDestroyedWithABackwardInProgress) {
  RunWorkers(2, Vectors(3, 20), BucketEach(), [](Worker& worker) {
    worker.BeginStep(0);
    worker.MarkAll({2, 1});
    worker.DestroyReducer();
    // What was launched was finished.
    worker.ExpectAverages({1, 2}, 0);
    worker.ExpectLocal(0, 0);
    // And another takes its place.
    Worker another(worker.communicator(), worker.table(), BucketEach());
    another.ExpectStep(1);
  });
}

// Rank 1 has marked none of its three gradients, or some, or all but one, in each mode. The buckets that it launched are averages, unless
// preserve_gradients is set.
TEST(ReducerFailure, OfAStepWhoseReducerIsDestroyedIsToldToTheOthers) {
  ReducerOptions optimized = BucketEach(), delayed = BucketEach();
  optimized.optimizer = [](const ReducedBucket&) { return absl::OkStatus(); };
  delayed.delayed = {2};
  delayed.delayed_trigger = 0;
  ReducerOptions in_turns = With(&ReducerOptions::copy_gradients);
  in_turns.buckets_in_memory_max = 1;
  for (const ReducerOptions& options :
       {BucketEach(), BucketEach(/*overlap=*/false), With(&ReducerOptions::find_unused),
        With(&ReducerOptions::static_graph), With(&ReducerOptions::gradient_as_bucket_view),
        With(&ReducerOptions::copy_gradients), With(&ReducerOptions::uneven_inputs),
        With(&ReducerOptions::preserve_gradients), optimized, delayed, in_turns}) {
    for (const size_t marks : {0, 1, 2}) {
      RunWorkers(3, Vectors(3, 20), options, [&](Worker& worker) {
        worker.ExpectStep(0, {2, 1, 0});
        if (worker.rank() == 1) {
          worker.BeginStep(1);
          for (size_t i = 0; i < marks; ++i) LOCKSTEP_EXPECT_OK(worker.Mark(2 - i));
          worker.DestroyReducer();
          worker.ExpectLocal(0, 1);
          if (options.preserve_gradients) worker.ExpectLocal(2, 1);
        } else {
          const absl::Status result = worker.Step(1, {2, 1, 0});
          EXPECT_THAT(result, FailedPrecondition("backward 2 is incomplete: rank 1: its reducer was destroyed"));
          EXPECT_EQ(GetErrorInfo(result).failed_rank, 1);
          worker.ExpectLocal(0, 1);
          worker.DestroyReducer();
        }
        LOCKSTEP_EXPECT_OK(worker.communicator().status());
        Worker another(worker.communicator(), worker.table(), options);
        another.ExpectStep(2, {2, 1, 0});
      });
    }
  }
}

TEST(ReducerFailure, DestructionOutsideASynchronisedStepIsNoFailure) {
  RunWorkers(2, Vectors(3, 20), BucketEach(), [](Worker& worker) {
    worker.ExpectStep(0);
    if (worker.rank() == 1) {
      LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
      worker.MarkAll({2});
    }
    worker.DestroyReducer();
    Worker another(worker.communicator(), worker.table(), BucketEach());
    another.BeginStep(1);
    another.MarkAll({2, 1, 0});
    // Everything of rank 1 was sent.
    if (worker.rank() == 1) return another.DestroyReducer();
    another.EndStep(1);
  });
}

TEST(ReducerFailure, DestructionWaitsForNoPeerOnceTheCommunicatorIsAborted) {
  TransportCommunicatorOptions options;
  options.timeout = std::chrono::hours(24);  // a wait for rank 1, which never takes part, would last as long
  LoopbackWorld world(2, {}, options);
  const auto workers = MakeWorkers(world, Vectors(3, 20), BucketEach());
  Worker& worker = *workers[0];
  worker.BeginStep(0);
  worker.MarkAll({2, 1, 0});
  world.communicator(0)->Abort("test");
  worker.DestroyReducer();
  ExpectUntouched(worker, 0);
}

TEST(ReducerFailure, ALateRankIsADeadlineExceededOnTheOther) {
  TransportCommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(3000);  // what both do before must not take as long on a busy machine
  LoopbackWorld world(2, {}, options);
  const auto workers = MakeWorkers(world, Vectors(3, 20), BucketEach());
  const absl::Status error = workers[0]->Step(0);
  EXPECT_THAT(error, Fails(absl::StatusCode::kDeadlineExceeded, "bucket 0: all_reduce #", "did not finish"));
  EXPECT_EQ(GetErrorInfo(error).bucket, 0);
  EXPECT_EQ(GetErrorInfo(error).collective, "all_reduce");
  // A device tells the communicator's error, which is of no one call.
  if (OnHost()) {
    EXPECT_THAT(error.message(), HasSubstr(" B, sent "));
    EXPECT_TRUE(GetErrorInfo(error).sequence.has_value());
  }
  ExpectUntouched(*workers[0], 0);
}

}  // namespace
}  // namespace lockstep::testing

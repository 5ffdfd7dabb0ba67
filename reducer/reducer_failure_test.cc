// A step that goes wrong on one rank: what the others are told, what stays untouched, and that the next step is right, or that
// nobody hangs when there can be none.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/noting_communicator.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using ::testing::Not;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

Deadline Soon() { return Deadline::AfterMs(15000); }

ReducerOptions BucketEach(bool overlap = true) {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.overlap = overlap;
  return options;
}

// All but one.
std::vector<size_t> Without(const Replica& replica, size_t missing) {
  std::vector<size_t> order;
  for (const size_t index : replica.order()) {
    if (index != missing) order.push_back(index);
  }
  return order;
}

// EXPECTs that the gradients are this rank's own after a failure of the communicator, where that is promised: a device goes on with what
// was issued, so there they are undefined (reducer/pipeline/device_pipeline.h).
void ExpectUntouched(const Replica& replica, int step) {
  if (!testing::OnHost()) return;
  for (const size_t index : replica.order()) replica.ExpectLocal(index, step);
}

struct Way {
  const char* name;
  ReducerOptions options;
};

Way WayOf(const char* name, bool overlap, size_t in_memory_max, Average average) {
  Way way{name, BucketEach(overlap)};
  way.options.buckets_in_memory_max = in_memory_max;
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
  const std::vector<std::vector<int>> cases = {{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}};
  for (const std::vector<int>& forgetful : cases) {
    LoopbackWorld world(3, {}, ShortTimeout());
    std::vector<std::string> messages(3);
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      const bool forgets = std::find(forgetful.begin(), forgetful.end(), rank) != forgetful.end();
      Replica replica(Vectors(5, 20), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options()));
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));

      const absl::Status result = replica.RunStep(*reducer, 1, forgets ? Without(replica, 2) : replica.order());
      EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition);
      messages[rank] = std::string(result.message());
      for (const size_t index : {0, 1, 2}) replica.ExpectLocal(index, 1);
      for (const size_t index : {3, 4}) replica.ExpectAverage(index, 3, {1});

      LOCKSTEP_EXPECT_OK(communicator.status());
      for (int step = 2; step < 4; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
        replica.ExpectAverages(3, {step});
      }
    });
    EXPECT_THAT(messages, Each(messages[0]));
    EXPECT_THAT(messages[0], HasSubstr("backward 2 is incomplete"));
    for (int rank = 0; rank < 3; ++rank) {
      const auto named = HasSubstr(absl::StrCat("rank ", rank, ": no gradient came for parameter 2 'p2' (f32[20])"));
      if (std::find(forgetful.begin(), forgetful.end(), rank) != forgetful.end()) {
        EXPECT_THAT(messages[0], named);
      } else {
        EXPECT_THAT(messages[0], Not(named));
      }
    }
  }
}

TEST_P(MissingGradient, MayBeAnotherOneOnEveryRank) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, 20), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options()));
    // The first hole of all is p2's, in the second bucket.
    EXPECT_THAT(replica.RunStep(*reducer, 0, Without(replica, rank)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 0: no gradient came for parameter 0 'p0'"),
                               HasSubstr("rank 1: no gradient came for parameter 1 'p1'"),
                               HasSubstr("rank 2: no gradient came for parameter 2 'p2'"))));
    for (const size_t index : {0, 1, 2}) replica.ExpectLocal(index, 0);
    replica.ExpectAverage(3, 3, {0});
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(3, {1});
  });
}

TEST_P(MissingGradient, MayBeAllOfThem) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(30, 2), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options()));
    EXPECT_THAT(replica.RunStep(*reducer, 0, rank == 0 ? replica.order() : std::vector<size_t>()),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 1: no gradient came for parameter 0 'p0' (f32[2]), parameter 1 'p1'"),
                               HasSubstr("parameter 19 'p19' (f32[2]), and 10 more (set find_unused"),
                               Not(HasSubstr("'p20'")))));
    for (const size_t index : replica.order()) replica.ExpectLocal(index, 0);
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(2, {1});
  });
}

TEST_P(MissingGradient, LeavesItsWholeBucketAlone) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(testing::MixedTable(), rank);
    ReducerOptions one_each = options();
    one_each.bucket_caps_bytes = {SIZE_MAX};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), one_each));
    // f32, whose bucket is the last: the other dtypes' are averaged.
    EXPECT_THAT(
        replica.RunStep(*reducer, 0, rank == 0 ? replica.order() : Without(replica, 0)),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1: no gradient came for parameter 0 'f32'")));
    for (const size_t index : replica.order()) {
      if (replica.table()[index].dtype == DType::kF32) {
        replica.ExpectLocal(index, 0);
      } else {
        replica.ExpectAverage(index, 2, {0});
      }
    }
  });
}

TEST_P(MissingGradient, LosesNothingOnAStream) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(3, 20), rank);
    const std::unique_ptr<Stream> stream = testing::TestDevice(rank)->CreateStream("test").value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options()));
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.MarkAll(*reducer, rank == 0 ? replica.order() : Without(replica, 1), stream.get());
    const auto incomplete =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1: no gradient came for parameter 1 'p1'"));
    if (rank == 1) {
      EXPECT_THAT(reducer->EndBackward(stream.get()), incomplete);
    } else {
      // It does not wait, and learns it at the next step, once: on the host as that begins, on a device at its end.
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(stream.get()));
      if (testing::OnHost()) {
        EXPECT_THAT(reducer->BeginBackward({}), incomplete);
      }
    }
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
    for (const size_t index : {0, 1}) replica.ExpectLocal(index, 0);
    replica.ExpectAverage(2, 2, {0});
    const absl::Status next = replica.RunStep(*reducer, 1);
    if (rank == 1 || testing::OnHost()) {
      LOCKSTEP_EXPECT_OK(next);
    } else {
      EXPECT_THAT(next, incomplete);
    }
    replica.ExpectAverages(2, {1});
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 2));
  });
}

// The mark is one element of the last bucket, and counts ranks in its dtype: up to 8 in f8e5m2. So many notes are awaited: a
// rank that took fewer would name other ranks than the rest does.
TEST(MissingGradients, AreCountedInEveryDType) {
  class CheckedNotes : public testing::NotingCommunicator {
   public:
    CheckedNotes(Communicator* communicator, testing::MemoryMessageBoard* board, int awaited)
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
    for (const DType dtype : kAllDTypes) {
      if (!IsFloat(dtype) && !IsComplex(dtype)) continue;
      LoopbackWorld world(size, {}, ShortTimeout());
      const ReduceOp op = average == Average::kInCollective ? ReduceOp::kAvg : ReduceOp::kSum;
      // Over NCCL, averages of 8-bit floats.
      const bool supported = world.communicator(0)->Supports(Collective::kAllReduce, dtype, op).ok();
      testing::MemoryMessageBoard board;
      world.Run([&, ranks = size](Communicator& communicator) {
        CheckedNotes noting(&communicator, &board, dtype == DType::kF8E5M2 ? std::min(ranks, 8) : ranks);
        const auto reducer = Reducer::Create(&noting, {testing::MakeParameter("w", dtype, {5})}, options);
        if (!supported) {
          EXPECT_THAT(reducer, StatusIs(absl::StatusCode::kUnimplemented,
                                        HasSubstr(absl::StrCat("averages of parameter 0 'w' (", Name(dtype), "[5])"))));
          return;
        }
        LOCKSTEP_ASSERT_OK(reducer);
        LOCKSTEP_EXPECT_OK((*reducer)->BeginBackward({}));
        EXPECT_THAT((*reducer)->EndBackward(nullptr),
                    StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr(absl::StrCat("no gradient came for parameter 0 'w' (", Name(dtype), "[5])"))));
      });
    }
  }
}

// Rank 1 marks p2 as another dtype, and does not look at the error.
TEST(RefusedMark, IsToldOnAllRanksUnlessItComesAgain) {
  ReducerOptions find_unused = BucketEach();
  find_unused.find_unused = true;
  ReducerOptions static_graph = BucketEach();
  static_graph.static_graph = true;
  ReducerOptions views = BucketEach();
  views.gradient_as_bucket_view = true;
  for (const ReducerOptions& options :
       {BucketEach(), BucketEach(/*overlap=*/false), find_unused, static_graph, views}) {
    for (const bool again : {false, true}) {
      LoopbackWorld world(3, {}, ShortTimeout());
      std::vector<std::string> messages(3);
      world.Run([&](Communicator& communicator) {
        const int rank = communicator.rank().value();
        Replica replica(Vectors(4, 20), rank);
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
        testing::ReachableVector<double> memory(20);
        replica.Compute(1);
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
        if (rank == 1) {
          EXPECT_THAT(reducer->MarkReady(2, testing::VectorView(memory.data(), DType::kF64, 20), nullptr),
                      StatusIs(absl::StatusCode::kInvalidArgument));
        }
        replica.MarkAll(*reducer, rank == 1 && !again ? Without(replica, 2) : replica.order());
        const absl::Status result = reducer->EndBackward(nullptr);
        messages[rank] = std::string(result.message());
        if (again) {
          LOCKSTEP_EXPECT_OK(result);
          replica.ExpectAverages(3, {1});
        } else {
          EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition);
        }
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 2));
        replica.ExpectAverages(3, {2});
      });
      EXPECT_THAT(messages, Each(messages[0]));
      if (again) continue;
      EXPECT_THAT(messages[0],
                  AllOf(HasSubstr("rank 1: a mark was refused (mark_ready: the gradient f64[20] "),
                        HasSubstr("does not match parameter 2 'p2' (f32[20])"), Not(HasSubstr("no gradient came")),
                        Not(HasSubstr("find_unused")), Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2"))));
    }
  }
}

// A second mark says that the gradient went on after the first: what is averaged is not all of it.
TEST(RefusedMark, ThatIsOneTooManyIsToldOnAllRanksWhileSomethingIsLeftToSend) {
  ReducerOptions static_graph = BucketEach();
  static_graph.static_graph = true;
  for (const ReducerOptions& options : {BucketEach(), static_graph}) {
    for (const bool late : {false, true}) {
      LoopbackWorld world(2, {}, ShortTimeout());
      world.Run([&](Communicator& communicator) {
        const int rank = communicator.rank().value();
        Replica replica(Vectors(3, 20), rank);
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
        replica.Compute(1);
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
        const auto mark = [&](size_t index) { return reducer->MarkReady(index, replica.gradient(index), nullptr); };
        LOCKSTEP_EXPECT_OK(mark(2));
        if (rank == 1 && !late) {
          EXPECT_THAT(mark(2), StatusIs(absl::StatusCode::kFailedPrecondition));
        }
        LOCKSTEP_EXPECT_OK(mark(1));
        LOCKSTEP_EXPECT_OK(mark(0));
        if (rank == 1 && late) {
          EXPECT_THAT(mark(2), StatusIs(absl::StatusCode::kFailedPrecondition));
        }
        const absl::Status result = reducer->EndBackward(nullptr);
        // Of a static graph the last bucket waits for the end. Otherwise it may have left by then.
        const bool may_have_left = late && !options.static_graph && rank == 0;
        if (!may_have_left || !result.ok()) {
          EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("a mark was refused (mark_ready: "), HasSubstr("'p2'"))));
        }
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 2));
        replica.ExpectAverages(2, {2});
      });
    }
  }
}

TEST(MissingGradients, OfOneReducerAreNotTakenForAnothers) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    // The same step of each: rank 0 forgets in the first, rank 1 in the second.
    for (const int forgetful : {0, 1}) {
      Replica replica(Vectors(3, 20), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
      const size_t missing = forgetful + 1;
      EXPECT_THAT(
          replica.RunStep(*reducer, 0, rank == forgetful ? Without(replica, missing) : replica.order()),
          StatusIs(absl::StatusCode::kFailedPrecondition,
                   AllOf(HasSubstr(absl::StrCat("rank ", forgetful, ": no gradient came for parameter ", missing)),
                         Not(HasSubstr(absl::StrCat("rank ", 1 - forgetful, ":"))))));
    }
  });
}

TEST(MissingGradients, AreAnErrorWithoutNotesToo) {
  // A communicator without a control channel has none.
  class Mute : public testing::NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    void PostMessage(uint64_t topic, const std::string& text) override {}
    absl::StatusOr<std::vector<std::pair<Rank, std::string>>> AwaitMessages(uint64_t topic, int count,
                                                                            Deadline deadline) override {
      return absl::UnimplementedError("no notes here");
    }
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Mute mute(&communicator, nullptr);
    const int rank = communicator.rank().value();
    Replica replica(Vectors(3, 20), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&mute, replica.table(), BucketEach()));
    EXPECT_THAT(replica.RunStep(*reducer, 0, rank == 0 ? replica.order() : Without(replica, 1)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("1 rank(s) failed, whose notes did not arrive (no notes here)")));
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(2, {1});
  });
}

TEST(ReducerFailure, OfAStreamIsToldToTheOtherRanks) {
  for (const size_t failing : {0, 1, 2}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(Vectors(3, 20), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
      replica.Compute(0);
      const std::unique_ptr<Stream> stream = testing::TestDevice(rank)->CreateStream("test").value();
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      if (rank == 1) {
        LOCKSTEP_EXPECT_OK(stream->Enqueue([] { return absl::InternalError("bad kernel"); }));
        // On a device the others are told what is known when the bucket is launched.
        if (!testing::OnHost()) {
          EXPECT_THAT(stream->Synchronize(Soon()), StatusIs(absl::StatusCode::kInternal, HasSubstr("bad kernel")));
        }
      }
      for (const size_t index : {2, 1, 0}) {
        replica.MarkAll(*reducer, {index}, index == failing ? stream.get() : nullptr);
      }
      const absl::Status result = reducer->EndBackward(nullptr);
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("rank 1: the stream of a gradient failed: bad kernel")));
      for (const size_t index : {0, 1, 2}) {
        if (index <= failing) {
          replica.ExpectLocal(index, 0);
        }
      }
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
      replica.ExpectAverages(3, {1});
    });
  }
}

TEST(ReducerFailure, ToLaunchABucketAbortsTheCommunicator) {
  class Refusing : public testing::NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::Status Enqueue(const CollectiveRequest& request, Stream* stream, absl::AnyInvocable<void()> before,
                         absl::AnyInvocable<void(const absl::Status&)> done) override {
      return absl::ResourceExhaustedError("no room");
    }
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  testing::MemoryMessageBoard board;
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Refusing refusing(&communicator, &board);
    Replica replica(Vectors(3, 20), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(rank == 0 ? static_cast<Communicator*>(&refusing) : &communicator,
                                                  replica.table(), BucketEach()));
    // The last of the creation's collectives is a broadcast: its root may be through while the other has not begun it.
    LOCKSTEP_ASSERT_OK(communicator.Run(CollectiveRequest()));
    const absl::Status result = replica.RunStep(*reducer, 0);
    if (rank == 0) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, "bucket 0: no room"));
      EXPECT_THAT(reducer->BeginBackward({}),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("a bucket cannot be launched: bucket 0: no room")));
    } else {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kAborted));
    }
    ExpectUntouched(replica, 0);
  });
}

TEST(ReducerFailure, OfAPeerInTheMiddleOfAStepEndsItOnTheSurvivors) {
  for (const bool overlap : {true, false}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    std::vector<std::unique_ptr<Reducer>> reducers(3);
    std::vector<std::unique_ptr<Replica>> replicas(3);
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      replicas[rank] = std::make_unique<Replica>(Vectors(4, 1000), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank],
                                    Reducer::Create(&communicator, Vectors(4, 1000), BucketEach(overlap)));
      LOCKSTEP_EXPECT_OK(replicas[rank]->RunStep(*reducers[rank], 0));
      replicas[rank]->Compute(1);
      LOCKSTEP_EXPECT_OK(reducers[rank]->BeginBackward({}));
      if (rank != 2) replicas[rank]->MarkAll(*reducers[rank], {3, 2});
    });
    world.network().Disconnect(Rank(2));
    testing::RunRanks(2, [&](int rank) {
      replicas[rank]->MarkAll(*reducers[rank], {1, 0});
      const absl::Status error = reducers[rank]->EndBackward(nullptr);
      const ErrorInfo info = GetErrorInfo(error);
      EXPECT_THAT(error, StatusIs(absl::StatusCode::kAborted,
                                  AllOf(HasSubstr(absl::StrCat("bucket ", info.bucket.value_or(-1), ": all_reduce")),
                                        HasSubstr("rank "))));
      EXPECT_EQ(info.collective, "all_reduce");
      EXPECT_TRUE(info.failed_rank.has_value()) << error;
      ExpectUntouched(*replicas[rank], 1);
      EXPECT_THAT(reducers[rank]->BeginBackward({}), StatusIs(absl::StatusCode::kAborted));
      EXPECT_THAT(reducers[rank]->MarkReady(0, replicas[rank]->gradient(0), nullptr),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("outside a backward")));
    });
  }
}

TEST(ReducerFailure, AnAbortDuringBackwardIsReturnedAtItsEnd) {
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<std::unique_ptr<Replica>> replicas(2);
  std::vector<std::unique_ptr<Reducer>> reducers(2);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    replicas[rank] = std::make_unique<Replica>(Vectors(3, 20), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank],
                                  Reducer::Create(&communicator, replicas[rank]->table(), BucketEach()));
    replicas[rank]->Compute(0);
    LOCKSTEP_EXPECT_OK(reducers[rank]->BeginBackward({}));
  });
  // Begun on both, since a communicator may tell the other of it at once.
  world.Run([&](Communicator& communicator) {
    Replica& replica = *replicas[communicator.rank().value()];
    Reducer& reducer = *reducers[communicator.rank().value()];
    communicator.Abort("the user lost patience");
    replica.MarkAll(reducer, {2, 1, 0});
    EXPECT_THAT(reducer.EndBackward(nullptr),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("the user lost patience")));
    for (const size_t index : replica.order()) replica.ExpectLocal(index, 0);
    EXPECT_THAT(reducer.BeginBackward({}), StatusIs(absl::StatusCode::kAborted, HasSubstr("the user lost patience")));
  });
}

TEST(ReducerFailure, MayBeDestroyedWithABackwardInProgress) {
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<std::unique_ptr<Replica>> replicas(2);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    replicas[rank] = std::make_unique<Replica>(Vectors(3, 20), rank);
    Replica& replica = *replicas[rank];
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.MarkAll(*reducer, {2, 1});
    reducer.reset();
    // What was launched was finished.
    replica.ExpectAverage(2, 2, {0});
    replica.ExpectAverage(1, 2, {0});
    replica.ExpectLocal(0, 0);
    // And another takes its place.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(2, {1});
  });
}

TEST(ReducerFailure, DestructionWaitsForNoPeerOnceTheCommunicatorIsAborted) {
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<std::unique_ptr<Reducer>> reducers(2);
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[communicator.rank().value()],
                                  Reducer::Create(&communicator, Vectors(3, 20), BucketEach()));
  });
  // Rank 1 never takes part, and the deadline of an operation is far away.
  Replica replica(Vectors(3, 20), 0);
  replica.Compute(0);
  LOCKSTEP_EXPECT_OK(reducers[0]->BeginBackward({}));
  replica.MarkAll(*reducers[0], {2, 1, 0});
  const auto begun = std::chrono::steady_clock::now();
  world.communicator(0)->Abort("test");
  reducers[0].reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, ShortTimeout().timeout);
  ExpectUntouched(replica, 0);
}

TEST(ReducerFailure, ALateRankIsADeadlineExceededOnTheOther) {
  TransportCommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(3000);  // what both do before must not take as long on a busy machine
  LoopbackWorld world(2, {}, options);
  std::vector<std::unique_ptr<Reducer>> reducers(2);
  world.Run([&](Communicator& communicator) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[communicator.rank().value()],
                                  Reducer::Create(&communicator, Vectors(3, 20), BucketEach()));
  });
  Replica replica(Vectors(3, 20), 0);
  const absl::Status error = replica.RunStep(*reducers[0], 0);
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr("bucket 0: all_reduce #"), HasSubstr("did not finish"))));
  EXPECT_EQ(GetErrorInfo(error).bucket, 0);
  EXPECT_EQ(GetErrorInfo(error).collective, "all_reduce");
  // A device tells the communicator's error, which is of no one call.
  if (testing::OnHost()) {
    EXPECT_THAT(error.message(), HasSubstr(" B, sent "));
    EXPECT_TRUE(GetErrorInfo(error).sequence.has_value());
  }
  ExpectUntouched(replica, 0);
}

}  // namespace
}  // namespace lockstep

// An optimizer that steps a bucket as soon as it is reduced: when it is called, what it sees, and what it is spared.

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"

namespace lockstep::testing {
namespace {

constexpr int kElements = 10;

Deadline Soon() { return Deadline::AfterMs(15000); }

// What the optimizer was called with: a rank's calls, in order. Thread-safe.
class Calls {
 public:
  struct Call {
    size_t index = 0;
    size_t count = 0;
    std::vector<size_t> parameters;
    std::vector<const void*> places;
    std::vector<std::vector<float>> gradients;
  };

  void Add(const ReducedBucket& bucket) {
    Call call;
    call.index = bucket.index;
    call.count = bucket.count;
    call.parameters.assign(bucket.parameters.begin(), bucket.parameters.end());
    for (const TensorView& gradient : bucket.gradients) {
      call.places.push_back(gradient.data());
      call.gradients.push_back(Floats(gradient));
    }
    MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  // EXPECTs that there are `count`.
  std::vector<Call> Take(size_t count) {
    MutexLock lock(&mu_);
    EXPECT_EQ(calls_.size(), count);
    calls_.resize(count);
    return std::exchange(calls_, {});
  }

 private:
  Mutex mu_;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mu_);
};

// A bucket for each parameter, the last one first, in every step.
ReducerOptions BucketEach(OptimizerStep optimizer) {
  ReducerOptions options = Caps({0});
  options.replan = false;
  options.optimizer = std::move(optimizer);
  return options;
}

// A worker with the calls of its optimizer.
class Stepping : public Calls, public Worker {
 public:
  Stepping(Communicator& communicator, const std::vector<Parameter>& table, ReducerOptions options)
      : Worker(communicator, table, WithCalls(std::move(options))) {}

  // EXPECTs that each gradient was seen, the last one first, with the numbers that it has now.
  void ExpectSeen() {
    const size_t count = table().size();
    const std::vector<Call> taken = Take(count);
    for (size_t b = 0; b < count; ++b) {
      EXPECT_THAT(taken[b].gradients, ElementsAre(Floats(gradient(count - 1 - b))));
    }
  }

 private:
  ReducerOptions WithCalls(ReducerOptions options) {
    options.optimizer = [this](const ReducedBucket& bucket) {
      Add(bucket);
      return absl::OkStatus();
    };
    return options;
  }
};

void RunStepping(int parameters, const ReducerOptions& options, const std::function<void(Stepping&)>& body) {
  RunWorkers<Stepping>(2, Vectors(parameters, kElements), options, body);
}

// Every rank holds its last gradient back until the optimizer has been at work on both ranks.
TEST(OptimizerPerBucket, StepsWhileOthersAreStillUnderWay) {
  Gate stepped[2];
  RunWorld(2, [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Worker worker(communicator, Vectors(3, kElements), BucketEach([&](const ReducedBucket& bucket) {
                    EXPECT_EQ(bucket.count, 3);
                    if (bucket.index == 1) stepped[rank].Open();
                    return absl::OkStatus();
                  }));
    worker.BeginStep(0);
    worker.MarkAll({2, 1});
    for (Gate& gate : stepped) LOCKSTEP_EXPECT_OK(gate.Await(Soon()));
    worker.ExpectAverage(2, 0);
    worker.MarkAll({0});
    worker.EndStep(0);
  });
}

TEST(OptimizerPerBucket, SeesAveragesWhereTheGradientsAre) {
  ReducerOptions options = BucketEach(nullptr);
  options.bucket_caps_bytes = {80};
  RunStepping(5, options, [](Stepping& worker) {
    for (int step = 0; step < 3; ++step) {
      worker.ExpectStep(step);
      // The end has waited for it.
      const std::vector<Calls::Call> taken = worker.Take(3);
      const std::vector<std::vector<size_t>> buckets = {{4, 3}, {2, 1}, {0}};
      for (size_t b = 0; b < 3; ++b) {
        EXPECT_EQ(taken[b].index, b);
        EXPECT_EQ(taken[b].count, 3);
        EXPECT_EQ(taken[b].parameters, buckets[b]);
        ASSERT_EQ(taken[b].gradients.size(), buckets[b].size());
        for (size_t i = 0; i < buckets[b].size(); ++i) {
          const TensorView& gradient = worker.gradient(buckets[b][i]);
          EXPECT_EQ(taken[b].places[i], gradient.data());
          EXPECT_EQ(taken[b].gradients[i], Floats(gradient));
        }
      }
    }
  });
}

TEST(OptimizerPerBucket, IsWaitedForByTheStreamOfTheEnd) {
  if (!OnHost()) GTEST_SKIP() << "on a device the end itself waits until optimizers have been called";
  RunWorld(2, [](Communicator& communicator) {
    Gate gate;  // outlives the streams
    int stepped = 0;
    Worker worker(communicator, Vectors(3, kElements), BucketEach([&](const ReducedBucket&) {
                    ++stepped;
                    return gate.Await(Soon());
                  }));
    worker.BeginStep(0);
    worker.MarkAll(worker.order());
    // Were it waited for here, the gate would stay shut.
    LOCKSTEP_EXPECT_OK(worker.End(&worker.stream()));
    gate.Open();
    LOCKSTEP_EXPECT_OK(worker.stream().Enqueue([&] {
      EXPECT_EQ(stepped, 3);
      return absl::OkStatus();
    }));
    LOCKSTEP_EXPECT_OK(worker.stream().Synchronize(Soon()));
    LOCKSTEP_EXPECT_OK(worker.BackwardOf({}, {/*sync=*/false}));
  });
}

TEST(OptimizerPerBucket, WaitsForTheLastBackwardOfAWindow) {
  RunStepping(2, BucketEach(nullptr), [](Stepping& worker) {
    for (int step = 0; step < 4; step += 2) {
      worker.Compute(step);
      LOCKSTEP_EXPECT_OK(worker.Backward({/*sync=*/false}));
      worker.Take(0);
      worker.Accumulate(step + 1);
      LOCKSTEP_EXPECT_OK(worker.Backward());
      worker.ExpectAveragesOf({step, step + 1});
      worker.ExpectSeen();
    }
  });
}

// Of three parameters in one bucket 0 is used by both ranks, 1 by rank 0 alone, 2 by nobody.
TEST(OptimizerPerBucket, GetsWhatSomeRankUsed) {
  ReducerOptions options = BucketEach(nullptr);
  options.bucket_caps_bytes = {1 << 20};
  options.find_unused = true;
  RunStepping(3, options, [](Stepping& worker) {
    Fill(worker.gradient(0), 4);
    Fill(worker.gradient(1), 6);
    LOCKSTEP_EXPECT_OK(worker.BackwardOf(worker.rank() == 0 ? Order{0, 1} : Order{0}));
    const std::vector<Calls::Call> taken = worker.Take(1);
    EXPECT_THAT(taken[0].parameters, ElementsAre(1, 0));
    EXPECT_THAT(taken[0].gradients, ElementsAre(Each(3), Each(4)));

    // And where nobody used anything, nothing; the bucket was reduced all the same.
    LOCKSTEP_EXPECT_OK(worker.BackwardOf({}));
    EXPECT_THAT(worker.Take(1)[0].parameters, IsEmpty());
  });
}

TEST(OptimizerPerBucket, SeesGradientsInTheirDTypeWhateverIsSent) {
  for (const bool hooked : {false, true}) {
    ReducerOptions options = BucketEach(nullptr);
    options.compress = DType::kBF16;
    if (hooked) options.hook = MakeNoopHook();
    RunStepping(2, options, [&](Stepping& worker) {
      LOCKSTEP_EXPECT_OK(worker.Step(1));
      worker.ExpectSeen();
      hooked ? worker.ExpectLocals(1) : worker.ExpectAverages(1);
    });
  }
}

TEST(OptimizerPerBucket, IsSparedTheBucketsThatFailed) {
  std::vector<std::string> messages(2);
  RunStepping(4, BucketEach(nullptr), [&](Stepping& worker) {
    // Bucket 2 has a hole on rank 1, and 3 is behind it.
    const absl::Status status = worker.Step(0, worker.rank() == 0 ? worker.order() : Order{3, 2, 0});
    EXPECT_THAT(status, FailedPrecondition());
    messages[worker.rank()] = std::string(status.message());
    const std::vector<Calls::Call> taken = worker.Take(2);
    EXPECT_THAT(taken[0].parameters, ElementsAre(3));
    EXPECT_THAT(taken[1].parameters, ElementsAre(2));
    worker.ExpectAverages({2, 3}, 0);
    worker.ExpectLocals({0, 1}, 0);

    worker.ExpectStep(1);
    worker.Take(4);
  });
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1: no gradient came for parameter 1 'p1'"),
                                 HasSubstr("the optimizer has already stepped bucket(s) 0, 1;")));
}

TEST(OptimizerPerBucket, ThatFailsOnTheLastBucketIsThatRanksOwnAffair) {
  RunWorld(2, [](Communicator& communicator) {
    bool fails = communicator.rank() == Rank(1);
    Worker worker(communicator, Vectors(2, kElements), BucketEach([&](const ReducedBucket& bucket) {
                    return fails && bucket.index == 1 ? absl::DataLossError("it broke") : absl::OkStatus();
                  }));
    const absl::Status status = worker.Step(0);
    if (fails) {
      EXPECT_THAT(status, Fails(absl::StatusCode::kDataLoss, "the optimizer, bucket 1", "it broke"));
    } else {
      LOCKSTEP_EXPECT_OK(status);
    }
    worker.ExpectAverages(0);
    fails = false;
    worker.ExpectStep(1);
  });
}

// A failure on the first of several buckets may be in time to be told to the others, or too late: never by halves.
TEST(OptimizerPerBucket, ThatFailsEarlierIsToldToAllOrToNobody) {
  for (int round = 0; round < 20; ++round) {
    std::vector<absl::Status> statuses(3);
    Gate stepped;
    RunWorld(3, [&](Communicator& communicator) {
      bool fails = communicator.rank() == Rank(1);
      Worker worker(communicator, Vectors(4, kElements), BucketEach([&](const ReducedBucket& bucket) {
                      if (!fails || bucket.index != 0) return absl::OkStatus();
                      stepped.Open();
                      return absl::DataLossError("it broke");
                    }));
      worker.BeginStep(0);
      worker.MarkAll({3});
      if (round % 2 == 0) {
        LOCKSTEP_EXPECT_OK(stepped.Await(Soon()));
      }
      worker.MarkAll({2, 1, 0});
      statuses[worker.rank()] = worker.End();
      fails = false;
      worker.ExpectStep(1);
    });
    EXPECT_THAT(statuses[1], StatusIs(Not(absl::StatusCode::kOk), HasSubstr("it broke")));
    EXPECT_EQ(statuses[0], statuses[2]);
    if (!statuses[0].ok()) {
      EXPECT_EQ(statuses[0], statuses[1]);
      EXPECT_THAT(statuses[0], FailedPrecondition("rank 1: the optimizer, bucket 0: it broke"));
    }
  }
}

}  // namespace
}  // namespace lockstep::testing

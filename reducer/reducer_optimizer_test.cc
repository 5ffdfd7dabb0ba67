// An optimizer that steps a bucket as soon as it is reduced: when it is called, and when it is not. reducer_matrix_test.cc compares the
// averages that it gets.

#include <string>
#include <utility>
#include <vector>

#include "reducer/reducer_testing.h"
#include "tests/gate.h"

namespace lockstep::testing {
namespace {

constexpr int kElements = 10;

Deadline Soon() { return Deadline::AfterMs(15000); }

// A bucket for each parameter, the last one first, in every step.
ReducerOptions BucketEach(OptimizerStep optimizer) {
  ReducerOptions options = Caps({0});
  options.replan = false;
  options.optimizer = std::move(optimizer);
  return options;
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

TEST(OptimizerPerBucket, IsSparedTheBucketsThatFailed) {
  std::vector<std::string> messages(2);
  RunWorld(2, [&](Communicator& communicator) {
    Order stepped;  // parameters
    Worker worker(communicator, Vectors(4, kElements), BucketEach([&](const ReducedBucket& bucket) {
                    stepped.insert(stepped.end(), bucket.parameters.begin(), bucket.parameters.end());
                    return absl::OkStatus();
                  }));
    // Bucket 2 has a hole on rank 1, and 3 is behind it.
    const absl::Status status = worker.Step(0, worker.rank() == 0 ? worker.order() : Order{3, 2, 0});
    EXPECT_THAT(status, FailedPrecondition());
    messages[worker.rank()] = std::string(status.message());
    EXPECT_THAT(stepped, ElementsAre(3, 2));
    worker.ExpectAverages({2, 3}, 0);
    worker.ExpectLocals({0, 1}, 0);

    worker.ExpectStep(1);
    EXPECT_THAT(stepped, ElementsAre(3, 2, 3, 2, 1, 0));
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

// An optimizer that steps a bucket as soon as it is reduced: when it is called, what it sees, and what it is spared.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LoopbackWorld;
using ::testing::Not;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

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
      call.gradients.push_back(testing::Floats(gradient));
    }
    MutexLock lock(&mu_);
    calls_.push_back(std::move(call));
  }
  std::vector<Call> Take() {
    MutexLock lock(&mu_);
    return std::exchange(calls_, {});
  }

 private:
  Mutex mu_;
  std::vector<Call> calls_ ABSL_GUARDED_BY(mu_);
};

// A bucket for each parameter, the last one first, in every step.
ReducerOptions BucketEach(OptimizerStep optimizer) {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.replan = false;
  options.optimizer = std::move(optimizer);
  return options;
}

OptimizerStep Into(Calls* calls) {
  return [calls](const ReducedBucket& bucket) {
    calls->Add(bucket);
    return absl::OkStatus();
  };
}

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

std::vector<float> Values(const Replica& replica, size_t index) {
  const float* const data = static_cast<const float*>(replica.gradient(index).data());
  return {data, data + kElements};
}

// Every rank holds its last gradient back until the optimizer has been at work on both ranks.
TEST(OptimizerPerBucket, StepsWhileOthersAreStillUnderWay) {
  LoopbackWorld world(2, {}, ShortTimeout());
  Gate stepped[2];
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(3, kElements), rank);
    const auto reducer = Create(communicator, replica.table(), BucketEach([&](const ReducedBucket& bucket) {
                                  EXPECT_EQ(bucket.count, 3);
                                  if (bucket.index == 1) stepped[rank].Open();
                                  return absl::OkStatus();
                                }));
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.MarkAll(*reducer, {2, 1});
    for (Gate& gate : stepped) LOCKSTEP_EXPECT_OK(gate.Await(Soon()));
    replica.ExpectAverage(2, 2, {0});
    replica.MarkAll(*reducer, {0});
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    replica.ExpectAverages(2, {0});
  });
}

TEST(OptimizerPerBucket, SeesAveragesWhereTheGradientsAre) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(5, kElements), communicator.rank().value());
    Calls calls;
    ReducerOptions options = BucketEach(Into(&calls));
    options.bucket_caps_bytes = {80};
    const auto reducer = Create(communicator, replica.table(), options);
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
      replica.ExpectAverages(2, {step});
      // EndBackward has waited for it.
      const std::vector<Calls::Call> taken = calls.Take();
      ASSERT_EQ(taken.size(), 3);
      const std::vector<std::vector<size_t>> buckets = {{4, 3}, {2, 1}, {0}};
      for (size_t b = 0; b < 3; ++b) {
        EXPECT_EQ(taken[b].index, b);
        EXPECT_EQ(taken[b].count, 3);
        EXPECT_EQ(taken[b].parameters, buckets[b]);
        ASSERT_EQ(taken[b].gradients.size(), buckets[b].size());
        for (size_t i = 0; i < buckets[b].size(); ++i) {
          EXPECT_EQ(taken[b].places[i], replica.gradient(buckets[b][i]).data());
          EXPECT_EQ(taken[b].gradients[i], Values(replica, buckets[b][i]));
        }
      }
    }
  });
}

TEST(OptimizerPerBucket, IsWaitedForByTheStreamOfTheEnd) {
  if (!testing::OnHost()) GTEST_SKIP() << "on a device the end itself waits until optimizers have been called";
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(3, kElements), communicator.rank().value());
    Gate gate;  // outlives the streams
    int stepped = 0;
    const std::unique_ptr<Stream> stream = HostDevice()->CreateStream("test").value();
    const auto reducer = Create(communicator, replica.table(), BucketEach([&](const ReducedBucket&) {
                                  ++stepped;
                                  return gate.Await(Soon());
                                }));
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.MarkAll(*reducer, replica.order());
    // Were it waited for here, the gate would stay shut.
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(stream.get()));
    gate.Open();
    LOCKSTEP_EXPECT_OK(stream->Enqueue([&] {
      EXPECT_EQ(stepped, 3);
      return absl::OkStatus();
    }));
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
  });
}

TEST(OptimizerPerBucket, WaitsForTheLastBackwardOfAWindow) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(2, kElements), communicator.rank().value());
    Calls calls;
    const auto reducer = Create(communicator, replica.table(), BucketEach(Into(&calls)));
    for (int step = 0; step < 4; step += 2) {
      replica.Compute(step);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
      replica.MarkAll(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      EXPECT_THAT(calls.Take(), IsEmpty());
      replica.Accumulate(step + 1);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      replica.MarkAll(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      replica.ExpectAverages(2, {step, step + 1});
      const std::vector<Calls::Call> taken = calls.Take();
      ASSERT_EQ(taken.size(), 2);
      for (const size_t b : {0, 1}) EXPECT_THAT(taken[b].gradients, ElementsAre(Values(replica, 1 - b)));
    }
  });
}

// Of three parameters in one bucket 0 is used by both ranks, 1 by rank 0 alone, 2 by nobody.
TEST(OptimizerPerBucket, GetsWhatSomeRankUsed) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Calls calls;
    ReducerOptions options = BucketEach(Into(&calls));
    options.bucket_caps_bytes = {1 << 20};
    options.find_unused = true;
    const auto reducer = Create(communicator, Vectors(3, kElements), options);
    ReachableVector<float> gradients[] = {ReachableVector<float>(kElements, 4), ReachableVector<float>(kElements, 6)};
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : rank == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{0}) {
      LOCKSTEP_EXPECT_OK(
          reducer->MarkReady(index, testing::VectorView(gradients[index].data(), DType::kF32, kElements), nullptr));
    }
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    const std::vector<Calls::Call> taken = calls.Take();
    ASSERT_EQ(taken.size(), 1);
    EXPECT_THAT(taken[0].parameters, ElementsAre(1, 0));
    EXPECT_THAT(taken[0].gradients, ElementsAre(Each(3), Each(4)));

    // And where nobody used anything, nothing; the bucket was reduced all the same.
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    const std::vector<Calls::Call> empty = calls.Take();
    ASSERT_EQ(empty.size(), 1);
    EXPECT_THAT(empty[0].parameters, IsEmpty());
  });
}

TEST(OptimizerPerBucket, SeesGradientsInTheirDTypeWhateverIsSent) {
  for (const bool hooked : {false, true}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Replica replica(Vectors(2, kElements), communicator.rank().value());
      Calls calls;
      ReducerOptions options = BucketEach(Into(&calls));
      options.compress = DType::kBF16;
      if (hooked) options.hook = MakeNoopHook();
      const auto reducer = Create(communicator, replica.table(), options);
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
      const std::vector<Calls::Call> taken = calls.Take();
      ASSERT_EQ(taken.size(), 2);
      for (const size_t b : {0, 1}) EXPECT_THAT(taken[b].gradients, ElementsAre(Values(replica, 1 - b)));
      for (const size_t index : {0, 1}) {
        hooked ? replica.ExpectLocal(index, 1) : replica.ExpectAverage(index, 2, {1});
      }
    });
  }
}

TEST(OptimizerPerBucket, IsSparedTheBucketsThatFailed) {
  LoopbackWorld world(2, {}, ShortTimeout());
  std::vector<std::string> messages(2);
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, kElements), rank);
    Calls calls;
    const auto reducer = Create(communicator, replica.table(), BucketEach(Into(&calls)));
    // Bucket 2 has a hole on rank 1, and 3 is behind it.
    const absl::Status status =
        replica.RunStep(*reducer, 0, rank == 0 ? replica.order() : std::vector<size_t>{3, 2, 0});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    messages[rank] = std::string(status.message());
    const std::vector<Calls::Call> taken = calls.Take();
    ASSERT_EQ(taken.size(), 2);
    EXPECT_THAT(taken[0].parameters, ElementsAre(3));
    EXPECT_THAT(taken[1].parameters, ElementsAre(2));
    for (const size_t index : {2, 3}) replica.ExpectAverage(index, 2, {0});
    for (const size_t index : {0, 1}) replica.ExpectLocal(index, 0);

    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(2, {1});
    EXPECT_EQ(calls.Take().size(), 4);
  });
  EXPECT_THAT(messages, Each(messages[0]));
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1: no gradient came for parameter 1 'p1'"),
                                 HasSubstr("the optimizer has already stepped bucket(s) 0, 1;")));
}

TEST(OptimizerPerBucket, ThatFailsOnTheLastBucketIsThatRanksOwnAffair) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(2, kElements), rank);
    bool fails = true;
    const auto reducer = Create(communicator, replica.table(), BucketEach([&](const ReducedBucket& bucket) {
                                  if (rank == 1 && fails && bucket.index == 1) return absl::DataLossError("it broke");
                                  return absl::OkStatus();
                                }));
    const absl::Status status = replica.RunStep(*reducer, 0);
    if (rank == 1) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   AllOf(HasSubstr("the optimizer, bucket 1"), HasSubstr("it broke"))));
    } else {
      LOCKSTEP_EXPECT_OK(status);
    }
    replica.ExpectAverages(2, {0});
    fails = false;
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
    replica.ExpectAverages(2, {1});
  });
}

// A failure on the first of several buckets may be in time to be told to the others, or too late: never by halves.
TEST(OptimizerPerBucket, ThatFailsEarlierIsToldToAllOrToNobody) {
  for (int round = 0; round < 20; ++round) {
    LoopbackWorld world(3, {}, ShortTimeout());
    std::vector<absl::Status> statuses(3);
    Gate stepped;
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(Vectors(4, kElements), rank);
      bool fails = true;
      const auto reducer = Create(communicator, replica.table(), BucketEach([&](const ReducedBucket& bucket) {
                                    if (rank != 1 || !fails || bucket.index != 0) return absl::OkStatus();
                                    stepped.Open();
                                    return absl::DataLossError("it broke");
                                  }));
      replica.Compute(0);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      replica.MarkAll(*reducer, {3});
      if (round % 2 == 0) {
        LOCKSTEP_EXPECT_OK(stepped.Await(Soon()));
      }
      replica.MarkAll(*reducer, {2, 1, 0});
      statuses[rank] = reducer->EndBackward(nullptr);
      fails = false;
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 1));
      replica.ExpectAverages(3, {1});
    });
    EXPECT_THAT(statuses[1], StatusIs(Not(absl::StatusCode::kOk), HasSubstr("it broke")));
    EXPECT_EQ(statuses[0], statuses[2]);
    if (!statuses[0].ok()) {
      EXPECT_EQ(statuses[0], statuses[1]);
      EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("rank 1: the optimizer, bucket 0: it broke")));
    }
  }
}

}  // namespace
}  // namespace lockstep

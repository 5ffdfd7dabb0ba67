// Hooks that fail on one rank: every rank says the same of it, nobody steps or hangs, and the next backward is right.

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/worlds.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::Replica;
using testing::Vectors;

constexpr size_t kBuckets = 4;
constexpr uint64_t kFailingStep = 2;
constexpr size_t kFailingBucket = 1;

enum class Failure { kAtIssue, kOnTheStream, kResultOfAnotherSize, kResultOfAnotherDType };

CollectiveRequest AverageOf(const HookBucket& bucket) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.device = bucket.communicator->device();
  request.dtype = bucket.dtype;
  request.op = ReduceOp::kAvg;
  request.count = bucket.elements;
  request.input = bucket.data;
  request.output = bucket.data;
  return request;
}

// The average, and at one place a failure instead.
class Failing : public CommHook {
 public:
  Failing(bool fails, Failure failure) : fails_(fails), failure_(failure) {}

  std::string name() const override { return "failing"; }

  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    EXPECT_NE(bucket.communicator, nullptr);
    if (!fails_ || bucket.step != kFailingStep || bucket.index != kFailingBucket) return Average(bucket, stream);
    switch (failure_) {
      case Failure::kAtIssue:
        return absl::DataLossError("it failed");
      case Failure::kOnTheStream:
        return stream.Enqueue([&bucket] {
          bucket.status = absl::DataLossError("it failed");
          return absl::OkStatus();
        });
      case Failure::kResultOfAnotherSize:
        bucket.result = testing::VectorView(bucket.data, bucket.dtype, bucket.elements - 1);
        return Average(bucket, stream);
      case Failure::kResultOfAnotherDType:
        bucket.result = testing::VectorView(bucket.data, DType::kI32, bucket.elements);
        return Average(bucket, stream);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Average(HookBucket& bucket, Stream& stream) {
    return bucket.communicator->Enqueue(AverageOf(bucket), &stream, [&bucket](const absl::Status& status) {
      if (!status.ok()) bucket.status.Update(status);
    });
  }

  const bool fails_;
  const Failure failure_;
};

// Keeps what it is to complete, until it goes. Thread-safe.
class Unfinished {
 public:
  void Keep(std::shared_ptr<HookCompletion> completion) {
    MutexLock lock(&mu_);
    kept_.push_back(std::move(completion));
  }
  void CompleteAll() {
    MutexLock lock(&mu_);
    for (const auto& completion : kept_) completion->Done(absl::OkStatus());
  }

 private:
  Mutex mu_;
  std::vector<std::shared_ptr<HookCompletion>> kept_ ABSL_GUARDED_BY(mu_);
};

// Ranks that hear of each other's aborts, as communicators over a control channel do.
class HookFailureTest : public ::testing::Test {
 protected:
  void Run(int size, const std::function<void(Communicator&)>& body) {
    std::vector<WorldOptions> options;
    for (int rank = 0; rank < size; ++rank) {
      options.push_back(TestWorldOptions(nullptr, rank, size));
      options.back().store_url = absl::StrCat("file://", ::testing::TempDir(), "/world", worlds_);
    }
    ++worlds_;
    std::vector<WorldOrError> worlds = CreateWorlds(options);
    for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
    testing::RunRanks(size, [&](int rank) {
      const testing::ForTestDevice communicator((*worlds[rank])->communicator());
      body(*communicator);
    });
  }

  static ReducerOptions BucketEach(std::shared_ptr<CommHook> hook) {
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.replan = false;
    options.hook = std::move(hook);
    return options;
  }

  // Three steps, of which the second fails with the same message everywhere; returns that of rank 0.
  std::string ExpectOneFailure(int size, const std::function<std::shared_ptr<CommHook>(int rank)>& make) {
    std::vector<std::string> messages(size);
    std::vector<int> kept(size);  // whether the first bucket's gradient is this rank's own
    Run(size, [&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(Vectors(kBuckets, 100), rank);
      Replica own(Vectors(kBuckets, 100), rank);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                    Reducer::Create(&communicator, replica.table(), BucketEach(make(rank))));
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
      replica.ExpectAverages(size, {0});

      const absl::Status status = replica.RunStep(*reducer, 1);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      messages[rank] = std::string(status.message());
      // Bucket 1, of parameter 2, and those behind it are as they were. The one before it may still have been under way
      // when the hook's communicator ended: it is an average, or as it was, on all ranks alike.
      for (const size_t index : {0, 1, 2}) replica.ExpectLocal(index, 1);
      own.Compute(1);
      const TensorView first = own.gradient(3);
      kept[rank] = std::memcmp(first.data(), replica.gradient(3).data(), first.bytes()) == 0;
      if (!kept[rank]) replica.ExpectAverage(3, size, {1});

      // The hook has a new communicator, and the reducer's was good all along.
      LOCKSTEP_EXPECT_OK(communicator.status());
      for (int step = 2; step < 5; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
        replica.ExpectAverages(size, {step});
      }
    });
    EXPECT_THAT(kept, Each(kept[0]));
    EXPECT_THAT(messages, Each(messages[0]));
    EXPECT_THAT(messages[0], HasSubstr("backward 2 is incomplete"));
    return messages[0];
  }

 private:
  static int worlds_;  // made so far
};

int HookFailureTest::worlds_ = 0;

class HookFailures : public HookFailureTest, public ::testing::WithParamInterface<std::tuple<int, Failure>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  Failure failure() const { return std::get<1>(GetParam()); }
  std::string Cause() const {
    if (failure() == Failure::kResultOfAnotherSize) return "it returned f32[";
    return failure() == Failure::kResultOfAnotherDType ? "it returned i32[" : "it failed";
  }
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Failure>>& info) {
  const char* const failures[] = {"AtIssue", "OnTheStream", "ResultOfAnotherSize", "ResultOfAnotherDType"};
  return absl::StrCat(failures[static_cast<int>(std::get<1>(info.param))], std::get<0>(info.param), "Ranks");
}

INSTANTIATE_TEST_SUITE_P(Reducer, HookFailures,
                         ::testing::Combine(::testing::Values(2, 3),
                                            ::testing::Values(Failure::kAtIssue, Failure::kOnTheStream,
                                                              Failure::kResultOfAnotherSize,
                                                              Failure::kResultOfAnotherDType)),
                         NameOf);

TEST_P(HookFailures, OfOneRankAreTheSameErrorOnAllAndTheNextStepIsRight) {
  const int failing = size() - 1;
  const std::string message =
      ExpectOneFailure(size(), [&](int rank) { return std::make_shared<Failing>(rank == failing, failure()); });
  EXPECT_THAT(message, HasSubstr(absl::StrCat("rank ", failing, ": hook failing, bucket 1: ", Cause())));
}

TEST_P(HookFailures, OfAllRanksAreOneErrorToo) {
  const std::string message = ExpectOneFailure(size(), [&](int) { return std::make_shared<Failing>(true, failure()); });
  // Whoever is the first ends the others' hooks, where those are under way.
  EXPECT_THAT(message, AllOf(HasSubstr("rank 0: hook failing, bucket "), HasSubstr("rank 1: hook failing, bucket ")));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("bucket 1: ", Cause())));
}

// The others wait in the hook's collective for a rank that never comes to it; that one's own deadline frees them.
TEST_F(HookFailureTest, OfAHookThatNeverCompletesEndsByItsDeadline) {
  for (const int size : {2, 3}) {
    Unfinished unfinished;
    const std::string message = ExpectOneFailure(size, [&](int rank) {
      const auto timeout = std::chrono::milliseconds(rank == 1 ? 50 : 20000);
      return MakeHostCompletedHook("slow", timeout, [&, rank](HookBucket& bucket, auto completion) {
        if (rank == 1 && bucket.step == kFailingStep && bucket.index == kFailingBucket) {
          return unfinished.Keep(std::move(completion));
        }
        completion->Done(bucket.communicator->Run(AverageOf(bucket)));
      });
    });
    EXPECT_THAT(message, HasSubstr("rank 1: hook slow, bucket 1: it did not complete in time"));
    unfinished.CompleteAll();
  }
}

TEST_F(HookFailureTest, OfAHookThatIsCompletedWithAnErrorIsToldToAll) {
  for (const int size : {2, 3}) {
    const std::string message = ExpectOneFailure(size, [&](int rank) {
      return MakeHostCompletedHook("told", std::chrono::seconds(20), [rank](HookBucket& bucket, auto completion) {
        if (rank == 0 && bucket.step == kFailingStep && bucket.index == kFailingBucket) {
          return completion->Done(absl::ResourceExhaustedError("no room"));
        }
        completion->Done(bucket.communicator->Run(AverageOf(bucket)));
      });
    });
    EXPECT_THAT(message, HasSubstr("rank 0: hook told, bucket 1: no room"));
  }
}

// The reducer's own failure beside a healthy hook: the hook goes on in the next step.
TEST_F(HookFailureTest, AMissingGradientLeavesTheHookUsable) {
  Run(2, [&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(kBuckets, 100), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, replica.table(),
                                                  BucketEach(std::make_shared<Failing>(false, Failure::kAtIssue))));
    for (int step = 0; step < 6; ++step) {
      const bool forgets = step % 2 == 0 && rank == 1;
      const absl::Status status =
          replica.RunStep(*reducer, step, forgets ? std::vector<size_t>{0, 1, 3} : replica.order());
      if (step % 2 == 0) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("rank 1: no gradient came for parameter 2 'p2'")));
        continue;
      }
      LOCKSTEP_EXPECT_OK(status);
      replica.ExpectAverages(2, {step});
    }
  });
}

TEST_F(HookFailureTest, HooksThatDifferAreFoundAtTheStart) {
  Run(2, [&](Communicator& communicator) {
    std::shared_ptr<CommHook> hook = MakeNoopHook();
    if (communicator.rank().value() == 1) hook = std::make_shared<Failing>(false, Failure::kAtIssue);
    EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 1), BucketEach(hook)),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 1")));
  });
}

}  // namespace
}  // namespace lockstep

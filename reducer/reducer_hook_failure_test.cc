// Hooks that fail on one rank: every rank says the same of it, nobody steps or hangs, and the next backward is right.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "comm/world/world.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/worlds.h"

namespace lockstep::testing {
namespace {

constexpr size_t kBuckets = 4;
constexpr uint64_t kFailingStep = 2;
constexpr size_t kFailingBucket = 1;

enum class Failure { kAtIssue, kOnTheStream, kResultOfAnotherSize, kResultOfAnotherDType };

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
        bucket.result = VectorView(bucket.data, bucket.dtype, bucket.elements - 1);
        return Average(bucket, stream);
      case Failure::kResultOfAnotherDType:
        bucket.result = VectorView(bucket.data, DType::kI32, bucket.elements);
        return Average(bucket, stream);
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Average(HookBucket& bucket, Stream& stream) {
    return EnqueueFor(bucket, stream, AverageOf(bucket));
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
    RunRanks(size, [&](int rank) {
      const ForTestDevice communicator((*worlds[rank])->communicator());
      body(*communicator);
    });
  }

  static ReducerOptions BucketEach(std::shared_ptr<CommHook> hook) {
    ReducerOptions options = Caps({0});
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
      Worker worker(communicator, Vectors(kBuckets, 100), BucketEach(make(rank)));
      worker.ExpectStep(0);

      const absl::Status status = worker.Step(1);
      EXPECT_THAT(status, FailedPrecondition());
      EXPECT_TRUE(GetErrorInfo(status).bucket.has_value());
      messages[rank] = std::string(status.message());
      // Bucket 1, of parameter 2, and those behind it are as they were. The one before it may still have been under way
      // when the hook's communicator ended: it is an average, or as it was, on all ranks alike.
      worker.ExpectLocals({0, 1, 2}, 1);
      Replica own(worker.table(), rank);
      own.Compute(1);
      kept[rank] = Floats(own.gradient(3)) == Floats(worker.gradient(3));
      if (!kept[rank]) worker.ExpectAverage(3, 1);

      // The hook has a new communicator, and the reducer's was good all along.
      LOCKSTEP_EXPECT_OK(communicator.status());
      for (int step = 2; step < 5; ++step) worker.ExpectStep(step);
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

// The other rank's hook waits for it by other means, such as a process group of the framework.
TEST_F(HookFailureTest, OfOneRankEndsAHookThatDoesNotUseItsCommunicator) {
  Unfinished unfinished;
  const std::string message = ExpectOneFailure(2, [&](int rank) {
    return MakeHostCompletedHook("elsewhere", std::chrono::hours(24), [&, rank](HookBucket& bucket, auto completion) {
      const bool fails = bucket.step == kFailingStep && bucket.index == kFailingBucket;
      if (fails && rank == 0) return unfinished.Keep(std::move(completion));
      completion->Done(fails ? absl::DataLossError("it failed") : bucket.communicator->Run(AverageOf(bucket)));
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 1: hook elsewhere, bucket 1: it failed"));
  unfinished.CompleteAll();
}

// A hook's communicator was made before. Rank 1 does not call what rank 0's hook waits for.
TEST_F(HookFailureTest, HooksHaveATimeoutThatTheCommunicatorGotLater) {
  Run(2, [](Communicator& communicator) {
    const bool waits = communicator.rank() == Rank(0);
    const auto start = [waits](HookBucket& bucket, std::shared_ptr<HookCompletion> completion) {
      completion->Done(waits ? bucket.communicator->Run(AverageOf(bucket)) : absl::OkStatus());
    };
    Worker worker(communicator, Vectors(1, 100),
                  BucketEach(MakeHostCompletedHook("alone", std::chrono::hours(24), start)));
    if (waits) communicator.SetTimeout(std::chrono::milliseconds(100));
    worker.BeginStep(0);
    worker.MarkAll({0});
    const absl::Status ended = worker.End();
    EXPECT_FALSE(ended.ok());
    if (waits) {
      EXPECT_THAT(std::string(ended.message()), ::testing::ContainsRegex("in time|within 100 ms"));
    }
  });
}

// While one thread is in EndBackward, another one ends rank 1's communicator. Meanwhile hooks hang on every rank, on rank 1 alone, or on
// the other ranks, which wait for rank 1. No deadline ends them.
TEST_F(HookFailureTest, HooksThatHangEndWithTheReducersCommunicator) {
  class Calling : public CommHook {
   public:
    explicit Calling(std::function<absl::Status(HookBucket&, Stream&)> issue) : issue_(std::move(issue)) {}
    std::string name() const override { return "calling"; }
    absl::Status Issue(HookBucket& bucket, Stream& stream) override { return issue_(bucket, stream); }

   private:
    const std::function<absl::Status(HookBucket&, Stream&)> issue_;
  };
  enum Way { kAllUncompleted, kOneUncompleted, kOneInACollective, kOthersInACollective };
  for (const Way way : {kAllUncompleted, kOneUncompleted, kOneInACollective, kOthersInACollective}) {
    for (const bool destroys : {false, true}) {
      SCOPED_TRACE(absl::StrCat("way ", way, destroys ? ", destroyed" : ", aborted"));
      Unfinished unfinished;
      std::atomic<int> to_start{3}, to_end{3};
      Gate all_started, all_ended;
      Run(3, [&](Communicator& communicator) {
        const int rank = communicator.rank().value();
        const auto started = [&] {
          if (--to_start == 0) all_started.Open();
        };
        const auto start = [&](HookBucket& bucket, std::shared_ptr<HookCompletion> completion) {
          started();
          if (rank == 1 || way == kAllUncompleted) return unfinished.Keep(std::move(completion));
          completion->Done(bucket.communicator->Run(AverageOf(bucket)));
        };
        const auto issue = [&](HookBucket& bucket, Stream& stream) {
          started();
          const bool calls = (way == kOneInACollective) == (rank == 1);
          return calls ? EnqueueFor(bucket, stream, AverageOf(bucket)) : absl::OkStatus();
        };
        std::shared_ptr<CommHook> hook = std::make_shared<Calling>(issue);
        if (way <= kOneUncompleted) hook = MakeHostCompletedHook("uncompleted", std::chrono::hours(24), start);
        Worker worker(communicator, Vectors(1, 100), BucketEach(hook));
        worker.BeginStep(0);
        worker.MarkAll({0});
        std::thread ends;
        if (rank == 1) {
          ends = std::thread([&] {
            LOCKSTEP_EXPECT_OK(all_started.Await(Deadline::AfterMs(20000)));
            destroys ? communicator.Leave() : communicator.Abort("the user lost patience");
          });
        }
        const absl::Status ended = worker.End();
        // A reducer that is destroyed would end the other ranks' hooks.
        if (--to_end == 0) all_ended.Open();
        LOCKSTEP_EXPECT_OK(all_ended.Await(Deadline::AfterMs(20000)));
        if (!destroys) {
          EXPECT_THAT(ended, Aborted("rank 1", "the user lost patience"));
        } else if (rank == 1) {
          EXPECT_THAT(ended, Fails(absl::StatusCode::kCancelled, "the communicator was destroyed"));
        } else {
          EXPECT_THAT(ended, Aborted("rank 1", "destroyed"));
        }
        if (rank == 1) ends.join();
      });
    }
  }
}

// The hook is not issued for what is left of the step: a hook of the embedder must not be called by a destructor.
TEST_F(HookFailureTest, TheReducersDestructionInABackwardFailsTheStepOnTheOthers) {
  Run(3, [](Communicator& communicator) {
    const int rank = communicator.rank().value();
    std::atomic<int> issued{0};
    const auto hook =
        MakeHostCompletedHook("counted", std::chrono::hours(24), [&](HookBucket& bucket, auto completion) {
          ++issued;
          completion->Done(bucket.communicator->Run(AverageOf(bucket)));
        });
    Worker worker(communicator, Vectors(kBuckets, 100),
                  BucketEach(std::shared_ptr<CommHook>(hook.get(), [](auto*) {})));
    worker.ExpectStep(0);
    if (rank == 1) {
      worker.BeginStep(1);
      worker.MarkAll({3});
      worker.DestroyReducer();
      EXPECT_LE(issued, static_cast<int>(kBuckets) + 1);
    } else {
      EXPECT_THAT(worker.Step(1),
                  FailedPrecondition("rank 1: its reducer was destroyed in the middle of the backward"));
      worker.DestroyReducer();
    }
    LOCKSTEP_EXPECT_OK(communicator.status());
    Worker another(communicator, worker.table(), BucketEach(nullptr));
    another.ExpectStep(2);
  });
}

// The reducer's own failure beside a healthy hook: the hook goes on in the next step.
TEST_F(HookFailureTest, AMissingGradientLeavesTheHookUsable) {
  Run(2, [](Communicator& communicator) {
    Worker worker(communicator, Vectors(kBuckets, 100),
                  BucketEach(std::make_shared<Failing>(false, Failure::kAtIssue)));
    for (int step = 0; step < 6; step += 2) {
      EXPECT_THAT(worker.Step(step, worker.rank() == 1 ? worker.OrderWithout(2) : worker.order()),
                  FailedPrecondition("rank 1: no gradient came for parameter 2 'p2'"));
      worker.ExpectStep(step + 1);
    }
  });
}

TEST_F(HookFailureTest, HooksThatDifferAreFoundAtTheStart) {
  Run(2, [&](Communicator& communicator) {
    std::shared_ptr<CommHook> hook = MakeNoopHook();
    if (communicator.rank().value() == 1) hook = std::make_shared<Failing>(false, Failure::kAtIssue);
    EXPECT_THAT(Reducer::Create(&communicator, Vectors(1, 1), BucketEach(hook)), FailedPrecondition("rank 1"));
  });
}

}  // namespace
}  // namespace lockstep::testing

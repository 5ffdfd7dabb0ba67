// What is sent when: communication overlaps with backward, in an order that does not depend on the order of gradients, and with
// gradients that become ready on streams.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "comm/record/signature.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/stream_gate.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using testing::LoopbackWorld;
using testing::Replica;
using testing::ShortTimeout;

Deadline Soon() { return Deadline::AfterMs(15000); }

// Notes each all-reduce when its first message is handed to the network, by sender. Thread-safe.
class Watch {
 public:
  explicit Watch(int size) : counts_(size) {}

  void See(const LoopbackMessage& message) {
    const Signature signature = DecodeSignature(message.envelope);
    if (signature.collective != Collective::kAllReduce) return;
    MutexLock lock(&mu_);
    std::vector<size_t>& counts = counts_[message.source.value()];
    if (counts.empty() || counts.back() != signature.count) counts.push_back(signature.count);
    seen_.SignalAll();
  }

  // Until the rank has sent something of that many all-reduces.
  absl::Status Await(int rank, size_t all_reduces, Deadline deadline) {
    MutexLock lock(&mu_);
    while (counts_[rank].size() < all_reduces) {
      if (!seen_.WaitUntil(&mu_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank, " sent messages of ", counts_[rank].size(), " all-reduces only"));
      }
    }
    return absl::OkStatus();
  }

  void Forget(int rank) {
    MutexLock lock(&mu_);
    counts_[rank].clear();
  }

  // Elements of the all-reduces in the order in which the rank sent them.
  std::vector<size_t> counts(int rank) {
    MutexLock lock(&mu_);
    return counts_[rank];
  }

 private:
  Mutex mu_;
  CondVar seen_;
  std::vector<std::vector<size_t>> counts_ ABSL_GUARDED_BY(mu_);
};

LoopbackOptions Observed(Watch* watch) {
  LoopbackOptions options;
  options.observer = [watch](const LoopbackMessage& message) { watch->See(message); };
  return options;
}

// A bucket each, of sizes that tell them apart: p3's is the first, p0's the last.
std::vector<Parameter> FourSizes() {
  std::vector<Parameter> table;
  for (const int64_t elements : {400, 300, 200, 100}) {
    table.push_back(testing::MakeParameter(absl::StrCat("p", table.size()), DType::kF32, {elements}));
  }
  return table;
}

ReducerOptions BucketEach(bool overlap = true) {
  ReducerOptions options;
  options.bucket_caps_bytes = {0};
  options.overlap = overlap;
  return options;
}

std::vector<size_t> BucketSizes(const Reducer& reducer) {
  std::vector<size_t> sizes;
  for (const BucketPlan::Bucket& bucket : reducer.plan().buckets) sizes.push_back(bucket.elements);
  return sizes;
}

std::unique_ptr<Stream> NewStream(int rank) { return testing::TestDevice(rank)->CreateStream("test").value(); }

// A step after which all ranks have allocated what they need: on a GPU that waits for what the streams of others stand at.
void WarmUp(Replica& replica, Reducer& reducer, Communicator& communicator) {
  LOCKSTEP_EXPECT_OK(replica.RunStep(reducer, 0));
  LOCKSTEP_EXPECT_OK(communicator.Run({}));
}

class ReducerOverlap : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerOverlap, ::testing::Values(2, 3, 4),
                         [](const auto& info) { return absl::StrCat(info.param); });

// Every rank holds its last gradient back until the network has seen bytes of its first bucket. A reducer that launched buckets
// only in EndBackward would let it wait in vain.
TEST_P(ReducerOverlap, SendsTheFirstBucketBeforeTheLastGradientIsReady) {
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(FourSizes(), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    replica.MarkAll(*reducer, {3, 2, 1});
    LOCKSTEP_EXPECT_OK(watch.Await(rank, 1, Soon()));
    EXPECT_EQ(watch.counts(rank)[0], reducer->plan().buckets[0].elements);
    replica.MarkAll(*reducer, {0});
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    replica.ExpectAverages(size(), {0});
  });
}

TEST_P(ReducerOverlap, IsOffOnRequest) {
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  std::vector<std::unique_ptr<Reducer>> reducers(size());
  std::vector<std::unique_ptr<Replica>> replicas(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    replicas[rank] = std::make_unique<Replica>(FourSizes(), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(reducers[rank],
                                  Reducer::Create(&communicator, FourSizes(), BucketEach(/*overlap=*/false)));
    replicas[rank]->Compute(0);
    LOCKSTEP_EXPECT_OK(reducers[rank]->BeginBackward({}));
    replicas[rank]->MarkAll(*reducers[rank], {3, 2, 1, 0});
  });
  // Everything is marked on every rank, and nothing was sent.
  for (int rank = 0; rank < size(); ++rank) EXPECT_THAT(watch.counts(rank), IsEmpty());
  testing::RunRanks(size(), [&](int rank) {
    LOCKSTEP_EXPECT_OK(reducers[rank]->EndBackward(nullptr));
    replicas[rank]->ExpectAverages(size(), {0});
    EXPECT_THAT(watch.counts(rank), ElementsAreArray(BucketSizes(*reducers[rank])));
    // Nor was anything launched that had merely not been sent yet.
    EXPECT_EQ(reducers[rank]->statistics().buckets_launched_in_backward, 0);
  });
}

TEST_P(ReducerOverlap, LaunchesBucketsInOrderWhateverTheOrderOfGradients) {
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(FourSizes(), rank);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    const std::vector<size_t> orders[] = {{0, 1, 2, 3}, {3, 0, 2, 1}, {1, 3, 0, 2}, {2, 1, 0, 3}};
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0, orders[rank]));
    replica.ExpectAverages(size(), {0});
    EXPECT_THAT(watch.counts(rank), ElementsAreArray(BucketSizes(*reducer)));
  });
}

TEST_P(ReducerOverlap, ABucketWaitsForTheStreamsOfItsOwnGradientsOnly) {
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(FourSizes(), rank);
    StreamGate gate;
    const std::unique_ptr<Stream> stream = NewStream(rank);
    ReducerOptions options = BucketEach();
    options.replan = false;  // by the order of the first step
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    WarmUp(replica, *reducer, communicator);
    watch.Forget(rank);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : {3, 2, 1, 0}) {
      LOCKSTEP_EXPECT_OK(index == 1 ? gate.HoldUp(*stream) : absl::OkStatus());
      LOCKSTEP_EXPECT_OK(replica.ComputeOn(*stream, index, 7));
      LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, replica.gradient(index), stream.get()));
    }
    // The stream stands at the third gradient.
    LOCKSTEP_EXPECT_OK(watch.Await(rank, 2, Soon()));
    EXPECT_EQ(watch.counts(rank).size(), 2);
    gate.Open();
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    replica.ExpectAverages(size(), {7});
    EXPECT_THAT(watch.counts(rank), ElementsAreArray(BucketSizes(*reducer)));
  });
}

// Steps whose gradients are computed on a stream, each once its gate is open. Every step has gradients of its own, since it is issued
// before the one before it is done.
class HeldSteps {
 public:
  HeldSteps(int steps, Communicator& communicator)
      : rank_(communicator.rank().value()), size_(communicator.size()), gates_(steps), stream_(NewStream(rank_)) {
    for (int step = 0; step < steps; ++step) {
      replicas_.push_back(std::make_unique<Replica>(testing::MixedTable(), rank_));
    }
  }

  void WarmUp(Reducer& reducer, Communicator& communicator) { lockstep::WarmUp(*replicas_[0], reducer, communicator); }

  // Returns when all of the step is issued, and none of it done.
  void Issue(Reducer& reducer, int step) {
    Replica& replica = *replicas_[step];
    LOCKSTEP_EXPECT_OK(reducer.BeginBackward({}));
    LOCKSTEP_EXPECT_OK(gates_[step].HoldUp(*stream_));
    for (const size_t index : replica.order()) LOCKSTEP_EXPECT_OK(replica.ComputeOn(*stream_, index, step));
    replica.MarkAll(reducer, replica.order(), stream_.get());
    LOCKSTEP_EXPECT_OK(reducer.EndBackward(stream_.get()));
  }
  void Open(int step) { gates_[step].Open(); }

  // What follows on the stream, an optimiser say, sees averages.
  void ExpectAverages() {
    LOCKSTEP_EXPECT_OK(stream_->Synchronize(Soon()));
    for (size_t step = 0; step < replicas_.size(); ++step) {
      replicas_[step]->ExpectAverages(size_, {static_cast<int>(step)});
    }
  }

 private:
  const int rank_;
  const int size_;
  std::vector<StreamGate> gates_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  const std::unique_ptr<Stream> stream_;  // goes first
};

TEST_P(ReducerOverlap, EndOnAStreamReturnsBeforeTheGradientsAreReady) {
  constexpr int kSteps = 3;
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    HeldSteps steps(kSteps, communicator);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer,
                                  Reducer::Create(&communicator, testing::MixedTable(), BucketEach()));
    steps.WarmUp(*reducer, communicator);
    for (int step = 0; step < kSteps; ++step) {
      steps.Issue(*reducer, step);
      steps.Open(step);
    }
    steps.ExpectAverages();
    // The last step's end is told, or waited for, by whoever asks for what it left.
    EXPECT_THAT(reducer->AverageOf(0), IsOk());
    EXPECT_EQ(reducer->statistics().steps, kSteps + 1);
  });
}

// Each step is held up until the next one has been issued.
TEST_P(ReducerOverlap, OnADeviceAStepIsIssuedBeforeTheLastOneIsDone) {
  if (testing::OnHost()) GTEST_SKIP() << "the host waits for its own streams";
  constexpr int kSteps = 6;
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    HeldSteps steps(kSteps, communicator);
    ReducerOptions options = BucketEach();
    options.replan = false;  // another plan waits for all steps
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, testing::MixedTable(), options));
    steps.WarmUp(*reducer, communicator);
    for (int step = 0; step < kSteps; ++step) {
      steps.Issue(*reducer, step);
      if (step > 0) steps.Open(step - 1);
    }
    steps.Open(kSteps - 1);
    steps.ExpectAverages();
    EXPECT_THAT(reducer->AverageOf(0), IsOk());
    EXPECT_EQ(reducer->statistics().steps, kSteps + 1);
  });
}

TEST_P(ReducerOverlap, MixesGradientsOfSeveralStreamsWithThoseReadyNow) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(testing::MixedTable(), rank);
    const std::unique_ptr<Stream> streams[] = {NewStream(rank), NewStream(rank)};
    ReducerOptions options;
    options.bucket_caps_bytes = {64, 500};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    for (int step = 0; step < 5; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      for (size_t index = 0; index < replica.table().size(); ++index) {
        const size_t where = (index + step + rank) % 3;
        if (where == 2) {
          replica.Compute(index, step);
          LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, replica.gradient(index), nullptr));
          continue;
        }
        LOCKSTEP_EXPECT_OK(replica.ComputeOn(*streams[where], index, step));
        LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, replica.gradient(index), streams[where].get()));
      }
      Stream* const end = step % 2 == 0 ? nullptr : streams[0].get();
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(end));
      LOCKSTEP_EXPECT_OK(end == nullptr ? absl::OkStatus() : end->Synchronize(Soon()));
      replica.ExpectAverages(size(), {step});
    }
  });
}

}  // namespace
}  // namespace lockstep

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
#include "base/host_device.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "comm/signature.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/gate.h"
#include "tests/ranks.h"
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

std::unique_ptr<Stream> NewStream() { return HostDevice()->CreateStream("test").value(); }

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
  if (testing::StreamsShareQueues()) GTEST_SKIP() << testing::kStreamsShareQueues;
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(FourSizes(), rank);
    Gate gate;  // outlives the stream that waits at it
    const std::unique_ptr<Stream> stream = NewStream();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    for (const size_t index : {3, 2, 1, 0}) {
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, index]() -> absl::Status {
        const absl::Status open = index == 1 ? gate.Await(Soon()) : absl::OkStatus();
        replica.Compute(index, 7);
        return open;
      }));
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

TEST_P(ReducerOverlap, EndOnAStreamReturnsBeforeTheGradientsAreReady) {
  if (testing::StreamsShareQueues()) GTEST_SKIP() << testing::kStreamsShareQueues;
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(testing::MixedTable(), communicator.rank().value());
    Gate gates[3];
    const std::unique_ptr<Stream> stream = NewStream();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), BucketEach()));
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] { return gates[step].Await(Soon()); }));
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] {
        replica.Compute(step);
        return absl::OkStatus();
      }));
      replica.MarkAll(*reducer, replica.order(), stream.get());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(stream.get()));
      gates[step].Open();
      // What follows on the stream, an optimiser say, sees averages.
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] {
        replica.ExpectAverages(size(), {step});
        return absl::OkStatus();
      }));
    }
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
    // The third step's end is told, or waited for, by whoever asks for what it left.
    EXPECT_THAT(reducer->AverageOf(0), IsOk());
    EXPECT_EQ(reducer->statistics().steps, 3);
  });
}

// Each step is held up until the next one has been issued.
TEST_P(ReducerOverlap, OnADeviceAStepIsIssuedBeforeTheLastOneIsDone) {
  if (testing::OnHost()) GTEST_SKIP() << "the host waits for its own streams";
  if (testing::StreamsShareQueues()) GTEST_SKIP() << testing::kStreamsShareQueues;
  constexpr int kSteps = 6;
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(testing::MixedTable(), communicator.rank().value());
    Gate gates[kSteps];
    const std::unique_ptr<Stream> stream =
        testing::TestDevice(communicator.rank().value())->CreateStream("test").value();
    ReducerOptions options = BucketEach();
    options.replan = false;  // another plan waits for all steps
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, replica.table(), options));
    for (int step = 0; step < kSteps; ++step) {
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] { return gates[step].Await(Soon()); }));
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] {
        replica.Compute(step);
        return absl::OkStatus();
      }));
      replica.MarkAll(*reducer, replica.order(), stream.get());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(stream.get()));
      LOCKSTEP_EXPECT_OK(stream->Enqueue([&, step] {
        replica.ExpectAverages(size(), {step});
        return absl::OkStatus();
      }));
      if (step > 0) gates[step - 1].Open();
    }
    gates[kSteps - 1].Open();
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
    EXPECT_THAT(reducer->AverageOf(0), IsOk());
    EXPECT_EQ(reducer->statistics().steps, kSteps);
  });
}

TEST_P(ReducerOverlap, MixesGradientsOfSeveralStreamsWithThoseReadyNow) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(testing::MixedTable(), rank);
    Device* const device = testing::TestDevice(rank);
    const std::unique_ptr<Stream> streams[] = {device->CreateStream("test").value(),
                                               device->CreateStream("test").value()};
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

// What is sent when: communication overlaps with backward, in an order that does not depend on the order of gradients, and with
// gradients that become ready on streams.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "comm/record/signature.h"
#include "reducer/reducer_testing.h"
#include "tests/test_device.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAreArray;

Deadline Soon() { return Deadline::AfterMs(15000); }

// Notes each all-reduce when its first message is handed to the network, by sender. Thread-safe.
class Watch {
 public:
  explicit Watch(int size) : counts_(size) {}

  void See(const LoopbackMessage& message) {
    const Signature signature = DecodeSignature(message.envelope);
    // A status trailer that travels alone has a few elements.
    if (signature.collective != Collective::kAllReduce || signature.count < 100) return;
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
std::vector<Parameter> FourSizes() { return VectorsOf({400, 300, 200, 100}); }

ReducerOptions BucketEach(bool overlap = true) {
  ReducerOptions options = Caps({0});
  options.overlap = overlap;
  return options;
}

std::vector<size_t> BucketSizes(const Worker& worker) {
  std::vector<size_t> sizes;
  // On the host the gradients travel where they lie; on a device a flat bucket.
  for (const BucketPlan::Bucket& bucket : worker.plan().buckets) {
    sizes.push_back(OnHost() ? bucket.slots[0].elements : bucket.elements);
  }
  return sizes;
}

std::unique_ptr<Stream> NewStream(int rank) { return TestDevice(rank)->CreateStream("test").value(); }

// A step after which all ranks have allocated what they need: on a GPU that waits for what the streams of others stand at.
void WarmUp(Worker& worker) {
  LOCKSTEP_EXPECT_OK(worker.Step(0));
  LOCKSTEP_EXPECT_OK(worker.communicator().Run({}));
}

class ReducerOverlap : public RanksTest {
 protected:
  // Workers of a watched world.
  void RunWatched(const ReducerOptions& options, const std::function<void(Worker&, Watch&)>& body) const {
    Watch watch(size());
    LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Worker worker(communicator, FourSizes(), options);
      body(worker, watch);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, ReducerOverlap, ::testing::Values(2, 3, 4), RanksTest::NameOf);

// Every rank holds its last gradient back until the network has seen bytes of its first bucket. A reducer that launched buckets
// only in EndBackward would let it wait in vain.
TEST_P(ReducerOverlap, SendsTheFirstBucketBeforeTheLastGradientIsReady) {
  RunWatched(BucketEach(), [](Worker& worker, Watch& watch) {
    worker.BeginStep(0);
    worker.MarkAll({3, 2, 1});
    LOCKSTEP_EXPECT_OK(watch.Await(worker.rank(), 1, Soon()));
    EXPECT_EQ(watch.counts(worker.rank())[0], BucketSizes(worker)[0]);
    worker.MarkAll({0});
    worker.EndStep(0);
  });
}

TEST_P(ReducerOverlap, IsOffOnRequest) {
  Watch watch(size());
  LoopbackWorld world(size(), Observed(&watch), ShortTimeout());
  const auto workers = MakeWorkers(world, FourSizes(), BucketEach(/*overlap=*/false));
  RunRanks(size(), [&](int rank) {
    workers[rank]->BeginStep(0);
    workers[rank]->MarkAll({3, 2, 1, 0});
  });
  // Everything is marked on every rank, and nothing was sent.
  for (int rank = 0; rank < size(); ++rank) EXPECT_THAT(watch.counts(rank), IsEmpty());
  RunRanks(size(), [&](int rank) {
    Worker& worker = *workers[rank];
    worker.EndStep(0);
    EXPECT_THAT(watch.counts(rank), ElementsAreArray(BucketSizes(worker)));
    // Nor was anything launched that had merely not been sent yet.
    EXPECT_EQ(worker.reducer().statistics().buckets_launched_in_backward, 0);
  });
}

TEST_P(ReducerOverlap, LaunchesBucketsInOrderWhateverTheOrderOfGradients) {
  RunWatched(BucketEach(), [](Worker& worker, Watch& watch) {
    const Order orders[] = {{0, 1, 2, 3}, {3, 0, 2, 1}, {1, 3, 0, 2}, {2, 1, 0, 3}};
    worker.ExpectStep(0, orders[worker.rank()]);
    EXPECT_THAT(watch.counts(worker.rank()), ElementsAreArray(BucketSizes(worker)));
  });
}

TEST_P(ReducerOverlap, ABucketWaitsForTheStreamsOfItsOwnGradientsOnly) {
  ReducerOptions options = BucketEach();
  options.replan = false;  // by the order of the first step
  RunWatched(options, [](Worker& worker, Watch& watch) {
    const int rank = worker.rank();
    StreamGate gate;
    const std::unique_ptr<Stream> stream = NewStream(rank);
    WarmUp(worker);
    watch.Forget(rank);
    LOCKSTEP_EXPECT_OK(worker.Begin());
    for (const size_t index : {3, 2, 1, 0}) {
      LOCKSTEP_EXPECT_OK(index == 1 ? gate.HoldUp(*stream) : absl::OkStatus());
      LOCKSTEP_EXPECT_OK(worker.ComputeOn(*stream, index, 7));
      worker.MarkAll({index}, stream.get());
    }
    // The stream stands at the third gradient.
    LOCKSTEP_EXPECT_OK(watch.Await(rank, 2, Soon()));
    EXPECT_EQ(watch.counts(rank).size(), 2);
    gate.Open();
    worker.EndStep(7);
    EXPECT_THAT(watch.counts(rank), ElementsAreArray(BucketSizes(worker)));
    worker.DestroyReducer();  // before the stream
  });
}

// Steps whose gradients are computed on a stream, each once its gate is open. Every step has gradients of its own, since it is issued
// before the one before it is done.
class HeldSteps {
 public:
  HeldSteps(int steps, Communicator& communicator, const ReducerOptions& options)
      : rank_(communicator.rank().value()),
        gates_(steps),
        stream_(NewStream(rank_)),
        worker_(communicator, MixedTable(), options) {
    for (int step = 0; step < steps; ++step) replicas_.push_back(std::make_unique<Replica>(MixedTable(), rank_));
    WarmUp(worker_);
  }

  // Returns when all of the step is issued, and none of it done.
  void Issue(int step) {
    Replica& replica = *replicas_[step];
    LOCKSTEP_EXPECT_OK(worker_.Begin());
    LOCKSTEP_EXPECT_OK(gates_[step].HoldUp(*stream_));
    for (const size_t index : replica.order()) LOCKSTEP_EXPECT_OK(replica.ComputeOn(*stream_, index, step));
    for (const size_t index : replica.order()) {
      LOCKSTEP_EXPECT_OK(worker_.reducer().MarkReady(index, replica.gradient(index), stream_.get()));
    }
    LOCKSTEP_EXPECT_OK(worker_.End(stream_.get()));
  }
  void Open(int step) { gates_[step].Open(); }

  // What follows on the stream, an optimiser say, sees averages.
  void ExpectAverages() {
    LOCKSTEP_EXPECT_OK(stream_->Synchronize(Soon()));
    for (size_t step = 0; step < replicas_.size(); ++step) {
      replicas_[step]->ExpectAverages(worker_.size(), {static_cast<int>(step)});
    }
    // The last step's end is told, or waited for, by whoever asks for what it left.
    EXPECT_THAT(worker_.reducer().AverageOf(0), IsOk());
    EXPECT_EQ(worker_.reducer().statistics().steps, replicas_.size() + 1);
  }

 private:
  const int rank_;
  std::vector<StreamGate> gates_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  const std::unique_ptr<Stream> stream_;
  Worker worker_;  // goes first
};

TEST_P(ReducerOverlap, EndOnAStreamReturnsBeforeTheGradientsAreReady) {
  constexpr int kSteps = 3;
  RunWorld(size(), [](Communicator& communicator) {
    HeldSteps steps(kSteps, communicator, BucketEach());
    for (int step = 0; step < kSteps; ++step) {
      steps.Issue(step);
      steps.Open(step);
    }
    steps.ExpectAverages();
  });
}

// Each step is held up until the next one has been issued.
TEST_P(ReducerOverlap, OnADeviceAStepIsIssuedBeforeTheLastOneIsDone) {
  if (OnHost()) GTEST_SKIP() << "the host waits for its own streams";
  constexpr int kSteps = 6;
  ReducerOptions options = BucketEach();
  options.replan = false;  // another plan waits for all steps
  RunWorld(size(), [&](Communicator& communicator) {
    HeldSteps steps(kSteps, communicator, options);
    for (int step = 0; step < kSteps; ++step) {
      steps.Issue(step);
      if (step > 0) steps.Open(step - 1);
    }
    steps.Open(kSteps - 1);
    steps.ExpectAverages();
  });
}

TEST_P(ReducerOverlap, MixesGradientsOfSeveralStreamsWithThoseReadyNow) {
  RunWorkers(size(), MixedTable(), Caps({64, 500}), [](Worker& worker) {
    const std::unique_ptr<Stream> streams[] = {NewStream(worker.rank()), NewStream(worker.rank())};
    for (int step = 0; step < 5; ++step) {
      LOCKSTEP_EXPECT_OK(worker.Begin());
      for (const size_t index : worker.order()) {
        const size_t where = (index + step + worker.rank()) % 3;
        Stream* const stream = where == 2 ? nullptr : streams[where].get();
        if (stream == nullptr) {
          worker.Compute(index, step);
        } else {
          LOCKSTEP_EXPECT_OK(worker.ComputeOn(*stream, index, step));
        }
        worker.MarkAll({index}, stream);
      }
      Stream* const end = step % 2 == 0 ? nullptr : streams[0].get();
      LOCKSTEP_EXPECT_OK(worker.End(end));
      LOCKSTEP_EXPECT_OK(end == nullptr ? absl::OkStatus() : end->Synchronize(Soon()));
      worker.ExpectAverages(step);
    }
    worker.DestroyReducer();  // before the streams
  });
}

}  // namespace
}  // namespace lockstep::testing

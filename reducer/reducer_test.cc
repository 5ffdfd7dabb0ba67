#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/deadline.h"
#include "comm/host/self_communicator.h"
#include "comm/symmetric_buffer.h"
#include "reducer/reducer_testing.h"
#include "tests/noting_communicator.h"
#include "tests/worlds.h"

namespace lockstep::testing {
namespace {

// Small, so that a small model has several buckets of every dtype.
const std::vector<size_t> kSmall = {64, 500};

// An order of its own for every rank and step, the same from run to run.
Order Shuffled(const Worker& worker, int step) {
  Order order = worker.order();
  std::mt19937 random(1000 * worker.rank() + step);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

class ReducerNumbers : public AveragesTest {
 protected:
  // The bits that each rank has after some steps in shuffled orders. EXPECTs their averages. The third one's gradients are ready on a
  // stream.
  std::vector<std::string> RunSteps(int steps, const ReducerOptions& options) const {
    std::vector<std::string> bits(size());
    RunWorkers(size(), MixedTable(), options, [&](Worker& worker) {
      EXPECT_GT(worker.plan().buckets.size(), 8);
      for (int step = 0; step < steps; ++step) {
        worker.ExpectStep(step, Shuffled(worker, step), step == 2 ? &worker.stream() : nullptr);
        bits[worker.rank()] += worker.Bytes();
      }
    });
    return bits;
  }
};

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerNumbers,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(kAllAverages)),
                         AveragesTest::NameOf);

TEST_P(ReducerNumbers, EqualThoseOfOneProcessAndAreTheSameBitsEverywhereAndInEveryMode) {
  const std::vector<std::string> bits = RunSteps(3, options(kSmall));
  EXPECT_THAT(bits, Each(bits[0]));
  ReducerOptions without = options(kSmall);
  without.overlap = false;
  EXPECT_EQ(RunSteps(3, without), bits) << "without overlap";
  for (const size_t in_memory : {1, 2, 5, 1000}) {
    ReducerOptions few = options(kSmall);
    few.buckets_in_memory_max = in_memory;
    few.copy_gradients = true;
    EXPECT_EQ(RunSteps(3, few), bits) << in_memory << " buckets in memory";
  }
}

TEST(Reducer, SendsNothingWhileAccumulating) {
  std::atomic<int> messages{0};
  LoopbackOptions network;
  network.observer = [&](const LoopbackMessage&) { ++messages; };
  LoopbackWorld world(2, network, ShortTimeout());
  const auto workers = MakeWorkers(world, Vectors(3, 10), Caps(kSmall));
  const int at_creation = messages;
  RunRanks(2, [&](int rank) {
    workers[rank]->Compute(0);
    LOCKSTEP_EXPECT_OK(workers[rank]->Backward({/*sync=*/false}));
    workers[rank]->ExpectLocals(0);
  });
  EXPECT_EQ(messages, at_creation);
}

// A world of one.
class ReducerAlone : public ::testing::Test {
 protected:
  SelfCommunicator self_{64};
  const ForTestDevice communicator_{&self_};
};

TEST(Reducer, OfOneEmptyParameterWithoutMemoryStillSteps) {
  RunWorkers(2, {MakeParameter("none", DType::kF32, {3, 0})}, {}, [](Worker& worker) {
    const auto nowhere = TensorView::Create(nullptr, DType::kF32, {3, 0}, {}, TestDeviceId());
    LOCKSTEP_ASSERT_OK(nowhere);
    for (int step = 0; step < 2; ++step) {
      LOCKSTEP_EXPECT_OK(worker.Begin());
      LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(0, *nowhere, nullptr));
      LOCKSTEP_EXPECT_OK(worker.End());
    }
    EXPECT_EQ(worker.reducer().statistics().steps, 2);
  });
}

// Where ranks share memory, so do buckets: nothing of them is sent.
TEST(Reducer, TakesBucketsFromTheCommunicatorsAllocator) {
  if (!OnHost()) GTEST_SKIP() << "the memory that ranks share is the host's";
  std::vector<WorldOptions> world_options;
  for (int rank : {0, 1}) {
    world_options.push_back(TestWorldOptions(/*store=*/nullptr, rank, 2));
    world_options.back().store_url = absl::StrCat("file://", ::testing::TempDir(), "/buckets");
  }
  std::vector<WorldOrError> worlds = CreateWorlds(world_options);
  for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
  RunRanks(2, [&](int rank) {
    Communicator& communicator = *(*worlds[rank])->communicator();
    for (const size_t in_memory : {0, 1}) {
      ReducerOptions options = Caps(kSmall);
      options.buckets_in_memory_max = in_memory;
      options.copy_gradients = true;
      Worker(communicator, Vectors(3, 1000), options).ExpectStep(0);
      EXPECT_THAT(communicator.FlightRecords(), HasSubstr("(1028 f32 sum, direct)"));
    }
  });
}

// Gradients that lie in memory which all ranks share are reduced there; where those of one rank do not, by way of the stage.
TEST(Reducer, ReducesGradientsInSharedMemoryDirectly) {
  if (!OnHost()) GTEST_SKIP() << "the memory that ranks share is the host's";
  RunOnOneHost(2, /*deterministic=*/false, [](Communicator& communicator) {
    constexpr int64_t kCount = 1000;
    const int rank = communicator.rank().value();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto shared, communicator.Allocate(3 * kCount * sizeof(float)));
    std::vector<float> own(kCount);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto reducer, Reducer::Create(&communicator, Vectors(3, kCount), {}));
    for (const bool all_shared : {true, false, true}) {
      float* const memory = reinterpret_cast<float*>(shared->data());
      float* const gradients[] = {memory + 2 * kCount, memory, all_shared || rank == 0 ? memory + kCount : own.data()};
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      for (size_t index = 0; index < 3; ++index) {
        std::fill_n(gradients[index], kCount, static_cast<float>(10 * index + rank));
        LOCKSTEP_EXPECT_OK(reducer->MarkReady(index, VectorView(gradients[index], DType::kF32, kCount), nullptr));
      }
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      for (size_t index = 0; index < 3; ++index) {
        EXPECT_THAT(std::vector<float>(gradients[index], gradients[index] + kCount), Each(10 * index + 0.5F));
      }
      const std::string records = communicator.FlightRecords();
      const size_t last = records.rfind("(3000 f32 avg");
      EXPECT_EQ(records.substr(last, 22) == "(3000 f32 avg, direct)", all_shared) << records;
    }
  });
}

// Where the memory is refused to one rank, all do without.
TEST(Reducer, DoesWithoutSharedMemoryWhereThereIsNone) {
  if (!OnHost()) GTEST_SKIP() << "the memory that ranks share is the host's";
  class Refusing : public NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
      const std::string what = absl::StrCat(bytes, " bytes of shared memory");
      if (rank() == Rank(1)) return absl::ResourceExhaustedError(what);
      return absl::UnavailableError(absl::StrCat("rank 1: ", what));
    }
  };
  RunWorld(2, [](Communicator& communicator) {
    MemoryMessageBoard board;
    Refusing refusing(&communicator, &board);
    ReducerOptions options = Caps(kSmall);
    options.copy_gradients = true;
    Worker(refusing, Vectors(3, 1000), options).ExpectStep(0);
  });
}

// Runs a body on several threads at once, by their number.
void OnThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back(body, t);
  for (std::thread& thread : threads) thread.join();
}

TEST(Reducer, TakesGradientsFromSeveralThreadsAtOnce) {
  constexpr int kThreads = 4;
  for (const bool overlap : {true, false}) {
    // A bucket each, which any thread may fill and launch.
    ReducerOptions options = Caps({0});
    options.overlap = overlap;
    RunWorkers(2, Vectors(64, 50), options, [](Worker& worker) {
      for (int step = 0; step < 50; ++step) {
        worker.BeginStep(step);
        const Order order = Shuffled(worker, step);
        OnThreads(kThreads, [&](int t) {
          for (size_t i = t; i < order.size(); i += kThreads) worker.MarkAll({order[i]});
        });
        worker.EndStep(step);
      }
    });
  }
}

// Rank 1 comes when rank 0 has waited in vain, in a step that succeeds and in one that fails on both.
TEST(Reducer, WaitsForAveragesByTurns) {
  absl::Notification waited[2];
  RunWorld(2, [&waited](Communicator& communicator) {
    Worker worker(communicator, Vectors(2, 100));
    const Deadline never = Deadline::Infinite();
    for (const int step : {0, 1}) {
      if (worker.rank() == 1) waited[step].WaitForNotification();
      worker.BeginStep(step);
      worker.MarkAll({1});
      if (step == 0 || worker.rank() == 0) worker.MarkAll({0});
      if (worker.rank() == 0) {
        for (const int milliseconds : {0, 1, 20}) {
          EXPECT_THAT(worker.reducer().TryEndBackward(nullptr, Deadline::AfterMs(milliseconds)), IsOkAndHolds(false));
          EXPECT_THAT(worker.Begin(), FailedPrecondition("was not ended"));
        }
        waited[step].Notify();
      }
      if (step == 0) {
        EXPECT_THAT(worker.reducer().TryEndBackward(nullptr, never), IsOkAndHolds(true));
        worker.ExpectAverages(step);
      } else {
        EXPECT_THAT(worker.reducer().TryEndBackward(nullptr, never).status(), FailedPrecondition("rank 1"));
      }
      EXPECT_THAT(worker.End(), FailedPrecondition("no backward"));
    }
    worker.ExpectStep(2);
  });
}

TEST_F(ReducerAlone, OneOfSeveralThreadsWinsWhenAllMarkTheSameGradient) {
  Worker worker(*communicator_, Vectors(3, 50), Caps(kSmall));
  for (int step = 0; step < 20; ++step) {
    worker.BeginStep(step);
    std::atomic<int> accepted{0};
    OnThreads(4, [&](int) {
      for (size_t index = 0; index < 3; ++index) accepted += worker.Mark(index).ok() ? 1 : 0;
    });
    EXPECT_EQ(accepted, 3);
    EXPECT_THAT(worker.End(), FailedPrecondition("marked ready twice"));
  }
  worker.ExpectStep(20);
}

// Frameworks disagree on it: a convolution with one input channel is row-major and channels-last at once.
TEST_F(ReducerAlone, TakesAnyStrideOfADimensionWithOneElement) {
  ReachableVector<float> memory(18, 4.0f);
  Worker worker(*communicator_, {MakeParameter("conv", DType::kF32, {2, 1, 3, 3}, {9, 1, 3, 1})});
  for (const int64_t any : {9, 1, 1000}) {
    const auto gradient = TensorView::Create(memory.data(), DType::kF32, {2, 1, 3, 3}, {9, any, 3, 1}, TestDeviceId());
    LOCKSTEP_ASSERT_OK(gradient);
    LOCKSTEP_EXPECT_OK(worker.Begin());
    LOCKSTEP_EXPECT_OK(worker.reducer().MarkReady(0, *gradient, nullptr));
    LOCKSTEP_EXPECT_OK(worker.End());
  }
  EXPECT_THAT(memory, Each(4.0f));
}

TEST(Reducer, CountsWhatItDid) {
  for (const bool overlap : {true, false}) {
    ReducerOptions options = Caps(kSmall);
    options.overlap = overlap;
    RunWorkers(2, MixedTable(), options, [&](Worker& worker) {
      EXPECT_EQ(worker.reducer().statistics().steps, 0);
      for (int step = 0; step < 3; ++step) {
        LOCKSTEP_EXPECT_OK(worker.Step(step));
        size_t bytes = 0;
        for (const BucketPlan::Bucket& bucket : worker.plan().buckets) {
          bytes += OnHost() ? (StatusTrailer::Elements(bucket.slots.size()) + 1) * sizeof(float) : bucket.bytes();
          for (const BucketPlan::Slot& slot : bucket.slots) bytes += OnHost() ? slot.elements * SizeOf(bucket.wire) : 0;
        }
        const ReducerStatistics statistics = worker.reducer().statistics();
        EXPECT_EQ(statistics.steps, step + 1);
        EXPECT_EQ(statistics.bytes_reduced, bytes);
        EXPECT_EQ(statistics.buckets, worker.plan().buckets.size());
        EXPECT_EQ(statistics.buckets_launched_in_backward, overlap ? statistics.buckets : 0);
        EXPECT_GT(statistics.backward_ms, 0);
        EXPECT_GT(statistics.communication_ms, 0);
        EXPECT_GE(statistics.exposed_ms, 0);
        EXPECT_LE(statistics.exposed_ms, statistics.communication_ms);
        if (!overlap) {
          EXPECT_EQ(statistics.hidden_ms(), 0);
        }
      }
    });
  }
}

// Gradients that a thread marks on its cudaStreamPerThread, which are taken in another thread's backward.
TEST(Reducer, WaitsForTheStreamOfTheThreadThatMarked) {
  void* const per_thread = reinterpret_cast<void*>(2);
  if (OnHost() || !TestDevice(0)->BorrowStream(per_thread).ok()) GTEST_SKIP() << "there is no such stream";
  ReducerOptions options;
  options.find_unused = true;
  RunWorkers(2, Vectors(2, 20), options, [per_thread](Worker& worker) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto stream, worker.communicator().accelerator()->BorrowStream(per_thread));
    LOCKSTEP_EXPECT_OK(worker.Begin({/*sync=*/false}));
    std::thread([&] {
      LOCKSTEP_EXPECT_OK(stream->Enqueue([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return absl::OkStatus();
      }));
      for (const size_t index : {1, 0}) {
        LOCKSTEP_EXPECT_OK(worker.ComputeOn(*stream, index, 1));
        LOCKSTEP_EXPECT_OK(worker.Mark(index, stream.get()));
      }
    }).join();
    LOCKSTEP_EXPECT_OK(worker.End());
    LOCKSTEP_EXPECT_OK(worker.BackwardOf({}));
    worker.ExpectAverages(1);
    worker.DestroyReducer();  // before the stream
  });
}

TEST(Reducer, BroadcastsFromAnyRank) {
  RunWorkers(3, Vectors(3, 100), {}, [](Worker& worker) {
    ReachableVector<float> values(5, static_cast<float>(worker.rank()));
    LOCKSTEP_EXPECT_OK(worker.reducer().Broadcast({VectorView(values.data(), DType::kF32, 5)}, Rank(2)));
    EXPECT_THAT(values, Each(2.0f));
  });
}

TEST(Reducer, RecordsTheTimesOfAStepInTheirOrder) {
  ReducerOptions options;
  options.bucket_caps_bytes = kSmall;
  RunWorkers(2, MixedTable(), options, [](Worker& worker) {
    for (int step = 0; step < 20; ++step) {
      const StepTime before = StepClock::now();
      LOCKSTEP_ASSERT_OK(worker.reducer().BeginForward({}));
      worker.ExpectStep(step, Shuffled(worker, step));
      const StepRecord& last = worker.reducer().record().last;
      EXPECT_EQ(last.step, step + 1);
      EXPECT_LE(before, last.forward_begin);
      EXPECT_LE(last.forward_begin, last.backward_begin);
      for (const BucketRecord& bucket : last.buckets) {
        EXPECT_LE(last.backward_begin, bucket.ready);
        EXPECT_LE(bucket.ready, bucket.launched);
        EXPECT_LE(bucket.launched, bucket.done());
        EXPECT_LE(bucket.done(), last.end);
      }
      EXPECT_LE(last.end_called, last.end);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing

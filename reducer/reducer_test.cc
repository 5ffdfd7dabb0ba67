#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/host/self_communicator.h"
#include "comm/symmetric_buffer.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/reducer_testing.h"
#include "tests/noting_communicator.h"
#include "tests/ranks.h"
#include "tests/test_device.h"
#include "tests/worlds.h"

namespace lockstep {
namespace {

using ::testing::Each;
using testing::ForTestDevice;
using ::testing::HasSubstr;
using testing::LoopbackWorld;
using testing::MixedTable;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

// Small, so that a small model has several buckets of every dtype.
ReducerOptions SmallBuckets() {
  ReducerOptions options;
  options.bucket_caps_bytes = {64, 500};
  return options;
}

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

// An order of its own for every rank and step, the same from run to run.
std::vector<size_t> Shuffled(std::vector<size_t> order, int rank, int step) {
  std::mt19937 random(1000 * rank + step);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

class ReducerNumbers : public ::testing::TestWithParam<std::tuple<int, Average>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  ReducerOptions options() const {
    ReducerOptions options = SmallBuckets();
    options.average = std::get<1>(GetParam());
    options.predivide_factor = 2;
    return options;
  }
};

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int, Average>>& info) {
  const char* const averages[] = {"Before", "After", "None", "InCollective", "Predivide"};
  return absl::StrCat(std::get<0>(info.param), "Ranks", averages[static_cast<int>(std::get<1>(info.param))]);
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReducerNumbers,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(Average::kBefore, Average::kAfter, Average::kNone,
                                                              Average::kInCollective, Average::kPredivide)),
                         NameOf);

TEST_P(ReducerNumbers, EqualThoseOfOneProcessAndAreTheSameBitsEverywhere) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  std::vector<std::string> bits(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    const auto reducer = Create(communicator, replica.table(), options());
    EXPECT_GT(reducer->plan().buckets.size(), 8);
    for (int step = 0; step < 4; ++step) {
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, Shuffled(replica.order(), rank, step)));
      replica.ExpectAverages(size(), {step}, options().average);
      bits[rank] += replica.Bytes();
    }
  });
  EXPECT_THAT(bits, Each(bits[0]));
}

TEST_P(ReducerNumbers, AreTheSameBitsWithAndWithoutOverlap) {
  std::vector<std::vector<std::string>> bits(2, std::vector<std::string>(size()));
  for (const bool overlap : {false, true}) {
    LoopbackWorld world(size(), {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(MixedTable(), rank);
      ReducerOptions with = options();
      with.overlap = overlap;
      const auto reducer = Create(communicator, replica.table(), with);
      for (int step = 0; step < 2; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, Shuffled(replica.order(), rank, step)));
        bits[overlap][rank] += replica.Bytes();
      }
    });
  }
  EXPECT_EQ(bits[false], bits[true]);
}

TEST_P(ReducerNumbers, AreTheSameBitsHoweverFewBucketsAreInMemory) {
  std::vector<std::vector<std::string>> bits;
  for (const size_t in_memory : {0, 1, 2, 5, 1000}) {
    bits.emplace_back(size());
    LoopbackWorld world(size(), {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(MixedTable(), rank);
      ReducerOptions few = options();
      few.buckets_in_memory_max = in_memory;
      const auto reducer = Create(communicator, replica.table(), few);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto stream, testing::TestDevice(rank)->CreateStream("gradients"));
      for (int step = 0; step < 3; ++step) {
        Stream* const ready_on = step == 2 ? stream.get() : nullptr;
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, Shuffled(replica.order(), rank, step), ready_on));
        replica.ExpectAverages(size(), {step}, options().average);
        bits.back()[rank] += replica.Bytes();
      }
    });
  }
  EXPECT_THAT(bits, Each(bits[0]));
}

TEST_P(ReducerNumbers, OfAccumulatedGradientsAreMeansOfSums) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(MixedTable(), communicator.rank().value());
    const auto reducer = Create(communicator, replica.table(), options());
    for (int window = 0; window < 2; ++window) {
      const int first = 10 * window;
      replica.Compute(first);
      for (int more = 1; more < 3; ++more) {
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
        replica.MarkAll(*reducer, replica.order());
        LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
        replica.Accumulate(first + more);
      }
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      replica.MarkAll(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      replica.ExpectAverages(size(), {first, first + 1, first + 2}, options().average);
      EXPECT_EQ(reducer->statistics().steps, window + 1);
    }
  });
}

TEST(Reducer, SendsNothingWhileAccumulating) {
  std::atomic<int> messages{0};
  LoopbackOptions network;
  network.observer = [&](const LoopbackMessage&) { ++messages; };
  LoopbackWorld world(2, network, ShortTimeout());
  std::vector<std::unique_ptr<Reducer>> reducers(2);
  world.Run([&](Communicator& communicator) {
    reducers[communicator.rank().value()] = Create(communicator, Vectors(3, 10), SmallBuckets());
  });
  const int at_creation = messages;
  testing::RunRanks(2, [&](int rank) {
    Replica replica(Vectors(3, 10), rank);
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducers[rank]->BeginBackward({/*sync=*/false}));
    replica.MarkAll(*reducers[rank], replica.order());
    LOCKSTEP_EXPECT_OK(reducers[rank]->EndBackward(nullptr));
    for (size_t index = 0; index < 3; ++index) replica.ExpectLocal(index, 0);
  });
  EXPECT_EQ(messages, at_creation);
}

TEST(Reducer, WorksInAWorldOfOne) {
  SelfCommunicator self(64);
  const ForTestDevice communicator(&self);
  Replica replica(MixedTable(), 0);
  const auto reducer = Create(*communicator, replica.table(), SmallBuckets());
  for (int step = 0; step < 3; ++step) {
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
    replica.ExpectAverages(1, {step});
  }
}

TEST(Reducer, OfOneEmptyParameterStillSteps) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica({testing::MakeParameter("none", DType::kF32, {0})}, communicator.rank().value());
    const auto reducer = Create(communicator, replica.table(), {});
    for (int step = 0; step < 2; ++step) LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
    EXPECT_EQ(reducer->statistics().steps, 2);
  });
}

TEST(Reducer, TakesAnEmptyGradientWithoutMemory) {
  SelfCommunicator self(64);
  const ForTestDevice communicator(&self);
  const auto reducer = Create(*communicator, {testing::MakeParameter("none", DType::kF32, {3, 0})}, {});
  const auto nowhere = TensorView::Create(nullptr, DType::kF32, {3, 0}, {}, testing::TestDeviceId());
  LOCKSTEP_ASSERT_OK(nowhere);
  LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
  LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, *nowhere, nullptr));
  LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
}

TEST(Reducer, MayHaveAllInOneBucketOrEachInItsOwn) {
  for (const std::vector<size_t>& caps : {std::vector<size_t>{SIZE_MAX}, std::vector<size_t>{0}}) {
    LoopbackWorld world(3, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(MixedTable(), rank);
      ReducerOptions options;
      options.bucket_caps_bytes = caps;
      const auto reducer = Create(communicator, replica.table(), options);
      for (int step = 0; step < 2; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, Shuffled(replica.order(), rank, step)));
        replica.ExpectAverages(3, {step});
      }
    });
  }
}

TEST(Reducer, MayHaveItsSmallBucketLast) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(5, 20), communicator.rank().value());
    ReducerOptions options;
    options.bucket_caps_bytes = {1, SIZE_MAX};
    options.caps_from = CapsFrom::kLast;
    const auto reducer = Create(communicator, replica.table(), options);
    ASSERT_EQ(reducer->plan().buckets.size(), 2);
    EXPECT_EQ(reducer->plan().buckets[0].slots.size(), 4);
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
    replica.ExpectAverages(2, {0});
  });
}

TEST(Reducer, LeavesIgnoredParametersAlone) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    std::vector<Parameter> table = Vectors(5, 20);
    table[1].ignored = table[4].ignored = true;
    Replica replica(table, communicator.rank().value());
    const auto reducer = Create(communicator, table, SmallBuckets());
    replica.Compute(0);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    EXPECT_THAT(reducer->MarkReady(4, replica.gradient(4), nullptr),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter 4 'p4' (f32[20]) is ignored")));
    replica.MarkAll(*reducer, {3, 2, 0});
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    for (const size_t index : {0, 2, 3}) replica.ExpectAverage(index, 2, {0});
    for (const size_t index : {1, 4}) replica.ExpectLocal(index, 0);
  });
}

// Where ranks share memory, so do buckets: nothing of them is sent.
TEST(Reducer, TakesBucketsFromTheCommunicatorsAllocator) {
  if (!testing::OnHost()) GTEST_SKIP() << "the memory that ranks share is the host's";
  std::vector<WorldOptions> options;
  for (int rank : {0, 1}) {
    options.push_back(TestWorldOptions(/*store=*/nullptr, rank, 2));
    options.back().store_url = absl::StrCat("file://", ::testing::TempDir(), "/buckets");
  }
  std::vector<std::unique_ptr<World>> worlds;
  for (WorldOrError& world : CreateWorlds(options)) {
    LOCKSTEP_ASSERT_OK(world);
    worlds.push_back(*std::move(world));
  }
  testing::RunRanks(2, [&](int rank) {
    Communicator& communicator = *worlds[rank]->communicator();
    Replica replica(Vectors(3, 1000), rank);
    for (const size_t in_memory : {0, 1}) {
      ReducerOptions options = SmallBuckets();
      options.buckets_in_memory_max = in_memory;
      const auto reducer = Create(communicator, replica.table(), options);
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
      replica.ExpectAverages(2, {0});
      EXPECT_THAT(communicator.FlightRecords(), HasSubstr("(1028 f32 sum, one_pass)"));
    }
  });
}

// Where the memory is refused to one rank, all do without.
TEST(Reducer, DoesWithoutSharedMemoryWhereThereIsNone) {
  if (!testing::OnHost()) GTEST_SKIP() << "the memory that ranks share is the host's";
  class Refusing : public testing::NotingCommunicator {
   public:
    using NotingCommunicator::NotingCommunicator;
    absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Allocate(size_t bytes) override {
      const std::string what = absl::StrCat(bytes, " bytes of shared memory");
      if (rank() == Rank(1)) return absl::ResourceExhaustedError(what);
      return absl::UnavailableError(absl::StrCat("rank 1: ", what));
    }
  };
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    testing::MemoryMessageBoard board;
    Refusing refusing(&communicator, &board);
    Replica replica(Vectors(3, 1000), communicator.rank().value());
    const auto reducer = Create(refusing, replica.table(), SmallBuckets());
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 0));
    replica.ExpectAverages(2, {0});
  });
}

TEST(Reducer, SeveralShareACommunicatorInTurn) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica generator(Vectors(5, 33), rank);
    Replica critic(MixedTable(), rank);
    const auto of_generator = Create(communicator, generator.table(), SmallBuckets());
    const auto of_critic = Create(communicator, critic.table(), SmallBuckets());
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(generator.RunStep(*of_generator, step));
      LOCKSTEP_EXPECT_OK(critic.RunStep(*of_critic, step + 1));
      generator.ExpectAverages(2, {step});
      critic.ExpectAverages(2, {step + 1});
    }
  });
}

TEST(Reducer, TakesGradientsFromSeveralThreadsAtOnce) {
  constexpr int kThreads = 4;
  for (const bool overlap : {true, false}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      const int rank = communicator.rank().value();
      Replica replica(Vectors(64, 50), rank);
      ReducerOptions options;
      options.bucket_caps_bytes = {0, 400, 2000};
      options.overlap = overlap;
      const auto reducer = Create(communicator, replica.table(), options);
      for (int step = 0; step < 8; ++step) {
        replica.Compute(step);
        LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
        const std::vector<size_t> order = Shuffled(replica.order(), rank, step);
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t) {
          threads.emplace_back([&, t] {
            for (size_t i = t; i < order.size(); i += kThreads) replica.MarkAll(*reducer, {order[i]});
          });
        }
        for (std::thread& thread : threads) thread.join();
        LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
        replica.ExpectAverages(2, {step});
      }
    });
  }
}

TEST(Reducer, OneOfSeveralThreadsWinsWhenAllMarkTheSameGradient) {
  SelfCommunicator self(64);
  const ForTestDevice communicator(&self);
  Replica replica(Vectors(3, 50), 0);
  const auto reducer = Create(*communicator, replica.table(), SmallBuckets());
  for (int step = 0; step < 20; ++step) {
    replica.Compute(step);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    std::atomic<int> accepted{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (size_t index = 0; index < 3; ++index) {
          if (reducer->MarkReady(index, replica.gradient(index), nullptr).ok()) ++accepted;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(accepted, 3);
    EXPECT_THAT(reducer->EndBackward(nullptr),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("marked ready twice")));
  }
  LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 20));
  replica.ExpectAverages(1, {20});
}

TEST(Reducer, TakesAnyStrideOfADimensionWithOneElement) {
  // Frameworks disagree on it: a convolution with one input channel is row-major and channels-last at once.
  SelfCommunicator self(64);
  const ForTestDevice communicator(&self);
  ReachableVector<float> memory(18, 4.0f);
  const auto reducer =
      Create(*communicator, {testing::MakeParameter("conv", DType::kF32, {2, 1, 3, 3}, {9, 1, 3, 1})}, {});
  for (const std::vector<int64_t>& strides : {std::vector<int64_t>{9, 9, 3, 1}, {9, 1, 3, 1}, {9, 1000, 3, 1}}) {
    const auto gradient =
        TensorView::Create(memory.data(), DType::kF32, {2, 1, 3, 3}, strides, testing::TestDeviceId());
    LOCKSTEP_ASSERT_OK(gradient);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, *gradient, nullptr));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
  }
  EXPECT_THAT(memory, Each(4.0f));
}

TEST(Reducer, CountsWhatItDid) {
  for (const bool overlap : {true, false}) {
    LoopbackWorld world(2, {}, ShortTimeout());
    world.Run([&](Communicator& communicator) {
      Replica replica(MixedTable(), communicator.rank().value());
      ReducerOptions options = SmallBuckets();
      options.overlap = overlap;
      const auto reducer = Create(communicator, replica.table(), options);
      EXPECT_EQ(reducer->statistics().steps, 0);
      for (int step = 0; step < 3; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
        size_t bytes = 0;
        for (const BucketPlan::Bucket& bucket : reducer->plan().buckets) bytes += bucket.bytes();
        const ReducerStatistics statistics = reducer->statistics();
        EXPECT_EQ(statistics.steps, step + 1);
        EXPECT_EQ(statistics.bytes_reduced, bytes);
        EXPECT_EQ(statistics.buckets, reducer->plan().buckets.size());
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

TEST(Reducer, BroadcastsFromAnyRank) {
  LoopbackWorld world(3, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(3, 100), rank);
    const auto reducer = Create(communicator, replica.table(), {});
    ReachableVector<float> values(5, static_cast<float>(rank));
    LOCKSTEP_EXPECT_OK(reducer->Broadcast({testing::VectorView(values.data(), DType::kF32, 5)}, Rank(2)));
    EXPECT_THAT(values, Each(2.0f));
  });
}

}  // namespace
}  // namespace lockstep

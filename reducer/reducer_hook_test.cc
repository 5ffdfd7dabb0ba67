// Hooks: what is done instead of the all-reduce gives the same averages.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bucket_kernels.h"
#include "kernels/cpu/cast.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/parameter.h"
#include "reducer/reducer.h"
#include "reducer/reducer_testing.h"
#include "tests/ranks.h"
#include "tests/test_device.h"

namespace lockstep {
namespace {

using ::testing::Each;
using testing::LoopbackWorld;
using testing::MixedTable;
using testing::ReachableVector;
using testing::Replica;
using testing::ShortTimeout;
using testing::Vectors;

constexpr std::chrono::seconds kLong{20};

std::unique_ptr<Reducer> Create(Communicator& communicator, const std::vector<Parameter>& table,
                                ReducerOptions options) {
  auto reducer = Reducer::Create(&communicator, table, std::move(options));
  LOCKSTEP_EXPECT_OK(reducer);
  return *std::move(reducer);
}

CollectiveRequest Average(const HookBucket& bucket, Collective collective, DType dtype, void* data) {
  CollectiveRequest request;
  request.device = bucket.communicator->device();
  request.collective = collective;
  request.dtype = dtype;
  request.op = ReduceOp::kAvg;
  request.count = bucket.elements;
  request.input = data;
  request.output = data;
  return request;
}

// Enqueues a collective of the hook's, whose failure is the bucket's.
absl::Status Enqueue(HookBucket& bucket, Stream& stream, const CollectiveRequest& request) {
  return bucket.communicator->Enqueue(request, &stream,
                                      [&bucket](const absl::Status& status) { bucket.status.Update(status); });
}

// Two phases: each rank averages a block, and all gather the blocks. The last block may be shorter than the others.
class TwoPhases : public CommHook {
 public:
  std::string name() const override { return "two phases"; }
  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    const int ranks = bucket.communicator->size();
    const int rank = bucket.communicator->rank().value();
    std::vector<int64_t>& counts = counts_[bucket.index];
    counts.assign(ranks, static_cast<int64_t>(bucket.elements / ranks));
    counts.back() += static_cast<int64_t>(bucket.elements % ranks);
    char* const block = static_cast<char*>(bucket.data) + bucket.elements / ranks * rank * SizeOf(bucket.dtype);
    CollectiveRequest request = Average(bucket, Collective::kReduceScatter, bucket.dtype, bucket.data);
    request.output = block;
    request.counts = counts;
    absl::Status status = Enqueue(bucket, stream, request);
    if (!status.ok()) return status;
    request.collective = Collective::kAllGather;
    request.op = ReduceOp::kSum;
    request.input = block;
    request.output = bucket.data;
    return Enqueue(bucket, stream, request);
  }

 private:
  std::map<size_t, std::vector<int64_t>> counts_;  // by bucket: borrowed until the stream has passed
};

// Averages 16-bit floats in f32, and everything in memory of its own.
class InFloat32 : public CommHook {
 public:
  std::string name() const override { return "in f32"; }
  absl::Status Issue(HookBucket& bucket, Stream& stream) override {
    const DType dtype = SizeOf(bucket.dtype) == 2 ? DType::kF32 : bucket.dtype;
    ReachableVector<char>& memory = memory_[bucket.index];
    memory.assign(bucket.elements * SizeOf(dtype) + 1, '\x5A');
    void* const result = memory.data();
    bucket.result = testing::VectorView(result, dtype, bucket.elements);
    const absl::Status status = Cast(bucket, dtype, result, stream);
    if (!status.ok()) return status;
    return Enqueue(bucket, stream, Average(bucket, Collective::kAllReduce, dtype, result));
  }

 private:
  static absl::Status Cast(HookBucket& bucket, DType dtype, void* result, Stream& stream) {
    if (testing::OnHost()) {
      return stream.Enqueue([&bucket, dtype, result] {
        return kernels::CastScaled(dtype, result, bucket.dtype, bucket.data, bucket.elements, 1);
      });
    }
    const TensorView data = testing::VectorView(bucket.data, bucket.dtype, bucket.elements);
    const Accelerator accelerator = FindAccelerator(*bucket.communicator, data.device()).value();
    return accelerator.kernels->Gather({{&data, 0, bucket.elements}}, {}, result, dtype, 1, stream);
  }

  std::map<size_t, ReachableVector<char>> memory_;  // by bucket
};

// Threads that complete hooks; joined in the end.
class Completers {
 public:
  ~Completers() {
    for (std::thread& thread : threads_) thread.join();
  }
  void Complete(HookBucket& bucket, const std::shared_ptr<HookCompletion>& completion) {
    threads_.emplace_back([&bucket, completion] {
      completion->Done(bucket.communicator->Run(Average(bucket, Collective::kAllReduce, bucket.dtype, bucket.data)));
    });
  }

 private:
  std::vector<std::thread> threads_;
};

struct Way {
  const char* name;
  std::function<std::shared_ptr<CommHook>()> make;  // for each rank
};

std::shared_ptr<CommHook> OnAnotherThread() {
  const auto completers = std::make_shared<Completers>();
  return MakeHostCompletedHook("on another thread", kLong, [completers](HookBucket& bucket, auto completion) {
    completers->Complete(bucket, completion);
  });
}

const Way kWays[] = {{"TwoPhases", [] { return std::make_shared<TwoPhases>(); }},
                     {"InFloat32", [] { return std::make_shared<InFloat32>(); }},
                     {"OnAnotherThread", OnAnotherThread}};

class Hooks : public ::testing::TestWithParam<std::tuple<int, Way>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  ReducerOptions options() const {
    ReducerOptions options;
    options.bucket_caps_bytes = {64, 500};
    options.hook = std::get<1>(GetParam()).make();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Reducer, Hooks, ::testing::Combine(::testing::Values(2, 3), ::testing::ValuesIn(kWays)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param).name, std::get<0>(info.param), "Ranks");
                         });

TEST_P(Hooks, AverageLikeTheAllReduce) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  std::vector<std::string> bytes(size());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(MixedTable(), rank);
    // What the hook leaves is the average: that of the reducer is not taken once more.
    for (const auto average : {Average::kBefore, Average::kAfter}) {
      ReducerOptions its_options = options();
      its_options.average = average;
      const auto reducer = Create(communicator, replica.table(), its_options);
      for (int step = 0; step < 4; ++step) {
        LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step));
        replica.ExpectAverages(size(), {step});
      }
    }
    bytes[rank] = replica.Bytes();
  });
  EXPECT_THAT(bytes, Each(bytes[0]));
}

TEST_P(Hooks, AccumulateAndTakeTurns) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(MixedTable(), communicator.rank().value());
    ReducerOptions its_options = options();
    its_options.buckets_in_memory_max = 2;
    const auto reducer = Create(communicator, replica.table(), its_options);
    for (int step = 0; step < 6; step += 2) {
      replica.Compute(step);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({/*sync=*/false}));
      replica.MarkAll(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      replica.Accumulate(step + 1);
      LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
      replica.MarkAll(*reducer, replica.order());
      LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
      replica.ExpectAverages(size(), {step, step + 1});
    }
  });
}

// A hook may wrap a compressed bucket: it sees 16 bits, and what it leaves goes to gradients of 32.
TEST_P(Hooks, WorkOnCompressedBuckets) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    // Threes: their thirds and halves are exact, whatever the number of ranks.
    ReachableVector<float> gradient(1001, 6.0F * (communicator.rank().value() + 1));
    ReducerOptions its_options = options();
    its_options.compress = DType::kBF16;
    const auto reducer = Create(communicator, {testing::MakeParameter("p", DType::kF32, {1001})}, its_options);
    EXPECT_EQ(reducer->plan().buckets[0].wire, DType::kBF16);
    LOCKSTEP_EXPECT_OK(reducer->BeginBackward({}));
    LOCKSTEP_EXPECT_OK(reducer->MarkReady(0, testing::VectorView(gradient.data(), DType::kF32, 1001), nullptr));
    LOCKSTEP_EXPECT_OK(reducer->EndBackward(nullptr));
    EXPECT_THAT(gradient, Each(3.0F * (size() + 1)));
  });
}

TEST_P(Hooks, LeaveUnusedParametersAlone) {
  LoopbackWorld world(size(), {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    const int rank = communicator.rank().value();
    Replica replica(Vectors(4, 16), rank);
    ReducerOptions its_options = options();
    its_options.find_unused = true;
    const auto reducer = Create(communicator, replica.table(), its_options);
    for (int step = 0; step < 3; ++step) {
      LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, {3, 0, 1}));
      for (const size_t index : {0, 1, 3}) replica.ExpectAverage(index, size(), {step});
      replica.ExpectLocal(2, step);
    }
  });
}

TEST(NoopHooks, LeaveEachRankItsOwn) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(MixedTable(), communicator.rank().value());
    ReducerOptions options;
    options.hook = MakeNoopHook();
    const auto reducer = Create(communicator, replica.table(), options);
    LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, 4));
    for (const size_t index : replica.order()) replica.ExpectLocal(index, 4);
  });
}

// Writes down what it is given.
class Clerk : public CommHook {
 public:
  std::string name() const override { return "clerk"; }
  bool communicates() const override { return false; }
  absl::Status Issue(HookBucket& bucket, Stream&) override {
    buckets.push_back(bucket);
    return absl::OkStatus();
  }

  std::vector<HookBucket> buckets;
};

TEST(HookBuckets, SayWhatTheyAre) {
  LoopbackWorld world(2, {}, ShortTimeout());
  world.Run([&](Communicator& communicator) {
    Replica replica(Vectors(3, 100), communicator.rank().value());
    ReducerOptions options;
    options.bucket_caps_bytes = {0};
    options.replan = false;
    options.compress = DType::kF16;
    const auto clerk = std::make_shared<Clerk>();
    options.hook = clerk;
    const auto reducer = Create(communicator, replica.table(), options);
    for (int step = 0; step < 2; ++step) LOCKSTEP_EXPECT_OK(replica.RunStep(*reducer, step, {0, 1, 2}));
    ASSERT_EQ(clerk->buckets.size(), 6);
    for (size_t i = 0; i < 6; ++i) {
      const HookBucket& bucket = clerk->buckets[i];
      EXPECT_EQ(bucket.index, i % 3);
      EXPECT_EQ(bucket.count, 3);
      EXPECT_EQ(bucket.is_last(), i % 3 == 2);
      EXPECT_EQ(bucket.step, i / 3 + 1);
      EXPECT_EQ(bucket.dtype, DType::kF16);
      EXPECT_EQ(bucket.plan, &reducer->plan().buckets[i % 3]);
      EXPECT_EQ(bucket.plan->slots[0].parameter, 2 - i % 3);
      EXPECT_EQ(bucket.elements, bucket.plan->tail);
      EXPECT_GE(bucket.elements, 100);
      EXPECT_EQ(bucket.communicator, nullptr);
    }
  });
}

}  // namespace
}  // namespace lockstep

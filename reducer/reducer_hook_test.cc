// Hooks: what is done instead of the all-reduce gives the same averages.

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/bucket_kernels.h"
#include "kernels/cpu/cast.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/reducer_testing.h"

namespace lockstep::testing {
namespace {

constexpr std::chrono::seconds kLong{20};

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
    CollectiveRequest request = AverageOf(bucket);
    request.collective = Collective::kReduceScatter;
    request.output = block;
    request.counts = counts;
    LOCKSTEP_RETURN_IF_ERROR(EnqueueFor(bucket, stream, request));
    request.collective = Collective::kAllGather;
    request.op = ReduceOp::kSum;
    request.input = block;
    request.output = bucket.data;
    return EnqueueFor(bucket, stream, request);
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
    bucket.result = VectorView(result, dtype, bucket.elements);
    LOCKSTEP_RETURN_IF_ERROR(Cast(bucket, dtype, result, stream));
    CollectiveRequest request = AverageOf(bucket);
    request.dtype = dtype;
    request.input = request.output = result;
    return EnqueueFor(bucket, stream, request);
  }

 private:
  static absl::Status Cast(HookBucket& bucket, DType dtype, void* result, Stream& stream) {
    if (OnHost()) {
      return stream.Enqueue([&bucket, dtype, result] {
        return kernels::CastScaled(dtype, result, bucket.dtype, bucket.data, bucket.elements, 1);
      });
    }
    const TensorView data = VectorView(bucket.data, bucket.dtype, bucket.elements);
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
    threads_.emplace_back([&bucket, completion] { completion->Done(bucket.communicator->Run(AverageOf(bucket))); });
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
  // Workers with a hook each.
  void Run(const std::vector<Parameter>& table, const std::function<void(ReducerOptions*)>& change,
           const std::function<void(Worker&)>& body) const {
    RunWorld(size(), [&](Communicator& communicator) {
      ReducerOptions options = Caps({64, 500});
      options.hook = std::get<1>(GetParam()).make();
      change(&options);
      Worker worker(communicator, table, options);
      body(worker);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Reducer, Hooks, ::testing::Combine(::testing::Values(2, 3), ::testing::ValuesIn(kWays)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param).name, std::get<0>(info.param), "Ranks");
                         });

TEST_P(Hooks, AverageLikeTheAllReduce) {
  // What the hook leaves is the average: that of the reducer is not taken once more.
  for (const auto average : {Average::kBefore, Average::kAfter}) {
    std::vector<std::string> bytes(size());
    const auto change = [&](ReducerOptions* options) { options->average = average; };
    Run(MixedTable(), change, [&](Worker& worker) {
      for (int step = 0; step < 4; ++step) worker.ExpectStep(step);
      bytes[worker.rank()] = worker.Bytes();
    });
    EXPECT_THAT(bytes, Each(bytes[0]));
  }
}

// A hook may wrap a compressed bucket: it sees 16 bits, and what it leaves goes to gradients of 32.
TEST_P(Hooks, WorkOnCompressedBuckets) {
  Run(
      Vectors(1, 1001), [](ReducerOptions* options) { options->compress = DType::kBF16; },
      [](Worker& worker) {
        EXPECT_EQ(worker.plan().buckets[0].wire, DType::kBF16);
        // Threes: their thirds and halves are exact, whatever the number of ranks.
        Fill(worker.gradient(0), 6.0F * (worker.rank() + 1));
        LOCKSTEP_EXPECT_OK(worker.Backward());
        EXPECT_THAT(Floats(worker.gradient(0)), Each(3.0F * (worker.size() + 1)));
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
  RunWorld(2, [](Communicator& communicator) {
    ReducerOptions options = Caps({0});
    options.replan = false;
    options.compress = DType::kF16;
    const auto clerk = std::make_shared<Clerk>();
    options.hook = clerk;
    Worker worker(communicator, Vectors(3, 100), options);
    for (int step = 0; step < 2; ++step) LOCKSTEP_EXPECT_OK(worker.Step(step));
    ASSERT_EQ(clerk->buckets.size(), 6);
    for (size_t i = 0; i < 6; ++i) {
      const HookBucket& bucket = clerk->buckets[i];
      EXPECT_EQ(bucket.index, i % 3);
      EXPECT_EQ(bucket.count, 3);
      EXPECT_EQ(bucket.is_last(), i % 3 == 2);
      EXPECT_EQ(bucket.step, i / 3 + 1);
      EXPECT_EQ(bucket.dtype, DType::kF16);
      EXPECT_EQ(bucket.plan, &worker.plan().buckets[i % 3]);
      EXPECT_EQ(bucket.plan->slots[0].parameter, 2 - i % 3);
      EXPECT_EQ(bucket.elements, bucket.plan->trailer);
      EXPECT_GE(bucket.elements, 100);
      EXPECT_EQ(bucket.communicator, nullptr);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing

// A collective on a communicator that has carried out its like before allocates nothing. By itself because it replaces the
// global allocation functions.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
#include "comm/work.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"

namespace {

thread_local int64_t allocations = 0;

}  // namespace

void* operator new(std::size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace lockstep {
namespace {

TEST(TransportCommunicator, ABlockingCollectiveAllocatesNothingOnceWarm) {
  testing::LoopbackWorld world(3);
  world.Run([](Communicator& self) {
    std::vector<float> input(100'000, 1.0f), output(100'000);
    int failures = 0;
    const auto run = [&](int rounds) {
      for (int round = 0; round < rounds; ++round) {
        for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast, Collective::kBarrier}) {
          for (const size_t count : {1, 30'000}) {
            CollectiveRequest request;
            request.collective = collective;
            request.dtype = DType::kF32;
            request.count = count;
            request.input = input.data();
            request.output = output.data();
            if (!self.Run(request).ok()) ++failures;  // a matcher would allocate
          }
        }
      }
    };
    // How far the pools grow, and when, depends on the threads; in the end rounds go by without it.
    int64_t fewest = INT64_MAX;
    for (int round = 0; round < 30; ++round) {
      const int64_t before = allocations;
      run(20);
      fewest = std::min(fewest, allocations - before);
    }
    EXPECT_EQ(fewest, 0);
    EXPECT_EQ(failures, 0);
  });
}

// Several in flight at once, each with a handle that is kept until the next of its place is started.
TEST(TransportCommunicator, AStartedCollectiveAllocatesNothingOnceWarm) {
  testing::LoopbackWorld world(2);
  world.Run([](Communicator& self) {
    constexpr int kInFlight = 4;
    std::vector<float> input(1000, 1.0f), output(kInFlight * input.size());
    std::vector<Work> works;
    int failures = 0;
    const auto start = [&](int i) {
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kF32;
      request.count = input.size();
      request.input = input.data();
      request.output = output.data() + i * input.size();
      absl::StatusOr<Work> work = self.Start(request);
      if (!work.ok()) ++failures;
      return work;
    };
    for (int i = 0; i < kInFlight; ++i) {
      absl::StatusOr<Work> work = start(i);
      ASSERT_TRUE(work.ok());
      works.push_back(*std::move(work));
    }
    int64_t fewest = INT64_MAX;
    for (int round = 0; round < 30; ++round) {
      const int64_t before = allocations;
      // More than once through any ring of pools.
      for (int call = 0; call < 200; ++call) {
        Work& place = works[call % kInFlight];
        if (!place.Wait(Deadline::AfterMs(60'000)).ok()) ++failures;
        absl::StatusOr<Work> work = start(call % kInFlight);
        if (work.ok()) place = *std::move(work);
      }
      fewest = std::min(fewest, allocations - before);
    }
    for (Work& work : works) {
      if (!work.Wait(Deadline::AfterMs(60'000)).ok()) ++failures;
    }
    EXPECT_EQ(fewest, 0);
    EXPECT_EQ(failures, 0);
  });
}

TEST(TransportCommunicator, APreparedCollectiveAllocatesNothingOnceWarm) {
  testing::LoopbackWorld world(2);
  world.Run([](Communicator& self) {
    std::vector<float> input(30'000, 1.0f), output(30'000);
    CollectiveRequest request;
    request.collective = Collective::kAllReduce;
    request.dtype = DType::kF32;
    request.op = ReduceOp::kAvg;
    request.count = input.size();
    request.input = input.data();
    request.output = output.data();
    auto prepared = self.Prepare(request);
    ASSERT_TRUE(prepared.ok());
    int failures = 0;
    int64_t fewest = INT64_MAX;
    for (int round = 0; round < 30; ++round) {
      const int64_t before = allocations;
      for (int start = 0; start < 20; ++start) {
        if (!(*prepared)->Start().ok() || !(*prepared)->Wait(Deadline::AfterMs(60'000)).ok()) ++failures;
        if (!(*prepared)->Run().ok()) ++failures;
      }
      fewest = std::min(fewest, allocations - before);
    }
    EXPECT_EQ(fewest, 0);
    EXPECT_EQ(failures, 0);
  });
}

}  // namespace
}  // namespace lockstep

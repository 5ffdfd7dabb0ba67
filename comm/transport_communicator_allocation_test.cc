// A collective on a communicator that has carried out its like before allocates nothing. By itself because it replaces the
// global allocation functions.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
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

// Collectives in shared memory like those that were carried out before allocate nothing. By itself because it replaces the global
// allocation functions.

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/status_matchers.h"
#include "base/thread.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/engine/memory_testing.h"
#include "comm/schedule/schedule.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"

namespace {

std::atomic<int64_t> allocations{0};

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

TEST(MemoryExecutor, AllocatesNothingOnceWarm) {
  constexpr size_t kCount = 300'000;  // several pieces
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports transports, CreateShmWorld(2));
  std::unique_ptr<MemoryRank> ranks[2];
  {
    Thread other("rank", [&] {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks[1],
                                    MemoryRank::Create(transports[1].get(), kCount * sizeof(float), TestDeadline()));
    });
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks[0],
                                  MemoryRank::Create(transports[0].get(), kCount * sizeof(float), TestDeadline()));
  }
  ASSERT_NE(ranks[1], nullptr);
  // Three in flight at a time.
  MemoryJob jobs[2][3];
  for (int i : {0, 1}) {
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kF32, kCount, ranks[i]->data(), ranks[i]->data());
    ASSERT_THAT(ranks[i]->Prepare(&jobs[i][0], request, Algorithm::kDirect), IsOk());
    request.count = 2;
    ASSERT_THAT(ranks[i]->Prepare(&jobs[i][1], request, Algorithm::kInline), IsOk());
    request.collective = Collective::kAllGather;
    request.count = 4000;
    request.output = ranks[i]->data() + 16000;
    ASSERT_THAT(ranks[i]->Prepare(&jobs[i][2], request, Algorithm::kDirect), IsOk());
  }
  const auto run = [&] {
    for (int i : {0, 1}) {
      for (MemoryJob& job : jobs[i]) ranks[i]->Start(&job);
    }
    for (int turn = 0; turn < 1000 && jobs[0][2].ends + jobs[1][2].ends < 2; ++turn) {
      for (const auto& rank : ranks) rank->executor().Poll();
    }
  };
  run();
  const int64_t before = allocations;
  for (int round = 0; round < 100; ++round) run();
  EXPECT_EQ(allocations, before);
  for (const auto& of_rank : jobs) {
    for (const MemoryJob& job : of_rank) {
      EXPECT_EQ(job.ends, 1);
      EXPECT_THAT(job.end, IsOk());
    }
  }
}

}  // namespace
}  // namespace lockstep

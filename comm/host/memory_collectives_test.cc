// Every collective in shared memory, with ranks on threads that sleep while they wait.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "comm/engine/memory_testing.h"
#include "comm/record/flight_recorder.h"
#include "comm/schedule/schedule.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

// One call of one rank; the next one is another's.
class Call {
 public:
  // `memory`: of these bytes, from which the buffers are taken; null: ordinary memory. The reference outlives this.
  Call(const CaseReference& reference, const MemoryRank& self, char* memory = nullptr, size_t bytes = 0)
      : reference_(reference),
        arena_(memory, bytes),
        run_(reference_, self.rank(), CaseMemory{nullptr, memory == nullptr ? nullptr : &arena_}) {}

  absl::Status Begin(MemoryRank* self) {
    LOCKSTEP_RETURN_IF_ERROR(self->Prepare(&job_, run_.request(), reference_.collective().algorithm));
    self->Start(&job_, &record_);
    return absl::OkStatus();
  }
  void Check() {
    ASSERT_THAT(job_.end, IsOk());
    EXPECT_EQ(job_.ends, 1);
    EXPECT_EQ(run_.Check(), "") << ToString(reference_.collective());
  }
  const MemoryJob& job() const { return job_; }

  // More than the buffers and the guards around them take.
  static size_t Bytes(size_t vector) { return 2 * vector * sizeof(float) + 2048; }

 private:
  const CaseReference& reference_;
  CaseArena arena_;
  CaseRun run_;
  FlightRecord record_;
  MemoryJob job_;
};

constexpr Collective kInlineCollectives[] = {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                             Collective::kAllGather, Collective::kBarrier};

constexpr Collective kStagedCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                             Collective::kAllToAll};

// The same on every rank that draws with the same seed.
CollectiveCase Draw(std::mt19937& random, int size, size_t block_max) {
  const auto below = [&](uint32_t limit) { return random() % limit; };
  CollectiveCase drawn;
  drawn.algorithm = Algorithm::kDirect;
  drawn.seed = below(1000);
  drawn.root = static_cast<int>(below(size));
  drawn.in_place = below(2) == 0;
  const uint32_t way = below(3);
  if (way == 0) {
    drawn.algorithm = Algorithm::kInline;
    drawn.collective = kInlineCollectives[below(5)];
    drawn.count = drawn.collective == Collective::kBarrier ? 0 : below(kShareBytesMax / sizeof(float) + 1);
    return drawn;
  }
  if (way == 1) {
    drawn.algorithm = Algorithm::kStaged;
    drawn.collective = kStagedCollectives[below(4)];
    const bool two_shot = drawn.collective == Collective::kAllReduce && below(2) == 0;
    if (two_shot) drawn.algorithm = Algorithm::kStagedTwoShot;
  } else {
    do {
      drawn.collective = static_cast<Collective>(below(kCollectiveCount));
    } while (drawn.collective == Collective::kBarrier);
  }
  drawn.in_place = drawn.in_place && drawn.collective != Collective::kAllToAll;  // which copies beforehand
  drawn.count = below(4) == 0 ? below(4) : below(static_cast<uint32_t>(block_max));
  return drawn;
}

class MemoryCollectivesTest : public testing::TestWithParam<int> {
 protected:
  // One thread for each rank. Nobody polls before he sleeps: a wake-up that is lost fails the test.
  static void Run(int size, size_t region_bytes, const std::function<void(MemoryRank* self)>& body) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ShmTransports transports,
                                  CreateShmWorld(size, [](ShmTransportOptions* options) { options->yields_max = 0; }));
    // Another order than the transport's.
    std::vector<Rank> ranks;
    for (int i = size - 1; i >= 0; --i) ranks.emplace_back(i);
    std::vector<Thread> threads;
    for (const auto& transport : transports) {
      threads.emplace_back("rank", [&, self = transport.get()] {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto rank, MemoryRank::Create(self, region_bytes, TestDeadline(), ranks));
        body(rank.get());
      });
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Sizes, MemoryCollectivesTest, testing::Range(1, 6), testing::PrintToStringParamName());

// Many collectives in flight, of all kinds and by every algorithm, some of which finish long before others begin; buffers lie
// elsewhere on each rank.
TEST_P(MemoryCollectivesTest, PipelinesOfAllCollectives) {
  constexpr int kCalls = 24, kRounds = 12;
  constexpr size_t kBlockMax = 3000;
  const int size = GetParam();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::deque<CaseReference> references;
  for (int i = 0; i < kRounds * kCalls; ++i) references.emplace_back(Draw(random, size, kBlockMax), size);
  const size_t slot = Call::Bytes(kBlockMax * size);
  Run(size, kCalls * slot + 64, [&](MemoryRank* self) {
    std::mt19937 own_random(seed + self->rank().value());
    for (int round = 0; round < kRounds; ++round) {
      std::vector<std::unique_ptr<Call>> calls;
      for (int i = 0; i < kCalls; ++i) {
        const CaseReference& reference = references[round * kCalls + i];
        const bool direct = Has(reference.collective().algorithm, algorithms::kDirect);
        char* const memory = self->data() + i * slot + self->rank().value() * sizeof(float);
        calls.push_back(std::make_unique<Call>(reference, *self, direct ? memory : nullptr, slot - 64));
        ASSERT_THAT(calls.back()->Begin(self), IsOk());
        // Some rank waits, others run ahead.
        if (own_random() % 8 == 0) {
          ASSERT_TRUE(self->Await(calls.back()->job(), TestDeadline()));
        }
      }
      ASSERT_TRUE(self->Await(calls.back()->job(), TestDeadline()));
      for (const auto& call : calls) call->Check();
    }
  });
}

// Of many rounds and of few, one behind the other: each takes the stage where the one before has left it.
TEST_P(MemoryCollectivesTest, StagedVectorsOfAllLengths) {
  constexpr int kCalls = 12;
  const int size = GetParam();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::deque<CaseReference> references;
  for (int i = 0; i < kCalls; ++i) {
    CollectiveCase what;
    what.algorithm = i % 5 == 4 ? Algorithm::kStagedTwoShot : Algorithm::kStaged;
    what.collective = kStagedCollectives[i % 5 % 4];
    what.count = random() % (i % 3 == 0 ? 300'000 : 20'000) / (IsByRank(what.collective) ? size : 1);
    what.op = i % 2 == 0 ? ReduceOp::kSum : ReduceOp::kAvg;
    what.in_place = random() % 2 == 0 && what.collective != Collective::kAllToAll;
    references.emplace_back(what, size);
  }
  Run(size, 4096, [&](MemoryRank* self) {
    std::vector<std::unique_ptr<Call>> calls;
    for (const CaseReference& reference : references) {
      calls.push_back(std::make_unique<Call>(reference, *self));
      ASSERT_THAT(calls.back()->Begin(self), IsOk());
    }
    ASSERT_TRUE(self->Await(calls.back()->job(), TestDeadline()));
    for (const auto& call : calls) call->Check();
  });
}

// One after the other, each rank asleep when the next comes.
TEST_P(MemoryCollectivesTest, SleepersAreWoken) {
  const int size = GetParam();
  std::deque<CaseReference> references;
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kInline, Algorithm::kStagedTwoShot}) {
    CollectiveCase what;
    what.algorithm = algorithm;
    what.count = 3;
    references.emplace_back(what, size);
  }
  Run(size, 4096, [&](MemoryRank* self) {
    for (int i = 0; i < 300; ++i) {
      Call call(references[i % 3], *self, self->data(), 4096);
      ASSERT_THAT(call.Begin(self), IsOk());
      ASSERT_TRUE(self->Await(call.job(), TestDeadline())) << "call " << i;
      call.Check();
    }
  });
}

}  // namespace
}  // namespace lockstep

// Every collective in shared memory, with ranks on threads that sleep while they wait.

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/engine/memory_testing.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

struct Case {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  size_t block = 0;  // elements; of the whole vector where ranks have no blocks
  int root = 0;
  bool in_place = false;
};

// What rank `rank` has at `index` of its vector in call `call`: sums are exact.
float Value(int call, int rank, size_t index) { return static_cast<float>((call * 5 + rank * 11 + index * 3) % 97); }

bool GivesBlock(Collective collective) {
  return collective == Collective::kAllGather || collective == Collective::kGather;
}
bool GetsBlock(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kScatter;
}

class Call {
 public:
  Call(const Case& what, int number, int rank, int size) : what_(what), number_(number), rank_(rank), size_(size) {}

  size_t vector() const { return what_.block * (IsByRank(what_.collective) ? size_ : 1); }
  // Floats that Begin needs.
  size_t room() const { return 2 * vector() + 1; }

  absl::Status Begin(MemoryRank* self, float* memory) {
    const Collective collective = what_.collective;
    const size_t own = rank_ * what_.block;
    const bool in_place = what_.in_place && collective != Collective::kAllToAll;
    input_ = memory;
    output_ = memory + (in_place ? 0 : vector());
    if (in_place && GivesBlock(collective)) input_ += own;
    if (in_place && GetsBlock(collective)) output_ += own;
    std::fill_n(memory, room(), -1.0f);
    const size_t begin = GivesBlock(collective) ? own : 0;
    const size_t count = GivesBlock(collective) ? what_.block : vector();
    const bool at_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
    for (size_t i = 0; i < count && (!at_root || rank_ == what_.root); ++i) {
      input_[i] = Value(number_, rank_, begin + i);
    }
    CollectiveRequest request = MakeRequest(collective, DType::kF32, vector(), input_, output_);
    request.root = Rank(what_.root);
    LOCKSTEP_RETURN_IF_ERROR(self->Prepare(&job_, request, what_.algorithm));
    self->Start(&job_, &record_);
    return absl::OkStatus();
  }

  void Check() const {
    ASSERT_THAT(job_.end, IsOk());
    EXPECT_EQ(job_.ends, 1);
    const bool at_root = what_.collective == Collective::kReduce || what_.collective == Collective::kGather;
    if (at_root && rank_ != what_.root) return;
    const size_t count = GetsBlock(what_.collective) ? what_.block : vector();
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(output_[i], Expected(i)) << ToString(job_.signature) << ", rank " << rank_ << " of " << size_
                                         << ", root " << what_.root << ", element " << i;
    }
  }

  const MemoryJob& job() const { return job_; }

 private:
  float Expected(size_t i) const {
    switch (what_.collective) {
      case Collective::kBroadcast:
        return Value(number_, what_.root, i);
      case Collective::kScatter:
        return Value(number_, what_.root, rank_ * what_.block + i);
      case Collective::kAllGather:
      case Collective::kGather:
        return Value(number_, static_cast<int>(i / what_.block), i);
      case Collective::kAllToAll:
        return Value(number_, static_cast<int>(i / what_.block), rank_ * what_.block + i % what_.block);
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kReduceScatter:
      case Collective::kBarrier:
        break;
    }
    const size_t begin = what_.collective == Collective::kReduceScatter ? rank_ * what_.block : 0;
    float sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += Value(number_, rank, begin + i);
    return sum;
  }

  const Case what_;
  const int number_;
  const int rank_;
  const int size_;
  float* input_ = nullptr;
  float* output_ = nullptr;
  FlightRecord record_;
  MemoryJob job_;
};

constexpr Collective kInlineCollectives[] = {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
                                             Collective::kAllGather, Collective::kBarrier};

constexpr Collective kStagedCollectives[] = {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
                                             Collective::kAllToAll};

// The same on every rank that draws with the same seed.
Case Draw(std::mt19937& random, int size, size_t block_max) {
  const auto below = [&](uint32_t limit) { return random() % limit; };
  Case drawn;
  drawn.root = static_cast<int>(below(size));
  drawn.in_place = below(2) == 0;
  const uint32_t way = below(3);
  if (way == 0) {
    drawn.algorithm = Algorithm::kInline;
    drawn.collective = kInlineCollectives[below(5)];
    drawn.block = drawn.collective == Collective::kBarrier ? 0 : below(kShareBytesMax / sizeof(float) + 1);
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
  drawn.block = below(4) == 0 ? below(4) : below(static_cast<uint32_t>(block_max));
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
  constexpr int kCalls = 24;
  constexpr size_t kBlockMax = 3000;
  const int size = GetParam();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const size_t slot = 2 * kBlockMax * size + 64;
  Run(size, (kCalls * slot + 64) * sizeof(float), [&](MemoryRank* self) {
    std::mt19937 random(seed);
    std::mt19937 own_random(seed + self->rank().value());
    for (int round = 0; round < 12; ++round) {
      std::vector<std::unique_ptr<Call>> calls;
      std::vector<std::vector<float>> ordinary(kCalls);
      for (int i = 0; i < kCalls; ++i) {
        const Case drawn = Draw(random, size, kBlockMax);
        calls.push_back(std::make_unique<Call>(drawn, round * kCalls + i, self->rank().value(), size));
        float* memory = reinterpret_cast<float*>(self->data()) + i * slot + self->rank().value() * 5;
        if (!Has(drawn.algorithm, algorithms::kDirect)) {
          ordinary[i].resize(calls.back()->room());
          memory = ordinary[i].data();
        }
        ASSERT_THAT(calls.back()->Begin(self, memory), IsOk());
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

// Vectors of several pieces, whose ends are no piece's.
TEST_P(MemoryCollectivesTest, LongVectors) {
  const int size = GetParam();
  const size_t block = 1'234'567 / size;
  Run(size, (2 * block * size + 64) * sizeof(float), [&](MemoryRank* self) {
    int number = 0;
    for (const Collective collective : {Collective::kAllReduce, Collective::kAllToAll, Collective::kReduceScatter}) {
      for (const bool in_place : {false, true}) {
        Case what;
        what.collective = collective;
        what.block = IsByRank(collective) ? block : block * size;
        what.in_place = in_place;
        Call call(what, ++number, self->rank().value(), size);
        ASSERT_THAT(call.Begin(self, reinterpret_cast<float*>(self->data())), IsOk());
        ASSERT_TRUE(self->Await(call.job(), TestDeadline()));
        call.Check();
      }
    }
  });
}

// Of many rounds and of few, one behind the other: each takes the stage where the one before has left it.
TEST_P(MemoryCollectivesTest, StagedVectorsOfAllLengths) {
  constexpr int kCalls = 12;
  const int size = GetParam();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Run(size, 4096, [&](MemoryRank* self) {
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Call>> calls;
    std::vector<std::vector<float>> memory(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      Case what;
      what.algorithm = i % 5 == 4 ? Algorithm::kStagedTwoShot : Algorithm::kStaged;
      what.collective = kStagedCollectives[i % 5 % 4];
      what.block = random() % (i % 3 == 0 ? 300'000 : 20'000) / (IsByRank(what.collective) ? size : 1);
      what.in_place = random() % 2 == 0;
      calls.push_back(std::make_unique<Call>(what, i, self->rank().value(), size));
      memory[i].resize(calls.back()->room());
      ASSERT_THAT(calls.back()->Begin(self, memory[i].data()), IsOk());
    }
    ASSERT_TRUE(self->Await(calls.back()->job(), TestDeadline()));
    for (const auto& call : calls) call->Check();
  });
}

// One after the other, each rank asleep when the next comes.
TEST_P(MemoryCollectivesTest, SleepersAreWoken) {
  const int size = GetParam();
  Run(size, 4096, [&](MemoryRank* self) {
    for (int i = 0; i < 300; ++i) {
      Case what;
      constexpr Algorithm kAlgorithms[] = {Algorithm::kDirect, Algorithm::kInline, Algorithm::kStagedTwoShot};
      what.algorithm = kAlgorithms[i % 3];
      what.block = 3;
      Call call(what, i, self->rank().value(), size);
      ASSERT_THAT(call.Begin(self, reinterpret_cast<float*>(self->data())), IsOk());
      ASSERT_TRUE(self->Await(call.job(), TestDeadline())) << "call " << i;
      call.Check();
    }
  });
}

}  // namespace
}  // namespace lockstep

#include "comm/engine/symmetric_memory.h"

#include <cstring>
#include <memory>
#include <vector>

#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "comm/engine/memory_testing.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {
namespace {

constexpr size_t kBytes = 8192;
constexpr SymmetricMemory::Place kNowhere = SymmetricMemory::kNowhere;

// The memory of two ranks, whose numbers in the communicator are not those in the transport, with two regions each.
class SymmetricMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(transports_, CreateShmWorld(2));
    {
      std::vector<Thread> threads;
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back("rank", [this, i] {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_[1 - i], MemoryRank::Create(transports_[i].get(), kBytes, TestDeadline(),
                                                                          std::vector<Rank>{Rank(1), Rank(0)}));
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto second, ranks_[1 - i]->AddRegion(2 * kBytes, TestDeadline()));
          ASSERT_NE(second, nullptr);
        });
      }
    }
    ASSERT_NE(ranks_[0], nullptr);
    ASSERT_NE(ranks_[1], nullptr);
  }

  SymmetricMemory& memory(int rank) { return ranks_[rank]->memory(); }
  char* data(int rank, int region) { return ranks_[rank]->regions()[region]->base(ranks_[rank]->transport().rank()); }

  ShmTransports transports_;
  std::unique_ptr<MemoryRank> ranks_[2];
};

TEST_F(SymmetricMemoryTest, APlaceIsFoundByEveryRank) {
  for (const int region : {0, 1, 0}) {
    for (const int owner : {0, 1}) {
      const SymmetricMemory::Place place = memory(owner).Find(data(owner, region) + 100, 24);
      ASSERT_NE(place, kNowhere);
      std::memcpy(data(owner, region) + 100, owner == 0 ? "rank 0" : "rank 1", 7);
      for (const int reader : {0, 1}) {
        const char* const found = memory(reader).Address(Rank(owner), place, 24);
        ASSERT_NE(found, nullptr);
        EXPECT_STREQ(found, owner == 0 ? "rank 0" : "rank 1") << "rank " << reader << ", region " << region;
      }
    }
  }
}

TEST_F(SymmetricMemoryTest, OnlyWhatLiesInOneRegionHasAPlace) {
  for (const int region : {0, 1}) {
    const size_t bytes = (region + 1) * kBytes;
    char* const begin = data(0, region);
    EXPECT_NE(memory(0).Find(begin, bytes), kNowhere);
    EXPECT_EQ(memory(0).Find(begin, bytes + 1), kNowhere);
    EXPECT_EQ(memory(0).Find(begin - 1, 1), kNowhere);
    EXPECT_EQ(memory(0).Find(begin + bytes, 1), kNowhere);
    EXPECT_NE(memory(0).Find(begin + bytes - 1, 1), kNowhere);
    EXPECT_EQ(memory(0).Find(begin + 1, SIZE_MAX), kNowhere);
    EXPECT_EQ(memory(0).Find(begin, 0), kNowhere);
  }
  const char elsewhere = 0;
  EXPECT_EQ(memory(0).Find(&elsewhere, 1), kNowhere);
  EXPECT_EQ(memory(0).Find(nullptr, 1), kNowhere);
  // A peer's part, as this rank maps it, is not its own.
  EXPECT_EQ(memory(0).Find(ranks_[0]->regions()[0]->base(ranks_[1]->transport().rank()), 1), kNowhere);
}

// What a peer says may be anything.
TEST_F(SymmetricMemoryTest, APlaceOutsideTheRegionsHasNoAddress) {
  const SymmetricMemory::Place place = memory(1).Find(data(1, 0), 1);
  EXPECT_NE(memory(0).Address(Rank(1), place, kBytes), nullptr);
  EXPECT_EQ(memory(0).Address(Rank(1), place, kBytes + 1), nullptr);
  EXPECT_NE(memory(0).Address(Rank(1), place + kBytes - 1, 1), nullptr);
  EXPECT_EQ(memory(0).Address(Rank(1), place + kBytes, 1), nullptr);
  EXPECT_EQ(memory(0).Address(Rank(1), place + 1, SIZE_MAX), nullptr);
  EXPECT_EQ(memory(0).Address(Rank(1), kNowhere, 1), nullptr);
  EXPECT_EQ(memory(0).Address(Rank(1), place + 2 * SymmetricMemory::kRegionBytesMax, 1), nullptr);
}

TEST_F(SymmetricMemoryTest, ARemovedRegionStaysWhileAJobMayUseIt) {
  const std::shared_ptr<SymmetricArena> region = ranks_[0]->regions()[1];
  const long others = region.use_count();
  const SymmetricMemory::Place place = memory(0).Find(data(0, 1), 1);
  memory(0).OnJobStarted();
  memory(0).OnJobStarted();
  memory(0).Remove(*region);
  memory(0).Remove(*region);
  memory(0).OnJobDone();
  EXPECT_NE(memory(0).Address(Rank(0), place, 1), nullptr);
  // A later job is no reason to wait.
  memory(0).OnJobStarted();
  memory(0).OnJobDone();
  EXPECT_EQ(memory(0).Address(Rank(0), place, 1), nullptr);
  EXPECT_EQ(memory(0).Find(data(0, 1), 1), kNowhere);
  EXPECT_EQ(region.use_count(), others - 1);
  EXPECT_NE(memory(0).Find(data(0, 0), 1), kNowhere);
  memory(0).OnJobDone();
}

TEST_F(SymmetricMemoryTest, AnIdleMemoryGivesBackWhatWasRemovedWhenItIsClosedOrLater) {
  const std::shared_ptr<SymmetricArena> first = ranks_[0]->regions()[0];
  const std::shared_ptr<SymmetricArena> second = ranks_[0]->regions()[1];
  const long uses = first.use_count();
  memory(0).Remove(*first);
  EXPECT_EQ(first.use_count(), uses);
  memory(0).Close();
  EXPECT_EQ(first.use_count(), uses - 1);
  memory(0).Remove(*second);
  EXPECT_EQ(second.use_count(), uses - 1);
}

// The number of a region says how many there were before it, on every rank, whatever each has removed.
TEST_F(SymmetricMemoryTest, RegionsKeepTheirNumbersWhenOthersGo) {
  memory(1).Remove(*ranks_[1]->regions()[0]);
  std::vector<Thread> threads;
  for (const int rank : {0, 1}) {
    threads.emplace_back("rank", [this, rank] {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto third, ranks_[rank]->AddRegion(kBytes, TestDeadline()));
      ASSERT_NE(third, nullptr);
    });
  }
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(memory(1).Find(data(1, 0), 1), kNowhere);
  for (const int region : {1, 2}) {
    EXPECT_EQ(memory(0).Find(data(0, region) + 7, 1), memory(1).Find(data(1, region) + 7, 1)) << "region " << region;
  }
}

}  // namespace
}  // namespace lockstep

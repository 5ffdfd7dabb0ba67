// The executor by itself: one thread drives all ranks, so that the order of everything is the test's.

#include "comm/engine/memory_executor.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "base/fork_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/engine/memory_testing.h"
#include "comm/engine/symmetric_memory.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/symmetric_arena.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

class MemoryExecutorTest : public testing::Test {
 protected:
  void MakeRanks(int size, size_t region_bytes = size_t{1} << 20) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(transports_, CreateShmWorld(size));
    ranks_.resize(size);
    {
      std::vector<Thread> threads;
      for (int i = 0; i < size; ++i) {
        threads.emplace_back("rank", [&, i] {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_[i],
                                        MemoryRank::Create(transports_[i].get(), region_bytes, TestDeadline()));
        });
      }
    }
    for (const auto& rank : ranks_) ASSERT_NE(rank, nullptr);
  }

  float* data(int rank) { return reinterpret_cast<float*>(ranks_[rank]->data()); }

  // An all-reduce of `count` floats at `memory`.
  void Prepare(int rank, MemoryJob* job, size_t count, float* memory, Algorithm algorithm = Algorithm::kDirect) {
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, count, memory, memory);
    ASSERT_THAT(ranks_[rank]->Prepare(job, request, algorithm), IsOk());
  }
  void Start(int rank, MemoryJob* job, size_t count, Algorithm algorithm = Algorithm::kDirect) {
    Prepare(rank, job, count, data(rank), algorithm);
    ranks_[rank]->Start(job);
  }

  // Until nothing moves any more. How often each rank was polled.
  int DriveToTheEnd() {
    int turns = 0;
    for (bool moved = true; moved; ++turns) {
      moved = false;
      for (const auto& rank : ranks_) moved |= rank->executor().Poll();
    }
    return turns;
  }

  // Until the rank has noticed that the other is lost.
  void AwaitLoss(int rank, int lost) {
    ASSERT_TRUE(Drive({transports_[rank].get()}, [&] { return !transports_[rank]->status(Rank(lost)).ok(); }));
  }

  ShmTransports transports_;
  std::vector<std::unique_ptr<MemoryRank>> ranks_;
  MemoryJob jobs_[8];
};

TEST_F(MemoryExecutorTest, AJobWaitsForEveryRankAndMovesNothingMeanwhile) {
  MakeRanks(3);
  for (int rank : {2, 0}) {
    Start(rank, &jobs_[rank], 1000);
    EXPECT_FALSE(ranks_[rank]->executor().busy());
  }
  DriveToTheEnd();
  EXPECT_FALSE(ranks_[0]->executor().Poll());
  EXPECT_EQ(jobs_[0].ends + jobs_[2].ends, 0);
  EXPECT_EQ(ranks_[0]->executor().jobs().size(), 1);
  Start(1, &jobs_[1], 1000);
  DriveToTheEnd();
  for (int rank : {0, 1, 2}) {
    EXPECT_EQ(jobs_[rank].ends, 1);
    EXPECT_THAT(jobs_[rank].end, IsOk());
    EXPECT_THAT(ranks_[rank]->executor().jobs(), testing::IsEmpty());
  }
}

TEST_F(MemoryExecutorTest, WhoStartsIsMetBeforeItIsPolled) {
  MakeRanks(2);
  float values[2] = {1, 2};
  for (int rank : {0, 1}) Prepare(rank, &jobs_[rank], 1, &values[rank], Algorithm::kInline);
  EXPECT_TRUE(ranks_[0]->executor().idle());
  ranks_[0]->StartUnpolled(&jobs_[0]);
  EXPECT_FALSE(ranks_[0]->executor().idle());
  ranks_[1]->Start(&jobs_[1]);
  EXPECT_EQ(jobs_[1].ends, 1);
  EXPECT_EQ(values[1], 3);
  EXPECT_EQ(jobs_[0].ends, 0);
  EXPECT_TRUE(ranks_[0]->executor().Poll());
  EXPECT_EQ(jobs_[0].ends, 1);
  EXPECT_EQ(values[0], 3);
}

// So that others get the engine's mutex in between.
TEST_F(MemoryExecutorTest, ACallDoesNoMoreThanAShareOfTheWork) {
  constexpr size_t kCount = size_t{4} << 20;
  MakeRanks(2, kCount * sizeof(float));
  std::fill_n(data(0), kCount, 1.0f);
  std::fill_n(data(1), kCount, 2.0f);
  Start(0, &jobs_[0], kCount);
  Start(1, &jobs_[1], kCount);
  EXPECT_TRUE(ranks_[1]->executor().busy());
  // Each rank reads and writes 32 MiB.
  EXPECT_GE(DriveToTheEnd(), 32);
  EXPECT_FALSE(ranks_[1]->executor().busy());
  for (int rank : {0, 1}) {
    EXPECT_EQ(jobs_[rank].ends, 1);
    EXPECT_EQ(std::count(data(rank), data(rank) + kCount, 3.0f), kCount);
  }
}

TEST_F(MemoryExecutorTest, JobsEndInTheOrderInWhichTheyWereStartedAndMayStartOthers) {
  MakeRanks(2);
  std::vector<int> ended;
  for (int i = 0; i < 6; ++i) jobs_[i].then = [&ended, i] { ended.push_back(i); };
  jobs_[0].then = [&] {
    ended.push_back(0);
    Start(0, &jobs_[4], 2, Algorithm::kInline);
    EXPECT_EQ(jobs_[4].ends, 0);
  };
  for (int i : {0, 2}) Start(0, &jobs_[i], 100);
  EXPECT_THAT(ranks_[0]->executor().jobs(), testing::ElementsAre(&jobs_[0], &jobs_[2]));
  for (int i : {1, 3}) Start(1, &jobs_[i], 100);
  Start(1, &jobs_[5], 2, Algorithm::kInline);
  DriveToTheEnd();
  EXPECT_EQ(ended.size(), 6);
  ended.erase(std::remove_if(ended.begin(), ended.end(), [](int i) { return i % 2 != 0; }), ended.end());
  EXPECT_THAT(ended, testing::ElementsAre(0, 2, 4));
}

TEST_F(MemoryExecutorTest, AFlightRecordCountsWhatIsReadFromPeersAndWrittenToThem) {
  MakeRanks(2);
  FlightRecorder recorder(4);
  for (int rank : {0, 1}) {
    Prepare(rank, &jobs_[rank], 64, data(rank));
    FlightRecord* record = nullptr;
    if (rank == 0) {
      Signature signature = jobs_[0].signature;
      signature.sequence = 1;
      record = recorder.Add(signature, 256);
    }
    ranks_[rank]->Start(&jobs_[rank], record);
  }
  DriveToTheEnd();
  const FlightRecord& record = *recorder.Find(1);
  EXPECT_EQ(record.state, FlightRecord::State::kRunning);
  EXPECT_GE(record.started, record.queued);
  EXPECT_EQ(record.sent_bytes, 128);
  EXPECT_EQ(record.received_bytes, 128);
  EXPECT_EQ(record.peers[0].rank, Rank(1));
  EXPECT_EQ(record.peers[0].received_bytes, 128);
}

// One rank is ahead of the others in one tick and behind in the next, as the dice have it; several calls follow each other
// on the stage, in buffers of the ranks' own.
TEST_F(MemoryExecutorTest, RoundsOverlapInAnyOrder) {
  constexpr int kRanks = 3, kCalls = 2;
  constexpr size_t kCounts[kCalls] = {300'001, 70'000};
  MakeRanks(kRanks);
  for (const Algorithm algorithm : {Algorithm::kStaged, Algorithm::kStagedTwoShot}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      SCOPED_TRACE(testing::Message() << Name(algorithm) << ", seed " << seed);
      std::mt19937 random(seed);
      std::vector<std::vector<float>> memory;
      for (int i = 0; i < kRanks * kCalls; ++i) {
        memory.emplace_back(kCounts[i % kCalls]);
        for (size_t k = 0; k < memory[i].size(); ++k) memory[i][k] = static_cast<float>((i + k * 7) % 1001);
        Prepare(i / kCalls, &jobs_[i], memory[i].size(), memory[i].data(), algorithm);
        ranks_[i / kCalls]->Start(&jobs_[i]);
      }
      while (std::any_of(jobs_, jobs_ + kRanks * kCalls, [](const MemoryJob& job) { return job.ends == 0; })) {
        ranks_[random() % kRanks]->executor().Poll();
      }
      for (int i = 0; i < kRanks * kCalls; ++i) {
        size_t wrong = 0;
        for (size_t k = 0; k < memory[i].size(); ++k) {
          float sum = 0;
          for (int rank = 0; rank < kRanks; ++rank) {
            sum += static_cast<float>((rank * kCalls + i % kCalls + k * 7) % 1001);
          }
          wrong += memory[i][k] == sum ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0) << "call " << i % kCalls << " of rank " << i / kCalls;
      }
    }
  }
}

TEST_F(MemoryExecutorTest, OtherCallsAreFoundOutByBothRanks) {
  MakeRanks(2);
  Start(0, &jobs_[0], 100);
  Start(1, &jobs_[1], 101);
  DriveToTheEnd();
  for (int rank : {0, 1}) {
    EXPECT_EQ(jobs_[rank].failures, 1);
    EXPECT_THAT(jobs_[rank].failure, StatusIs(Code::kFailedPrecondition, HasSubstr("came with another collective")));
    EXPECT_EQ(jobs_[rank].failed_peer, Rank(1 - rank));
    EXPECT_EQ(jobs_[rank].arrived, jobs_[1 - rank].signature);
    EXPECT_EQ(jobs_[rank].ends, 0);
    // The owner decides; until then nothing goes on.
    Start(rank, &jobs_[2 + rank], 1);
    EXPECT_FALSE(ranks_[rank]->executor().Poll());
    ranks_[rank]->executor().FailAll(absl::AbortedError("given up"));
    for (const MemoryJob* job : {&jobs_[rank], &jobs_[2 + rank]}) {
      EXPECT_EQ(job->ends, 1);
      EXPECT_THAT(job->end, StatusIs(Code::kAborted, "given up"));
    }
    EXPECT_EQ(jobs_[rank].failures, 1);
  }
}

TEST_F(MemoryExecutorTest, ABufferThatIsNotSharedIsFoundOutByThePeers) {
  std::vector<float> ordinary(100);
  for (const bool beyond_the_end : {false, true}) {
    MakeRanks(2, 4096);
    float* const wrong = beyond_the_end ? data(1) + 1024 - 10 : ordinary.data();
    std::fill_n(data(0), 100, 1.0f);
    MemoryJob jobs[2];
    Prepare(0, &jobs[0], 100, data(0));
    Prepare(1, &jobs[1], 100, wrong);
    for (int rank : {1, 0}) ranks_[rank]->Start(&jobs[rank]);
    EXPECT_THAT(jobs[0].failure, StatusIs(Code::kFailedPrecondition, HasSubstr("rank 1's output does not lie in")));
    EXPECT_EQ(jobs[0].failed_peer, Rank(1));
    EXPECT_EQ(jobs[0].arrived, jobs[0].signature);
    if (!beyond_the_end) {
      // What rank 1 can do it does; it then waits to be told.
      DriveToTheEnd();
      EXPECT_EQ(jobs[1].failures + jobs[1].ends, 0);
    }
    ranks_.clear();
    transports_.clear();
  }
}

TEST_F(MemoryExecutorTest, APeerThatIsLostBeforeItCameIsNamed) {
  MakeRanks(3);
  Start(0, &jobs_[0], 100);
  Start(1, &jobs_[1], 100);
  ranks_[2] = nullptr;
  transports_[2] = nullptr;
  for (int rank : {0, 1}) {
    EXPECT_EQ(jobs_[rank].failures, 0);
    AwaitLoss(rank, 2);
    ranks_[rank]->executor().Poll();
    EXPECT_EQ(jobs_[rank].failures, 1);
    EXPECT_THAT(jobs_[rank].failure, StatusIs(Code::kUnavailable, HasSubstr("barrier with rank 2 over shm pid")));
    EXPECT_EQ(jobs_[rank].failed_peer, Rank(2));
    ranks_[rank]->executor().Poll();
    EXPECT_EQ(jobs_[rank].failures, 1);
  }
  ranks_.resize(2);
}

TEST_F(MemoryExecutorTest, APeerThatIsLostIsNoticedWhileAnotherIsAwaited) {
  MakeRanks(3);
  Start(0, &jobs_[0], 100);
  transports_[2]->Abort(absl::AbortedError("it ends"));
  AwaitLoss(0, 2);
  ranks_[0]->executor().Poll();
  EXPECT_EQ(jobs_[0].failed_peer, Rank(2));
}

// Its slots are there, and what they bring.
TEST_F(MemoryExecutorTest, APeerThatIsLostAfterItCameIsNotMissed) {
  MakeRanks(2);
  data(1)[0] = 5;
  Start(1, &jobs_[1], 1, Algorithm::kInline);
  ranks_[1] = nullptr;
  transports_[1] = nullptr;
  AwaitLoss(0, 1);
  data(0)[0] = 2;
  Start(0, &jobs_[0], 1, Algorithm::kInline);
  EXPECT_EQ(jobs_[0].ends, 1);
  EXPECT_THAT(jobs_[0].end, IsOk());
  EXPECT_EQ(data(0)[0], 7);
  // The next one it cannot have come to.
  Start(0, &jobs_[2], 1, Algorithm::kInline);
  EXPECT_THAT(jobs_[2].failure, StatusIs(Code::kUnavailable, HasSubstr("barrier with rank 1 over shm")));
  ranks_.resize(1);
}

TEST_F(MemoryExecutorTest, AnAbortEndsWhatIsUnderWayAndWhatIsQueued) {
  constexpr size_t kCount = size_t{1} << 20;
  MakeRanks(2, kCount * sizeof(float));
  std::fill_n(data(0), kCount, 1.0f);
  std::fill_n(data(1), kCount, 1.0f);
  Start(0, &jobs_[0], kCount);
  Start(1, &jobs_[1], kCount);
  Start(1, &jobs_[3], 1, Algorithm::kInline);
  ASSERT_TRUE(ranks_[1]->executor().busy());  // in the middle of its pass
  std::vector<float> before(data(1), data(1) + kCount);
  const std::shared_ptr<SymmetricArena> region = ranks_[1]->regions()[0];
  const long uses = region.use_count();
  ranks_[1]->memory().Remove(*region);
  EXPECT_EQ(region.use_count(), uses);
  ranks_[1]->executor().FailAll(absl::AbortedError("rank 0 is late"));
  for (const int i : {1, 3}) {
    EXPECT_EQ(jobs_[i].ends, 1);
    EXPECT_EQ(jobs_[i].failures, 0);
    EXPECT_THAT(jobs_[i].end, StatusIs(Code::kAborted, "rank 0 is late"));
  }
  EXPECT_FALSE(ranks_[1]->executor().busy());
  EXPECT_FALSE(ranks_[1]->executor().Poll());
  EXPECT_EQ(region.use_count(), uses - 1);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), data(1)));
  // Nobody has told rank 0, which waits.
  DriveToTheEnd();
  EXPECT_EQ(jobs_[0].ends + jobs_[0].failures, 0);
}

// It was stopped, say, when the others gave up.
TEST_F(MemoryExecutorTest, WhatALatePeerReadsOfAFailedRanksMemoryIsNoResult) {
  constexpr size_t kCount = size_t{1} << 20;
  MakeRanks(3, kCount * sizeof(float));
  for (int rank : {0, 1, 2}) Start(rank, &jobs_[rank], kCount);
  ASSERT_TRUE(ranks_[2]->executor().busy());  // in the middle of its pass
  while (ranks_[0]->executor().Poll() || ranks_[1]->executor().Poll()) continue;
  ranks_[1]->executor().FailAll(absl::AbortedError("rank 2 is late"));
  std::fill_n(data(1), kCount, 100.0f);
  DriveToTheEnd();
  EXPECT_EQ(jobs_[0].ends + jobs_[2].ends, 0);
  // Both learn when it ends.
  ranks_[1] = nullptr;
  transports_[1] = nullptr;
  for (int rank : {0, 2}) {
    AwaitLoss(rank, 1);
    ranks_[rank]->executor().Poll();
    EXPECT_THAT(jobs_[rank].failure, StatusIs(Code::kUnavailable, HasSubstr("barrier with rank 1 over shm")));
  }
  ranks_.erase(ranks_.begin() + 1);
}

TEST_F(MemoryExecutorTest, APeerThatComesAfterTheFailureWritesNothing) {
  constexpr size_t kCount = 100'000;
  MakeRanks(3);
  std::fill_n(data(0), kCount, 1.0f);
  for (int rank : {0, 1}) Start(rank, &jobs_[rank], kCount);
  ranks_[1]->executor().FailAll(absl::AbortedError("rank 2 is late"));
  std::fill_n(data(1), kCount, 7.0f);
  Start(2, &jobs_[2], kCount);
  DriveToTheEnd();
  EXPECT_EQ(jobs_[0].ends + jobs_[2].ends, 0);
  EXPECT_EQ(std::count(data(1), data(1) + kCount, 7.0f), kCount);
}

TEST_F(MemoryExecutorTest, WhatWasDoneBeforeTheFailureStaysDoneForALatePeer) {
  for (const Algorithm before : {Algorithm::kDirect, Algorithm::kInline}) {
    MakeRanks(3);
    for (int rank : {2, 0, 1}) Start(rank, &jobs_[rank], 1, before);
    if (before == Algorithm::kDirect) ranks_[2]->executor().Poll();  // into the last barrier
    for (int rank : {0, 1}) ranks_[rank]->executor().Poll();
    EXPECT_EQ(jobs_[1].ends, 1);
    EXPECT_EQ(jobs_[2].ends, 0);
    Start(1, &jobs_[3], 1);
    ranks_[1]->executor().FailAll(absl::AbortedError("given up"));
    DriveToTheEnd();
    EXPECT_THAT(jobs_[2].end, IsOk());
    EXPECT_EQ(jobs_[2].ends, 1);
    ranks_.clear();
    transports_.clear();
  }
}

// A copy of the process has none of the memory.
TEST_F(MemoryExecutorTest, AForkedChildIsToldSo) {
  MakeRanks(2);
  Start(0, &jobs_[0], 100);
  const int exit_code = RunInForkedChild(
      [&] {
        ranks_[0]->executor().Poll();
        return jobs_[0].failures == 1 && absl::IsFailedPrecondition(jobs_[0].failure) ? 0 : 1;
      },
      TestDeadline());
  EXPECT_EQ(exit_code, 0);
  Start(1, &jobs_[1], 100);
  DriveToTheEnd();
  EXPECT_THAT(jobs_[0].end, IsOk());
  EXPECT_EQ(jobs_[0].ends, 1);
}

}  // namespace
}  // namespace lockstep

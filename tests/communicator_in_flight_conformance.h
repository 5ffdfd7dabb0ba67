// What every communicator promises of calls that are in flight: work and who waits for it, streams, records, and how an abort
// ends them.

#ifndef TESTS_COMMUNICATOR_IN_FLIGHT_CONFORMANCE_H_
#define TESTS_COMMUNICATOR_IN_FLIGHT_CONFORMANCE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/host_device.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance_fixture.h"
#include "tests/communicator_testing.h"
#include "tests/gate.h"

namespace lockstep {

TEST_P(CommunicatorConformance, NobodyLeavesABarrierBeforeEverybodyEntered) {
  ForSizes({2, 3, 5, 8}, [&] {
    constexpr int kRounds = 50;
    std::atomic<int> entered{0};
    OnRanks([&](Communicator& self) {
      for (int round = 1; round <= kRounds; ++round) {
        ++entered;
        ASSERT_THAT(self.Run(CollectiveRequest()), IsOk());
        ASSERT_GE(entered.load(), round * size());
      }
    });
  });
}

// Every rank waits in an order of its own.
TEST_P(CommunicatorConformance, ManyInFlightMayBeWaitedForInAnyOrder) {
  ForSizes({1, 2, 3, 5}, [&] {
    constexpr int kWorks = 48;
    std::deque<CaseReference> references;
    for (int i = 0; i < kWorks; ++i) {
      CollectiveCase c;
      c.collective = kAllCollectives[i % kCollectiveCount];
      c.count = i % 5 == 0 ? 20'000 : i;
      c.root = i % size();
      c.in_place = i % 4 == 0;
      c.background = i % 3 == 0;
      c.seed = static_cast<uint32_t>(i);
      references.emplace_back(c, size());
    }
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::vector<Work> works;
      for (const CaseReference& reference : references) {
        CaseRun& run = runs.emplace_back(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        absl::StatusOr<Work> work = self.Start(run.request());
        ASSERT_THAT(work.status(), IsOk());
        works.push_back(*std::move(work));
      }
      const int stride = std::vector<int>{1, 47, 5, 7, 11}[self.rank().value() % 5];  // coprime to the number of works
      for (int k = 0; k < kWorks; ++k) {
        const int i = (k + 1) * stride % kWorks;
        EXPECT_THAT(works[i].Wait(CommTestDeadline()), IsOk());
        EXPECT_TRUE(works[i].done());
        EXPECT_EQ(runs[i].Check(), "") << ToString(references[i].collective());
      }
    });
  });
}

TEST_P(CommunicatorConformance, WorkMayBeWaitedForOnSeveralOtherThreads) {
  ForSizes({1, 2, 3}, [&] {
    constexpr int kWorks = 6;
    std::deque<CaseReference> references;
    for (int i = 0; i < kWorks; ++i) references.emplace_back(Large(i), size());
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::vector<std::thread> waiters;
      for (const CaseReference& reference : references) {
        CaseRun& run = runs.emplace_back(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        absl::StatusOr<Work> work = self.Start(run.request());
        ASSERT_THAT(work.status(), IsOk());
        for (int waiter = 0; waiter < 2; ++waiter) {
          waiters.emplace_back([work = *work, &run]() mutable {
            EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
            EXPECT_EQ(run.Check(), "");
          });
        }
      }
      for (std::thread& waiter : waiters) waiter.join();
    });
  });
}

// Nobody waits: the communicator must get there by itself.
TEST_P(CommunicatorConformance, StartedWorkGoesOnWithoutAWaiter) {
  ForSizes({2, 3}, [&] {
    const CaseReference reference(Large(1), size());
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      absl::StatusOr<Work> work = self.Start(run.request());
      ASSERT_THAT(work.status(), IsOk());
      const Deadline deadline = CommTestDeadline();
      while (!work->done() && !deadline.passed()) std::this_thread::yield();
      ASSERT_TRUE(work->done());
      EXPECT_EQ(run.Check(), "");
    });
  });
}

// The others hold back until rank 0 has given up waiting.
TEST_P(CommunicatorConformance, AWaitThatIsGivenUpDoesNotEndTheOperation) {
  if (GetParam().checked) GTEST_SKIP() << "nothing is in flight before all ranks have called";
  ForSizes({2, 4}, [&] {
    const CaseReference reference(Large(3), size());
    Gate given_up;
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      if (self.rank() != Rank(0)) {
        EXPECT_THAT(given_up.Await(CommTestDeadline()), IsOk());
      }
      absl::StatusOr<Work> work = self.Start(run.request());
      ASSERT_THAT(work.status(), IsOk());
      if (self.rank() == Rank(0)) {
        EXPECT_THAT(work->Wait(Deadline::Now()), StatusIs(Code::kDeadlineExceeded, ::testing::HasSubstr("goes on")));
        EXPECT_THAT(work->Wait(Deadline::AfterMs(5)), StatusIs(Code::kDeadlineExceeded));
        EXPECT_FALSE(work->done());
        given_up.Open();
      }
      EXPECT_THAT(work->Wait(CommTestDeadline()), IsOk());
      EXPECT_THAT(work->Wait(Deadline::Now()), IsOk()) << "a result stays, however late it is asked for";
      EXPECT_EQ(run.Check(), "");
    });
  });
}

TEST_P(CommunicatorConformance, TwoThreadsMayTakeTurns) {
  ForSizes({1, 2, 3}, [&] {
    constexpr int kRounds = 40;
    std::deque<CaseReference> references;
    for (int i = 0; i < kRounds; ++i) {
      CollectiveCase c;
      c.count = i * 37;
      c.seed = static_cast<uint32_t>(i);
      references.emplace_back(c, size());
    }
    OnRanks([&](Communicator& self) {
      Mutex mu;
      CondVar changed;
      int turn = 0;
      const auto take_turns = [&](int first) {
        for (int round = first; round < kRounds; round += 2) {
          MutexLock lock(&mu);
          while (turn != round) ASSERT_TRUE(changed.WaitUntil(&mu, CommTestDeadline()));
          CaseRun run(references[round], self.rank(), OrdinaryMemoryOf(self.rank()));
          EXPECT_THAT(self.Run(run.request()), IsOk());
          EXPECT_EQ(run.Check(), "");
          ++turn;
          changed.SignalAll();
        }
      };
      std::thread other(take_turns, 1);
      take_turns(0);
      other.join();
    });
  });
}

// Blocking calls and started work side by side: the waiters of both hand the driving to each other.
TEST_P(CommunicatorConformance, BlockingCallsMixWithStartedWork) {
  ForSizes({1, 2, 3}, [&] {
    constexpr int kRounds = 20;
    const CaseReference large(Large(5), size());
    CollectiveCase small;
    small.count = 3;
    const CaseReference reference(small, size());
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::vector<std::thread> waiters;
      for (int round = 0; round < kRounds; ++round) {
        CaseRun& run =
            runs.emplace_back(round % 4 == 0 ? large : reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        absl::StatusOr<Work> work = self.Start(run.request());
        ASSERT_THAT(work.status(), IsOk());
        waiters.emplace_back([work = *work]() mutable { EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk()); });
        CaseRun blocking(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        EXPECT_THAT(self.Run(blocking.request()), IsOk());
        EXPECT_EQ(blocking.Check(), "");
      }
      for (std::thread& waiter : waiters) waiter.join();
      for (CaseRun& run : runs) EXPECT_EQ(run.Check(), "");
    });
  });
}

// The collective sees what the stream's work before it wrote, and what comes later sees the collective's output.
TEST_P(CommunicatorConformance, EnqueuedCollectivesKeepTheStreamsOrder) {
  ForSizes({1, 2, 3}, [&] {
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Stream> stream, HostDevice()->CreateStream("test"));
      constexpr int kRounds = 10;
      std::vector<float> value(1000, 1.0f);
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kF32;
      request.op = ReduceOp::kMax;
      request.count = value.size();
      request.input = value.data();
      request.output = value.data();
      int done = 0;
      for (int round = 0; round < kRounds; ++round) {
        ASSERT_THAT(stream->Enqueue([&] {
          for (float& f : value) f += static_cast<float>(1 + self.rank().value());
          return absl::OkStatus();
        }),
                    IsOk());
        ASSERT_THAT(self.Enqueue(request, stream.get(),
                                 [&](const absl::Status& status) {
                                   EXPECT_THAT(status, IsOk());
                                   ++done;
                                 }),
                    IsOk());
      }
      ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
      EXPECT_EQ(done, kRounds);
      EXPECT_THAT(value, ::testing::Each(1.0f + kRounds * size()));
    });
  });
}

TEST_P(CommunicatorConformance, AnEnqueuedErrorReachesDoneAndNotTheStream) {
  ForSizes({1, 2}, [&] {
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Stream> stream, HostDevice()->CreateStream("test"));
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kF32;
      request.op = ReduceOp::kXor;
      absl::Status result;
      ASSERT_THAT(self.Enqueue(request, stream.get(), [&](const absl::Status& status) { result = status; }), IsOk());
      ASSERT_THAT(stream->Synchronize(CommTestDeadline()), IsOk());
      EXPECT_THAT(result, StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("xor")));
    });
    ExpectUsable();
  });
}

TEST_P(CommunicatorConformance, FlightRecordsTellWhatWasDone) {
  ForSizes({1, 2}, [&] {
    CollectiveCase c;
    c.count = 1234;
    RunCases({c});
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_THAT(communicator(rank).FlightRecords(),
                  ::testing::ContainsRegex("all_reduce #[0-9]+ \\(1234 f32 sum, .*\\).* done (in|at once)"));
    }
  });
}

// Rank 0 aborts while all wait for a rank that comes only afterwards.
TEST_P(CommunicatorConformance, AbortEndsWhatIsInFlightAndToComeOnEveryRank) {
  ForSizes({1, 2, 3, 5}, [&] {
    const CaseReference reference(Large(1), size());
    Gate aborted;
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      if (size() == 1) {
        self.Abort("enough");
      } else if (self.rank() == Rank(size() - 1)) {
        EXPECT_THAT(aborted.Await(CommTestDeadline()), IsOk());
        EXPECT_THAT(self.Run(run.request()), StatusIs(Code::kAborted));
      } else {
        std::thread aborter;
        if (self.rank() == Rank(0)) {
          aborter = std::thread([&] {
            const Deadline deadline = CommTestDeadline();
            while (self.FlightRecords().find("running") == std::string::npos && !deadline.passed()) {
              std::this_thread::yield();
            }
            self.Abort("enough");
            aborted.Open();
          });
        }
        absl::StatusOr<Work> work = self.Start(run.request());
        EXPECT_THAT(work.ok() ? work->Wait(CommTestDeadline()) : work.status(), StatusIs(Code::kAborted));
        if (aborter.joinable()) aborter.join();
      }
      EXPECT_THAT(self.status(), StatusIs(Code::kAborted));
      EXPECT_EQ(self.Run(run.request()), self.status());
      EXPECT_EQ(self.Start(run.request()).status(), self.status());
    });
    communicator(0).Abort("again");
    EXPECT_THAT(communicator(0).status(),
                StatusIs(Code::kAborted, ::testing::HasSubstr("rank 0 aborted the communicator: enough")));
  });
}

}  // namespace lockstep

#endif  // TESTS_COMMUNICATOR_IN_FLIGHT_CONFORMANCE_H_

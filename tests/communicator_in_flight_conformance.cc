// What every communicator promises of calls that are in flight: work and who waits for it, callbacks, streams, records, and how an
// abort ends them.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/error_info.h"
#include "base/mutex.h"
#include "comm/work.h"
#include "tests/communicator_conformance.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

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
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
        works.push_back(std::move(work));
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
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
        for (int waiter = 0; waiter < 2; ++waiter) {
          waiters.emplace_back([work, &run]() mutable {
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
  OnRanksOfSizes({2, 3}, Large(1), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
    const Deadline deadline = CommTestDeadline();
    while (!work.done() && !deadline.passed()) std::this_thread::yield();
    ASSERT_TRUE(work.done());
    EXPECT_EQ(run.Check(), "");
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
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
      if (self.rank() == Rank(0)) {
        EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kDeadlineExceeded, ::testing::HasSubstr("goes on")));
        EXPECT_THAT(work.Wait(Deadline::AfterMs(5)), StatusIs(Code::kDeadlineExceeded));
        EXPECT_FALSE(work.done());
        given_up.Open();
      }
      EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
      EXPECT_THAT(work.Wait(Deadline::Now()), IsOk()) << "a result stays, however late it is asked for";
      EXPECT_EQ(run.Check(), "");
    });
  });
}

TEST_P(CommunicatorConformance, TwoThreadsMayTakeTurns) {
  ForSizes({1, 2, 3}, [&] {
    constexpr int kRounds = 40;
    std::deque<CaseReference> references;
    for (int i = 0; i < kRounds; ++i) references.emplace_back(OfCount(i * 37, i), size());
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
    const CaseReference reference(OfCount(3), size());
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::vector<std::thread> waiters;
      for (int round = 0; round < kRounds; ++round) {
        CaseRun& run =
            runs.emplace_back(round % 4 == 0 ? large : reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
        waiters.emplace_back([work]() mutable { EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk()); });
        CaseRun blocking(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        EXPECT_THAT(self.Run(blocking.request()), IsOk());
        EXPECT_EQ(blocking.Check(), "");
      }
      for (std::thread& waiter : waiters) waiter.join();
      for (CaseRun& run : runs) EXPECT_EQ(run.Check(), "");
    });
  });
}

// ---- Callbacks

// Nobody waits, and nobody asks.
TEST_P(CommunicatorConformance, CallbacksComeOnceWithoutAWaiter) {
  ForSizes({1, 2, 3}, [&] {
    constexpr int kWorks = 12;
    std::deque<CaseReference> references;
    for (int i = 0; i < kWorks; ++i) {
      CollectiveCase c = Large(i);
      if (i % 3 != 0) c.count = i;
      c.collective = kAllCollectives[i % kCollectiveCount];
      references.emplace_back(c, size());
    }
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::deque<Completions> completions(kWorks);
      for (int i = 0; i < kWorks; ++i) {
        CaseRun& run = runs.emplace_back(references[i], self.rank(), OrdinaryMemoryOf(self.rank()));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
        work.OnComplete(completions[i].Expect());
        if (i % 2 == 0) work.OnComplete(completions[i].Expect());
      }
      for (int i = 0; i < kWorks; ++i) {
        EXPECT_THAT(completions[i].Await(), ::testing::Each(IsOk()));
        EXPECT_EQ(runs[i].Check(), "") << ToString(references[i].collective());
      }
    });
  });
}

TEST_P(CommunicatorConformance, ACallbackOfWhatIsDoneComesAtOnceOnItsThread) {
  OnRanksOfSizes({1, 2}, Large(1), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
    EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
    Completions completions;
    work.OnComplete(completions.Expect());
    EXPECT_THAT(completions.threads(), ::testing::ElementsAre(std::this_thread::get_id()));
    EXPECT_THAT(completions.Await(), ::testing::ElementsAre(IsOk()));
  });
}

// Registered while it is completed: on the thread that started it, on another one, beside one who waits.
TEST_P(CommunicatorConformance, CallbacksComeOnceHoweverTheyRaceWithTheEnd) {
  constexpr int kRounds = 60;
  OnRanksOfSizes({1, 2, 3}, OfCount(3), [&](Communicator& self, const CaseReference& reference) {
    std::deque<CaseRun> runs;
    std::deque<Completions> completions(kRounds);
    for (int round = 0; round < kRounds; ++round) {
      CaseRun& run = runs.emplace_back(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(run.request()));
      std::thread other([&completions, round, work] { work.OnComplete(completions[round].Expect()); });
      if (round % 2 == 0) work.OnComplete(completions[round].Expect());
      if (round % 3 == 0) {
        EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
      }
      other.join();
    }
    for (Completions& one : completions) EXPECT_THAT(one.Await(), ::testing::Each(IsOk()));
  });
}

TEST_P(CommunicatorConformance, ACallbackMayDestroyTheHandleAndStartMore) {
  if (GetParam().checked) GTEST_SKIP() << "a start waits for all ranks, whose callbacks take turns here";
  OnRanksOfSizes({1, 2, 3}, Large(2), [&](Communicator& self, const CaseReference& reference) {
    CaseRun first(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    CaseRun second(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work started, self.Start(first.request()));
    Completions completions;
    auto handle = std::make_shared<std::unique_ptr<Work>>(std::make_unique<Work>(std::move(started)));
    Work* const work = handle->get();
    work->OnComplete([&, handle, done = completions.Expect()](const absl::Status& status) mutable {
      handle->reset();
      EXPECT_THAT(status, IsOk());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work next, self.Start(second.request()));
      next.OnComplete(std::move(done));
    });
    EXPECT_THAT(completions.Await(), ::testing::ElementsAre(IsOk()));
    EXPECT_EQ(first.Check(), "");
    EXPECT_EQ(second.Check(), "");
  });
}

TEST_P(CommunicatorConformance, EachStartOfAPreparedCollectiveHasCallbacksOfItsOwn) {
  constexpr int kRounds = 20;
  OnRanksOfSizes({1, 2, 3}, Large(3), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, self.Prepare(run.request()));
    std::deque<Completions> completions(kRounds + 1);
    prepared->OnComplete(completions[kRounds].Expect());
    EXPECT_THAT(completions[kRounds].Await(), ::testing::ElementsAre(IsOk())) << "before the first start";
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_THAT(prepared->Start(), IsOk());
      prepared->OnComplete(completions[round].Expect());
      prepared->OnComplete(completions[round].Expect());
      if (round % 2 == 0) {
        EXPECT_THAT(completions[round].Await(), ::testing::Each(IsOk()));
        EXPECT_TRUE(prepared->done());
      } else {
        EXPECT_THAT(prepared->Wait(CommTestDeadline()), IsOk());
      }
    }
    for (Completions& one : completions) EXPECT_THAT(one.Await(), ::testing::Each(IsOk()));
    EXPECT_EQ(run.Check(), "");
  });
}

// Its members' and its own, registered while it is open and afterwards.
TEST_P(CommunicatorConformance, CallbacksOfAGroupComeOnceItIsLaunched) {
  OnRanksOfSizes({1, 2, 3}, Large(4), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    CaseRun other(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    Completions completions;
    ASSERT_THAT(self.StartGroup(), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work member, self.Start(run.request()));
    member.OnComplete(completions.Expect());
    ASSERT_THAT(self.Start(other.request()).status(), IsOk());
    EXPECT_TRUE(completions.threads().empty()) << "nothing is launched yet";
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.EndGroup());
    member.OnComplete(completions.Expect());
    work.OnComplete(completions.Expect());
    EXPECT_THAT(completions.Await(), ::testing::Each(IsOk()));
    EXPECT_EQ(run.Check(), "");
    EXPECT_EQ(other.Check(), "");
    // A group that is refused completes what it has collected, too.
    ASSERT_THAT(self.StartGroup(), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work dropped, self.Start(run.request()));
    Completions of_dropped;
    dropped.OnComplete(of_dropped.Expect());
    CollectiveRequest wrong = run.request();
    wrong.op = ReduceOp::kXor;
    EXPECT_FALSE(self.Start(wrong).ok());
    EXPECT_FALSE(self.EndGroup().ok());
    EXPECT_THAT(of_dropped.Await(), ::testing::ElementsAre(StatusIs(Code::kCancelled)));
  });
}

// Rank 0 aborts while it waits for a rank that comes only afterwards.
TEST_P(CommunicatorConformance, CallbacksTellOfAnAbort) {
  if (GetParam().checked) GTEST_SKIP() << "nothing is in flight before all ranks have called";
  ForSizes({2, 3}, [&] {
    const CaseReference reference(Large(5), size());
    Gate aborted;
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      if (self.rank() == Rank(size() - 1)) {
        EXPECT_THAT(aborted.Await(CommTestDeadline()), IsOk());
        EXPECT_THAT(self.Run(run.request()), StatusIs(Code::kAborted));
        return;
      }
      absl::StatusOr<Work> work = self.Start(run.request());
      Completions completions;
      if (work.ok()) work->OnComplete(completions.Expect());
      if (self.rank() == Rank(0)) {
        self.Abort("enough");
        aborted.Open();
      }
      if (!work.ok()) {
        EXPECT_THAT(work.status(), StatusIs(Code::kAborted));
        return;
      }
      const std::vector<absl::Status> statuses = completions.Await();
      EXPECT_THAT(statuses, ::testing::ElementsAre(StatusIs(Code::kAborted)));
      EXPECT_THAT(statuses, ::testing::ElementsAre(work->Wait(Deadline::Now())));
    });
  });
}

TEST_P(CommunicatorConformance, CallbacksTellThatADeadlineHasPassed) {
  if (GetParam().checked) GTEST_SKIP() << "nothing is in flight before all ranks have called";
  ForSizes({2}, [&] {
    const CaseReference reference(Large(6), size());
    OnRanks([&](Communicator& self) {
      if (self.rank() == Rank(1)) return;
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      CollectiveRequest request = run.request();
      request.timeout = std::chrono::milliseconds(50);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.Start(request));
      Completions completions;
      work.OnComplete(completions.Expect());
      EXPECT_THAT(completions.Await(), ::testing::ElementsAre(StatusIs(Code::kDeadlineExceeded)));
    });
  });
}

// ---- Streams and records

// The collective sees what the stream's work before it wrote, and what comes later sees the collective's output.
TEST_P(CommunicatorConformance, EnqueuedCollectivesKeepTheStreamsOrder) {
  OnRanksOfSizes({1, 2, 3}, [&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Stream> stream, HostDevice()->CreateStream("test"));
    constexpr int kRounds = 10;
    std::vector<float> value(1000, 1.0f);
    CollectiveRequest request =
        MakeRequest(Collective::kAllReduce, DType::kF32, value.size(), value.data(), value.data());
    request.op = ReduceOp::kMax;
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
}

TEST_P(CommunicatorConformance, AnEnqueuedErrorReachesDoneAndNotTheStream) {
  OnRanksOfSizes({1, 2}, [&](Communicator& self) {
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
}

TEST_P(CommunicatorConformance, FlightRecordsTellWhatWasDone) {
  ForSizes({1, 2}, [&] {
    RunCases({OfCount(1234)});
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
        const absl::Status error = work.ok() ? work->Wait(CommTestDeadline()) : work.status();
        EXPECT_THAT(error, StatusIs(Code::kAborted));
        ExpectErrorOf(reference.collective().collective, error, self.status());
        if (aborter.joinable()) aborter.join();
      }
      EXPECT_THAT(self.status(), StatusIs(Code::kAborted));
      // Without a control channel the others know only whose connection broke.
      EXPECT_TRUE(GetErrorInfo(self.status()).failed_rank.has_value());
      if (self.rank() == Rank(0)) {
        EXPECT_EQ(GetErrorInfo(self.status()).failed_rank, 0);
      }
      const Collective collective = reference.collective().collective;
      ExpectErrorOf(collective, self.Run(run.request()), self.status());
      ExpectErrorOf(collective, self.Start(run.request()).status(), self.status());
      ExpectErrorOf(collective, self.Prepare(run.request()).status(), self.status());
      ReceiveRequest receive;
      receive.source = Rank(0);
      receive.tag = 3;
      const absl::Status refused = self.Receive(receive);
      EXPECT_THAT(refused,
                  StatusIs(Code::kAborted, ::testing::StartsWith("receive from rank 0 with tag 3 (0 B): the ")));
      EXPECT_EQ(GetErrorInfo(refused).collective, "receive");
    });
    communicator(0).Abort("again");
    EXPECT_THAT(communicator(0).status(),
                StatusIs(Code::kAborted, ::testing::HasSubstr("rank 0 aborted the communicator: enough")));
  });
}

}  // namespace
}  // namespace lockstep

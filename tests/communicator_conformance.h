// What every communicator promises (comm/communicator.h), as a test suite over a factory.
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(CommunicatorFactory{"seed1", &Create}),
//                            CommunicatorFactoryName);
//
// Where all combinations would take too long, each test runs through the product of what matters most to it and turns
// the rest over on the way.

#ifndef TESTS_COMMUNICATOR_CONFORMANCE_H_
#define TESTS_COMMUNICATOR_CONFORMANCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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
#include "tests/communicator_testing.h"
#include "tests/gate.h"
#include "tests/ranks.h"

namespace lockstep {

class CommunicatorConformance : public ::testing::TestWithParam<CommunicatorFactory> {
 protected:
  using Code = absl::StatusCode;

  // Those that carry out calls on ordinary memory, of any size.
  static Algorithms AlgorithmsByMessage(Collective collective) {
    Algorithms algorithms;
    for (const Algorithm algorithm : AlgorithmsFor(collective)) {
      if (!IsByMemory(algorithm)) algorithms.push_back(algorithm);
    }
    return algorithms;
  }

  // Runs `body` with a world of each of these sizes that there is.
  void ForSizes(const std::vector<int>& sizes, const std::function<void()>& body) {
    int worlds = 0;
    for (const int size : sizes) {
      absl::StatusOr<TestCommunicators> created = GetParam().create(size);
      if (absl::IsUnavailable(created.status())) continue;
      ASSERT_THAT(created.status(), IsOk()) << size << " ranks";
      ++worlds;
      world_ = *std::move(created);
      SCOPED_TRACE(absl::StrCat(size, " ranks"));
      body();
      world_ = {};
    }
    if (worlds == 0) GTEST_SKIP() << "no world of these sizes";
  }

  int size() const { return static_cast<int>(world_.ranks.size()); }
  static CaseMemory memory() { return GetParam().memory; }
  Communicator& communicator(int rank) { return *world_.ranks[rank]; }

  // `body` on a thread for each rank.
  void OnRanks(const std::function<void(Communicator&)>& body) {
    ::lockstep::testing::RunRanks(size(), [&](int rank) { body(communicator(rank)); });
  }

  bool Supported(Collective collective, DType dtype, ReduceOp op) {
    return IsDefined(dtype, op) && communicator(0).Supports(collective, dtype, op).ok();
  }

  // Carries out the cases one after the other on all ranks and judges every output.
  void RunCases(const std::vector<CollectiveCase>& cases) {
    std::deque<CaseReference> references;
    for (const CollectiveCase& c : cases) {
      if (!references.empty() && CaseReference::IsVariant(references.back().collective(), c)) {
        references.emplace_back(CaseReference(references.back()), c);
      } else {
        references.emplace_back(c, size());
      }
    }
    OnRanks([&](Communicator& self) {
      for (const CaseReference& reference : references) {
        CaseRun run(reference, self.rank(), memory());
        const absl::Status status = self.Run(run.request());
        ASSERT_THAT(status, IsOk()) << ToString(reference.collective());
        EXPECT_EQ(run.Check(), "") << "rank " << self.rank() << ": " << ToString(reference.collective());
      }
    });
  }

  // A float all-reduce that must succeed: the world is still good.
  void ExpectUsable() {
    CollectiveCase c;
    c.count = 11;
    RunCases({c});
  }

  static std::vector<bool> BothPlaces(Collective collective) {
    return collective == Collective::kBarrier ? std::vector<bool>{false} : std::vector<bool>{false, true};
  }

  // For a test of what is in flight: one case that takes a while.
  static CollectiveCase Large(uint32_t seed) {
    CollectiveCase c;
    c.count = 140'000;  // more than a chunk
    c.seed = seed;
    return c;
  }

  TestCommunicators world_;
};

TEST_P(CommunicatorConformance, TellsWhoItIs) {
  ForSizes({1, 2, 3, 5}, [&] {
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(communicator(rank).rank(), Rank(rank));
      EXPECT_EQ(communicator(rank).size(), size());
      EXPECT_THAT(communicator(rank).status(), IsOk());
    }
  });
}

TEST_P(CommunicatorConformance, EveryDTypeAndOp) {
  static constexpr size_t kCounts[] = {5, 300, 1, 130, 2, 67};
  ForSizes({1, 2, 3, 5, 8}, [&] {
    std::vector<CollectiveCase> cases;
    for (const Collective collective : kAllCollectives) {
      if (collective == Collective::kBarrier) continue;
      for (const Algorithm algorithm : AlgorithmsByMessage(collective)) {
        for (const DType dtype : kAllDTypes) {
          for (const ReduceOp op : kAllReduceOps) {
            if (!HasReduction(collective) && op != ReduceOp::kSum) continue;
            if (HasReduction(collective) && !Supported(collective, dtype, op)) continue;
            const uint32_t k = static_cast<uint32_t>(cases.size());
            CollectiveCase c;
            c.collective = collective;
            c.algorithm = algorithm;
            c.dtype = dtype;
            c.op = op;
            c.root = static_cast<int>(k % size());
            c.count = kCounts[k % std::size(kCounts)];
            c.in_place = k / std::size(kCounts) % 2 == 1;
            c.seed = k;
            cases.push_back(c);
          }
        }
      }
    }
    RunCases(cases);
  });
}

TEST_P(CommunicatorConformance, EveryCountRootAndPlace) {
  ForSizes({1, 2, 3, 4, 5, 8}, [&] {
    std::vector<CollectiveCase> cases;
    for (const Collective collective : kAllCollectives) {
      for (const Algorithm algorithm : AlgorithmsByMessage(collective)) {
        for (const size_t count : {0, 1, 2, 5, 1000}) {
          for (const bool in_place : BothPlaces(collective)) {
            for (int root = 0; root < (HasRoot(collective) ? size() : 1); ++root) {
              CollectiveCase c;
              c.collective = collective;
              c.algorithm = algorithm;
              c.dtype = cases.size() % 2 == 0 ? DType::kF32 : DType::kU8;
              c.root = root;
              c.count = count;
              c.in_place = in_place;
              c.background = cases.size() % 7 == 0;
              c.seed = static_cast<uint32_t>(cases.size());
              cases.push_back(c);
              if (!IsByRank(collective) || NeedsEqualBlocks(collective, algorithm)) continue;
              c.unequal = true;
              c.in_place = in_place && collective != Collective::kAllToAll;  // its output is of another length
              cases.push_back(c);
            }
          }
        }
      }
    }
    RunCases(cases);
  });
}

TEST_P(CommunicatorConformance, VectorsOfManyChunks) {
  ForSizes({1, 2, 5}, [&] {
    for (const Collective collective : kAllCollectives) {
      std::vector<CollectiveCase> cases;
      for (const Algorithm algorithm : AlgorithmsByMessage(collective)) {
        for (const bool in_place : BothPlaces(collective)) {
          CollectiveCase c;
          c.collective = collective;
          c.algorithm = algorithm;
          c.root = size() - 1;
          c.count = 300'001;
          if (IsByRank(collective)) c.count /= size();
          c.unequal = IsByRank(collective) && !in_place && !NeedsEqualBlocks(collective, algorithm);
          c.in_place = in_place;
          c.background = in_place;
          cases.push_back(c);
        }
      }
      RunCases(cases);
    }
  });
}

// Any bits at all, so that sums round, overflow and meet NaN.
TEST_P(CommunicatorConformance, EveryRankGetsTheSameBits) {
  ForSizes({2, 3, 4, 5, 8}, [&] {
    for (const Algorithm algorithm : AlgorithmsByMessage(Collective::kAllReduce)) {
      for (const DType dtype : kAllDTypes) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kProd}) {
          if (!Supported(Collective::kAllReduce, dtype, op)) continue;
          CollectiveCase c;
          c.algorithm = algorithm;
          c.dtype = dtype;
          c.op = op;
          c.count = 777;
          c.random_bits = true;
          const CaseReference reference(c, size());
          std::vector<std::vector<char>> outputs(size());
          OnRanks([&](Communicator& self) {
            CaseRun run(reference, self.rank(), memory());
            ASSERT_THAT(self.Run(run.request()), IsOk()) << ToString(c);
            outputs[self.rank().value()] = run.output();
          });
          for (int rank = 1; rank < size(); ++rank) EXPECT_EQ(outputs[rank], outputs[0]) << ToString(c) << rank;
        }
      }
    }
  });
}

// The reference shares no rule with these: written out by hand.
TEST_P(CommunicatorConformance, AnIntegerAverageIsRoundedTowardZero) {
  ForSizes({1, 2, 3, 4}, [&] {
    OnRanks([&](Communicator& self) {
      // Sums: -1, 1, -(size + 1), size + 1, -2 size + 1.
      const bool first = self.rank() == Rank(0);
      const int n = size();
      const std::vector<int8_t> input = {static_cast<int8_t>(first ? -1 : 0), static_cast<int8_t>(first ? 1 : 0),
                                         static_cast<int8_t>(first ? -2 : -1), static_cast<int8_t>(first ? 2 : 1),
                                         static_cast<int8_t>(first ? -1 : -2)};
      std::vector<int8_t> output(input.size());
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = DType::kI8;
      request.op = ReduceOp::kAvg;
      request.count = input.size();
      request.input = input.data();
      request.output = output.data();
      ASSERT_THAT(self.Run(request), IsOk());
      const bool alone = n == 1;
      EXPECT_THAT(output, ::testing::ElementsAre(alone ? -1 : 0, alone ? 1 : 0, alone ? -2 : -1, alone ? 2 : 1, -1));
    });
  });
}

TEST_P(CommunicatorConformance, UndefinedPairsAreRefusedAndBreakNothing) {
  ForSizes({1, 3}, [&] {
    OnRanks([&](Communicator& self) {
      std::vector<char> input(64 * 16), output(64 * 16);
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        for (const DType dtype : kAllDTypes) {
          for (const ReduceOp op : kAllReduceOps) {
            if (IsDefined(dtype, op)) continue;
            EXPECT_THAT(self.Supports(collective, dtype, op), StatusIs(Code::kInvalidArgument));
            for (const double factor : {1.0, 2.0}) {
              CollectiveRequest request;
              request.collective = collective;
              request.dtype = dtype;
              request.op = op;
              request.count = size();
              request.input = input.data();
              request.output = output.data();
              request.factor = factor;
              EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument)) << Name(dtype) << " " << Name(op);
              EXPECT_THAT(self.Start(request).status(), StatusIs(Code::kInvalidArgument));
            }
          }
        }
      }
    });
    ExpectUsable();
  });
}

TEST_P(CommunicatorConformance, WrongRootsAndAlgorithmsAreRefusedAndBreakNothing) {
  ForSizes({1, 2}, [&] {
    OnRanks([&](Communicator& self) {
      float value = 1;
      CollectiveRequest request;
      request.collective = Collective::kBroadcast;
      request.dtype = DType::kF32;
      request.count = 1;
      request.input = &value;
      request.output = &value;
      request.root = Rank(size());
      EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("root")));
      request.root = Rank(-1);
      EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("root")));
      request.root = Rank(0);
      request.algorithm = Algorithm::kDissemination;
      EXPECT_THAT(self.Run(request), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("dissemination")));
    });
    ExpectUsable();
  });
}

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
        CaseRun& run = runs.emplace_back(reference, self.rank(), memory());
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
        CaseRun& run = runs.emplace_back(reference, self.rank(), memory());
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
      CaseRun run(reference, self.rank(), memory());
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
      CaseRun run(reference, self.rank(), memory());
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
          CaseRun run(references[round], self.rank(), memory());
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
        CaseRun& run = runs.emplace_back(round % 4 == 0 ? large : reference, self.rank(), memory());
        absl::StatusOr<Work> work = self.Start(run.request());
        ASSERT_THAT(work.status(), IsOk());
        waiters.emplace_back([work = *work]() mutable { EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk()); });
        CaseRun blocking(reference, self.rank(), memory());
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
                  ::testing::ContainsRegex("all_reduce #[0-9]+ \\(1234 f32 sum, .*\\).* done in"));
    }
  });
}

// Rank 0 aborts while all wait for a rank that comes only afterwards.
TEST_P(CommunicatorConformance, AbortEndsWhatIsInFlightAndToComeOnEveryRank) {
  ForSizes({1, 2, 3, 5}, [&] {
    const CaseReference reference(Large(1), size());
    Gate aborted;
    OnRanks([&](Communicator& self) {
      CaseRun run(reference, self.rank(), memory());
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

#endif  // TESTS_COMMUNICATOR_CONFORMANCE_H_

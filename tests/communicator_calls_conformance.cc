// What every communicator promises beside the collective itself: groups, prepared collectives, messages, and parts of it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "comm/work.h"
#include "tests/communicator_conformance.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

SendRequest SendOf(const std::vector<char>& data, int target, int64_t tag) {
  SendRequest request;
  request.target = Rank(target);
  request.tag = tag;
  request.data = data.data();
  request.bytes = data.size();
  request.timeout = std::chrono::milliseconds(60'000);
  return request;
}

ReceiveRequest ReceiveOf(std::vector<char>* data, Rank source, int64_t tag, MessageInfo* info = nullptr) {
  ReceiveRequest request;
  request.source = source;
  request.tag = tag;
  request.data = data->data();
  request.bytes = data->size();
  request.info = info;
  request.timeout = std::chrono::milliseconds(60'000);
  return request;
}

// Bytes that tell where a message comes from.
std::vector<char> MessageOf(int source, int64_t tag, size_t bytes) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(31 * source + 7 * tag + i % 251);
  return data;
}

// ---- Groups

// Ranks call in orders in which each would wait for another, were the calls carried out one by one.
TEST_P(CommunicatorConformance, AGroupOfBlockingCallsCannotDeadlock) {
  constexpr size_t kBytes = 200'000;  // more than is sent before it is received
  OnRanksOfSizes({1, 2, 3, 5}, [&](Communicator& self) {
    const int rank = self.rank().value();
    const int next = (rank + 1) % size();
    const int previous = (rank + size() - 1) % size();
    for (int round = 0; round < 3; ++round) {
      const std::vector<char> out = MessageOf(rank, round, kBytes);
      std::vector<char> in(kBytes);
      const CaseReference reference(OfCount(1000), size());
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      ASSERT_THAT(self.StartGroup(), IsOk());
      EXPECT_THAT(self.Send(SendOf(out, next, round)), IsOk());
      EXPECT_THAT(self.Run(run.request()), IsOk());
      EXPECT_THAT(self.Receive(ReceiveOf(&in, Rank(previous), round)), IsOk());
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.EndGroup());
      EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
      EXPECT_EQ(in, MessageOf(previous, round, kBytes));
      EXPECT_EQ(run.Check(), "");
    }
  });
}

TEST_P(CommunicatorConformance, AGroupLaunchesAtItsOutermostEnd) {
  ForSizes({1, 2, 3}, [&] {
    std::deque<CaseReference> references;
    for (int i = 0; i < 6; ++i) {
      CollectiveCase c;
      c.collective = i % 2 == 0 ? Collective::kAllReduce : Collective::kAllGather;
      c.count = 100 * i;
      c.seed = static_cast<uint32_t>(i);
      references.emplace_back(c, size());
    }
    OnRanks([&](Communicator& self) {
      std::deque<CaseRun> runs;
      std::vector<Work> works;
      ASSERT_THAT(self.StartGroup(), IsOk());
      ASSERT_THAT(self.StartGroup(), IsOk());
      for (const CaseReference& reference : references) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(
            Work work, self.Start(runs.emplace_back(reference, self.rank(), OrdinaryMemoryOf(self.rank())).request()));
        EXPECT_FALSE(work.done());
        EXPECT_THAT(work.Wait(CommTestDeadline()),
                    StatusIs(Code::kFailedPrecondition, ::testing::HasSubstr("end the group first")));
        works.push_back(std::move(work));
      }
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work inner, self.EndGroup());
      EXPECT_THAT(inner.Wait(CommTestDeadline()), StatusIs(Code::kFailedPrecondition));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work outer, self.EndGroup());
      EXPECT_THAT(outer.Wait(CommTestDeadline()), IsOk());
      EXPECT_THAT(inner.Wait(Deadline::Now()), IsOk());
      for (size_t i = 0; i < works.size(); ++i) {
        EXPECT_THAT(works[i].Wait(Deadline::Now()), IsOk());
        EXPECT_EQ(runs[i].Check(), "");
      }
      EXPECT_THAT(self.EndGroup().status(), StatusIs(Code::kFailedPrecondition, ::testing::HasSubstr("no group")));
    });
    ExpectUsable();
  });
}

TEST_P(CommunicatorConformance, ARefusedCallOfAGroupSurfacesAtItsEndAndNothingIsLaunched) {
  OnRanksOfSizes({1, 2}, Large(1), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    ASSERT_THAT(self.StartGroup(), IsOk());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work good, self.Start(run.request()));
    CollectiveRequest bad = run.request();
    bad.op = ReduceOp::kXor;
    EXPECT_THAT(self.Run(bad), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("xor")));
    EXPECT_THAT(self.EndGroup().status(), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("xor")));
    EXPECT_THAT(good.Wait(CommTestDeadline()),
                StatusIs(Code::kCancelled, ::testing::HasSubstr("group was not launched")));
  });
}

TEST_P(CommunicatorConformance, AGroupBelongsToItsThread) {
  OnRanksOfSizes({1, 2}, OfCount(10), [&](Communicator& self, const CaseReference& reference) {
    ASSERT_THAT(self.StartGroup(), IsOk());
    std::thread([&] {
      EXPECT_THAT(self.StartGroup(), StatusIs(Code::kFailedPrecondition, ::testing::HasSubstr("another thread")));
      EXPECT_THAT(self.EndGroup().status(), StatusIs(Code::kFailedPrecondition));
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      EXPECT_THAT(self.Run(run.request()), IsOk()) << "other threads' calls are not collected";
      EXPECT_EQ(run.Check(), "");
    }).join();
    EXPECT_THAT(self.EndGroup().status(), IsOk()) << "an empty group";
  });
}

// ---- Prepared collectives

TEST_P(CommunicatorConformance, APreparedCollectiveIsStartedAsOftenAsWanted) {
  ForSizes({1, 2, 3}, [&] {
    for (const Collective collective : kAllCollectives) {
      CollectiveCase c;
      c.collective = collective;
      c.count = 500;
      c.unequal = IsByRank(collective);
      c.root = size() - 1;
      c.op = ReduceOp::kMax;
      const CaseReference reference(c, size());
      OnRanks([&](Communicator& self) {
        CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, self.Prepare(run.request()));
        EXPECT_TRUE(prepared->done());
        EXPECT_THAT(prepared->Wait(Deadline::Now()), IsOk());
        for (int round = 0; round < 4; ++round) {
          if (round % 2 == 0) {
            EXPECT_THAT(prepared->Run(), IsOk());
          } else {
            EXPECT_THAT(prepared->Start(), IsOk());
            EXPECT_THAT(prepared->Wait(CommTestDeadline()), IsOk());
          }
          EXPECT_TRUE(prepared->done());
          EXPECT_EQ(run.Check(), "") << ToString(c);
        }
      });
    }
  });
}

TEST_P(CommunicatorConformance, RunningAPreparedCollectiveInAGroupStartsIt) {
  OnRanksOfSizes({1, 2, 3}, Large(2), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, self.Prepare(run.request()));
    ASSERT_THAT(self.StartGroup(), IsOk());
    EXPECT_THAT(prepared->Run(), IsOk());
    EXPECT_FALSE(prepared->done());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.EndGroup());
    EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
    EXPECT_THAT(prepared->Wait(CommTestDeadline()), IsOk());
    EXPECT_EQ(run.Check(), "");
  });
}

TEST_P(CommunicatorConformance, PreparedCollectivesMixWithOthersAndMayBeForgotten) {
  OnRanksOfSizes({1, 2, 3}, Large(2), [&](Communicator& self, const CaseReference& reference) {
    CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank())),
        other(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, self.Prepare(run.request()));
    ASSERT_THAT(prepared->Start(), IsOk());
    prepared.reset();
    // Only the one that is prepared on other ranks is not on this one.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> again, self.Prepare(other.request()));
    EXPECT_THAT(self.rank() == Rank(0) ? again->Run() : self.Run(other.request()), IsOk());
    EXPECT_EQ(run.Check(), "");
    EXPECT_EQ(other.Check(), "");
    CollectiveRequest bad = run.request();
    bad.op = ReduceOp::kXor;
    EXPECT_THAT(self.Prepare(bad).status(), StatusIs(Code::kInvalidArgument));
  });
}

// ---- Messages

TEST_P(CommunicatorConformance, MessagesOfEverySizeFindTheirReceive) {
  OnRanksOfSizes({1, 2, 3}, [&](Communicator& self) {
    const int rank = self.rank().value();
    for (const size_t bytes : {0, 1, 32, 5000, 65'536, 65'537, 700'000}) {
      std::deque<std::vector<char>> out, in;
      std::deque<MessageInfo> infos;
      std::vector<Work> works;
      // Half of the receives are there before the messages.
      for (const bool receive_first : {true, false}) {
        for (int peer = 0; peer < size(); ++peer) {
          const int64_t tag = receive_first ? 1 : 2;
          const auto receive = [&] {
            in.emplace_back(bytes);
            LOCKSTEP_ASSERT_OK_AND_ASSIGN(
                Work work, self.StartReceive(ReceiveOf(&in.back(), Rank(peer), tag, &infos.emplace_back())));
            works.push_back(std::move(work));
          };
          if (receive_first) receive();
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(
              Work work, self.StartSend(SendOf(out.emplace_back(MessageOf(rank, tag, bytes)), peer, tag)));
          works.push_back(std::move(work));
          if (!receive_first) receive();
        }
      }
      for (Work& work : works) ASSERT_THAT(work.Wait(CommTestDeadline()), IsOk());
      for (size_t i = 0; i < in.size(); ++i) {
        const int64_t tag = i < static_cast<size_t>(size()) ? 1 : 2;
        EXPECT_EQ(infos[i].bytes, bytes);
        EXPECT_EQ(infos[i].tag, tag);
        EXPECT_EQ(infos[i].source, Rank(static_cast<int>(i) % size()));
        EXPECT_EQ(in[i], MessageOf(static_cast<int>(i) % size(), tag, bytes));
      }
    }
  });
}

// Tags are taken out of order, equal tags in order, and wildcards in order of arrival.
TEST_P(CommunicatorConformance, MessagesAreMatchedByTagAndInOrder) {
  constexpr int kMessages = 40;
  OnRanksOfSizes({1, 2, 4}, [&](Communicator& self) {
    const int rank = self.rank().value();
    std::deque<std::vector<char>> out;
    std::vector<Work> works;
    // Message i of each tag has i bytes, and every tenth is long.
    const auto length = [](int i) { return static_cast<size_t>(i % 10 == 9 ? 70'000 + i : i); };
    for (int i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < size(); ++peer) {
        for (const int64_t tag : {5, 6}) {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(
              Work work, self.StartSend(SendOf(out.emplace_back(MessageOf(rank, tag, length(i))), peer, tag)));
          works.push_back(std::move(work));
        }
      }
    }
    std::vector<char> in(100'000);
    for (int peer = size() - 1; peer >= 0; --peer) {
      for (int i = 0; i < kMessages; ++i) {
        MessageInfo info;
        ASSERT_THAT(self.Receive(ReceiveOf(&in, Rank(peer), 6, &info)), IsOk());
        ASSERT_EQ(info.bytes, length(i)) << "from " << peer;
        EXPECT_TRUE(std::equal(in.begin(), in.begin() + info.bytes, MessageOf(peer, 6, length(i)).begin()));
      }
    }
    std::vector<int> next(size());
    for (int k = 0; k < kMessages * size(); ++k) {
      MessageInfo info;
      ASSERT_THAT(self.Receive(ReceiveOf(&in, kAnySource, k % 2 == 0 ? kAnyTag : 5, &info)), IsOk());
      EXPECT_EQ(info.tag, 5);
      ASSERT_EQ(info.bytes, length(next[info.source.value()]++));
    }
    EXPECT_THAT(next, ::testing::Each(kMessages));
    for (Work& work : works) EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
  });
}

// Nobody receives until all is sent, and the rest waits with its sender: neither side is stuck on the other.
TEST_P(CommunicatorConformance, MoreMessagesThanAreHeldWaitWithTheirSender) {
  constexpr int kMessages = 100;
  constexpr size_t kBytes = 60'000;
  OnRanksOfSizes({1, 2, 3}, [&](Communicator& self) {
    const int rank = self.rank().value();
    const int peer = (rank + 1) % size();
    const int previous = (rank + size() - 1) % size();
    const std::vector<char> out = MessageOf(rank, 0, kBytes);
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, self.StartSend(SendOf(out, peer, i)));
      works.push_back(std::move(work));
    }
    // Nobody receives before this rank is at the barrier.
    EXPECT_FALSE(works.back().done());
    ASSERT_THAT(self.Run(CollectiveRequest()), IsOk()) << "collectives do not wait for messages";
    // The last one first: nothing is in the way.
    std::vector<char> in(kBytes);
    for (int i = kMessages - 1; i >= 0; --i) {
      ASSERT_THAT(self.Receive(ReceiveOf(&in, Rank(previous), i)), IsOk());
      EXPECT_EQ(in, MessageOf(previous, 0, kBytes));
    }
    for (Work& work : works) EXPECT_THAT(work.Wait(CommTestDeadline()), IsOk());
  });
}

TEST_P(CommunicatorConformance, AMessageWithoutRoomIsAnErrorAndBreaksNothing) {
  OnRanksOfSizes({1, 2}, [&](Communicator& self) {
    const int peer = size() - 1 - self.rank().value();
    for (const size_t bytes : {1000, 100'000}) {
      const std::vector<char> out = MessageOf(self.rank().value(), 1, bytes);
      std::vector<char> in(bytes - 1), good(bytes);
      absl::StatusOr<Work> lost = self.StartSend(SendOf(out, peer, 1));
      absl::StatusOr<Work> second = self.StartSend(SendOf(out, peer, 1));
      ASSERT_THAT(lost.status(), IsOk());
      ASSERT_THAT(second.status(), IsOk());
      EXPECT_THAT(self.Receive(ReceiveOf(&in, Rank(peer), 1)),
                  StatusIs(Code::kFailedPrecondition, ::testing::HasSubstr("has room for")));
      // What was sent eagerly is done for its sender.
      EXPECT_THAT(lost->Wait(CommTestDeadline()), StatusIs(bytes > 65'536 ? Code::kFailedPrecondition : Code::kOk));
      EXPECT_THAT(self.Receive(ReceiveOf(&good, Rank(peer), 1)), IsOk());
      EXPECT_EQ(good, MessageOf(peer, 1, bytes));
      EXPECT_THAT(second->Wait(CommTestDeadline()), IsOk());
    }
    std::vector<char> data(1);
    EXPECT_THAT(self.Send(SendOf(data, size(), 0)), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("target")));
    EXPECT_THAT(self.Send(SendOf(data, 0, -1)), StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("tag")));
    EXPECT_THAT(self.Receive(ReceiveOf(&data, Rank(size()), 0)),
                StatusIs(Code::kInvalidArgument, ::testing::HasSubstr("source")));
    EXPECT_THAT(self.Receive(ReceiveOf(&data, Rank(0), -2)), StatusIs(Code::kInvalidArgument));
  });
}

TEST_P(CommunicatorConformance, MessagesHaveCallbacks) {
  OnRanksOfSizes({1, 2, 3}, [&](Communicator& self) {
    const int rank = self.rank().value();
    constexpr size_t kSizes[] = {0, 100, 300'000};
    std::deque<Completions> sent(3), received(3);
    std::deque<std::vector<char>> out, in;
    MessageInfo info[3];
    for (int i = 0; i < 3; ++i) {
      out.push_back(MessageOf(rank, i, kSizes[i]));
      in.emplace_back(kSizes[i]);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work send, self.StartSend(SendOf(out[i], (rank + 1) % size(), i)));
      send.OnComplete(sent[i].Expect());
    }
    for (int i = 0; i < 3; ++i) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work receive, self.StartReceive(ReceiveOf(&in[i], kAnySource, i, &info[i])));
      receive.OnComplete(received[i].Expect());
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_THAT(sent[i].Await(), ::testing::ElementsAre(IsOk()));
      EXPECT_THAT(received[i].Await(), ::testing::ElementsAre(IsOk()));
      EXPECT_EQ(info[i].bytes, kSizes[i]);
      EXPECT_EQ(in[i], MessageOf((rank + size() - 1) % size(), i, kSizes[i]));
    }
  });
}

// Nobody sends it. A rank's message to itself has a deadline that only looking at it tells.
TEST_P(CommunicatorConformance, CallbacksTellThatAMessageDidNotComeInTime) {
  ForSizes({1, 2}, [&] {
    Communicator& self = communicator(0);
    std::vector<char> data(10);
    ReceiveRequest request = ReceiveOf(&data, Rank(size() - 1), 5);
    request.timeout = std::chrono::milliseconds(50);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work receive, self.StartReceive(request));
    Completions completions;
    receive.OnComplete(completions.Expect());
    EXPECT_THAT(completions.Await(), ::testing::ElementsAre(StatusIs(Code::kDeadlineExceeded)));
  });
}

// ---- Parts

CollectiveRequest SumOf(std::vector<int64_t>* data) {
  CollectiveRequest request =
      MakeRequest(Collective::kAllReduce, DType::kI64, data->size(), data->data(), data->data());
  request.timeout = std::chrono::milliseconds(60'000);
  return request;
}

TEST_P(CommunicatorConformance, SplitsByColorAndOrdersByKey) {
  OnRanksOfSizes({1, 2, 3, 5, 8}, [&](Communicator& self) {
    const int rank = self.rank().value();
    // Odd and even ranks, backwards.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> split, self.Split(rank % 2, -rank));
    Communicator& part = *split;
    const int members = (size() + 1 - rank % 2) / 2;
    EXPECT_EQ(part.size(), members);
    EXPECT_EQ(part.rank(), Rank(members - 1 - rank / 2));
    std::vector<int64_t> sum = {rank, 1};
    EXPECT_THAT(part.Run(SumOf(&sum)), IsOk());
    int64_t expected = 0;
    for (int r = rank % 2; r < size(); r += 2) expected += r;
    EXPECT_THAT(sum, ::testing::ElementsAre(expected, members));
    // Messages go by the part's ranks.
    const std::vector<char> out = MessageOf(rank, 0, 10);
    std::vector<char> in(10);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work sent, part.StartSend(SendOf(out, (part.rank().value() + 1) % members, 0)));
    MessageInfo info;
    EXPECT_THAT(part.Receive(ReceiveOf(&in, kAnySource, kAnyTag, &info)), IsOk());
    EXPECT_EQ(info.source, Rank((part.rank().value() + members - 1) % members));
    EXPECT_THAT(sent.Wait(CommTestDeadline()), IsOk());
    // Parts of parts.
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> copy, part.Duplicate());
    EXPECT_EQ(copy->rank(), part.rank());
    sum = {rank, 1};
    EXPECT_THAT(copy->Run(SumOf(&sum)), IsOk());
    EXPECT_EQ(sum[0], expected);
  });
}

TEST_P(CommunicatorConformance, ARankWithoutAColorIsInNoPart) {
  OnRanksOfSizes({1, 2, 4}, [&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> split, self.Split(self.rank() == Rank(0) ? -1 : 3, 0));
    if (self.rank() == Rank(0)) {
      EXPECT_EQ(split, nullptr);
    } else {
      EXPECT_EQ(split->size(), size() - 1);
      EXPECT_THAT(split->Run(CollectiveRequest()), IsOk());
    }
  });
}

// Two threads a rank, each with a communicator of its own, which even and odd ranks use in opposite orders.
TEST_P(CommunicatorConformance, SeveralCommunicatorsGetOnIndependently) {
  constexpr int kRounds = 25;
  OnRanksOfSizes({2, 3, 4}, [&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> first, self.Duplicate());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> second, self.Duplicate());
    // Started in opposite orders by one thread, unless a start waits for all ranks.
    const bool even = self.rank().value() % 2 == 0;
    for (int round = 0; round < kRounds && !GetParam().checked; ++round) {
      std::vector<int64_t> a(30'000, 1), b(10, 2);
      absl::StatusOr<Work> one = even ? first->Start(SumOf(&a)) : second->Start(SumOf(&b));
      absl::StatusOr<Work> two = even ? second->Start(SumOf(&b)) : first->Start(SumOf(&a));
      ASSERT_THAT(one.status(), IsOk());
      ASSERT_THAT(two.status(), IsOk());
      ASSERT_THAT(two->Wait(CommTestDeadline()), IsOk());
      ASSERT_THAT(one->Wait(CommTestDeadline()), IsOk());
      EXPECT_EQ(a, std::vector<int64_t>(a.size(), size()));
      EXPECT_EQ(b, std::vector<int64_t>(b.size(), 2 * size()));
    }
    const auto use = [&](Communicator* communicator, size_t count) {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<int64_t> data(count, round);
        ASSERT_THAT(communicator->Run(SumOf(&data)), IsOk());
        EXPECT_EQ(data, std::vector<int64_t>(count, round * size()));
      }
    };
    std::thread other(use, second.get(), 20'000);
    use(first.get(), 5);
    other.join();
  });
}

// ---- Monitored barriers, where there is a control channel

// Who had not come, for each of them in turn.
TEST_P(CommunicatorConformance, AMonitoredBarrierSaysWhoHasNotCome) {
  using std::chrono::milliseconds;
  ForSizes({1, 2, 4}, [&] {
    if (absl::IsUnimplemented(communicator(0).MonitoredBarrier(milliseconds(1), nullptr))) {
      GTEST_SKIP() << "there is no control channel";
    }
    // That was the first one: the others find it over, and rank 0 was the only one there.
    OnRanks([&](Communicator& self) {
      if (self.rank() == Rank(0)) return;
      std::vector<Rank> missing;
      EXPECT_THAT(self.MonitoredBarrier(milliseconds(60'000), &missing),
                  StatusIs(Code::kDeadlineExceeded, ::testing::HasSubstr("came when it was over")));
      EXPECT_EQ(missing.size(), size() - 1);
    });
    // All come, some later than others; none leaves before.
    std::atomic<int> entered{0};
    OnRanks([&](Communicator& self) {
      for (int round = 1; round <= 20; ++round) {
        if (round % size() == self.rank().value()) std::this_thread::yield();
        ++entered;
        std::vector<Rank> missing = {Rank(7)};
        ASSERT_THAT(self.MonitoredBarrier(round % 2 == 0 ? milliseconds(60'000) : milliseconds(0), &missing), IsOk());
        ASSERT_THAT(missing, ::testing::IsEmpty());
        ASSERT_GE(entered.load(), round * size());
      }
    });
    if (size() == 1) return;
    // The last ranks come too late, to several in a row: all but the first, and then the last alone.
    for (const int present : {1, size() - 1}) {
      std::vector<Rank> expected;
      for (int r = present; r < size(); ++r) expected.emplace_back(r);
      Gate over;
      std::atomic<int> coming{0}, told{0};
      OnRanks([&](Communicator& self) {
        const bool late = self.rank().value() >= present;
        if (late) {
          EXPECT_THAT(over.Await(CommTestDeadline()), IsOk());
        }
        std::vector<Rank> missing;
        // The first who has no more time ends it for those who have.
        const milliseconds timeout = self.rank() == Rank(0) ? milliseconds(500) : milliseconds(60'000);
        if (!late) ++coming;
        while (self.rank() == Rank(0) && coming < present) std::this_thread::yield();
        const absl::Status status = self.MonitoredBarrier(timeout, &missing);
        const std::string names = present == size() - 1 ? absl::StrCat("rank ", present, " has not come in time")
                                                        : absl::StrCat("ranks ", present, ", ");
        EXPECT_THAT(status, StatusIs(Code::kDeadlineExceeded, ::testing::HasSubstr(names)));
        EXPECT_EQ(missing, expected);
        if (!late && ++told == present) over.Open();
        // Nothing is over but that, and the next one is everybody's.
        EXPECT_THAT(self.status(), IsOk());
        EXPECT_THAT(self.MonitoredBarrier(milliseconds(60'000), &missing), IsOk());
      });
      ExpectUsable();
    }
    // Of parts: each has its own, with its own ranks.
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> part,
                                    self.Split(self.rank().value() / 2, -self.rank().value()));
      EXPECT_THAT(part->MonitoredBarrier(milliseconds(60'000), nullptr), IsOk());
      if (self.rank() == Rank(size() - 1)) {
        std::vector<Rank> missing;
        EXPECT_THAT(part->MonitoredBarrier(milliseconds(50), &missing),
                    StatusIs(Code::kDeadlineExceeded, ::testing::HasSubstr("rank 1 has not come")));
        EXPECT_THAT(missing, ::testing::ElementsAre(Rank(1)));
      }
      EXPECT_THAT(self.MonitoredBarrier(milliseconds(60'000), nullptr), IsOk());
    });
    // An abort ends the wait.
    OnRanks([&](Communicator& self) {
      if (self.rank() == Rank(size() - 1)) return self.Abort("enough");
      EXPECT_THAT(self.MonitoredBarrier(milliseconds(60'000), nullptr), StatusIs(Code::kAborted));
      const absl::Status refused = self.MonitoredBarrier(milliseconds(60'000), nullptr);
      EXPECT_THAT(refused, StatusIs(Code::kAborted, ::testing::AllOf(::testing::StartsWith("monitored barrier: the "),
                                                                     ::testing::HasSubstr("aborted"))));
      EXPECT_EQ(GetErrorInfo(refused).failed_rank, size() - 1);
    });
  });
}

TEST_P(CommunicatorConformance, AFailureOfAPartLeavesTheOthersAlone) {
  OnRanksOfSizes({2, 3}, [&](Communicator& self) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> part, self.Duplicate());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Communicator> other, self.Duplicate());
    if (self.rank() == Rank(0)) {
      part->Abort("enough of this");
    }
    EXPECT_THAT(part->Run(CollectiveRequest()), StatusIs(Code::kAborted));
    EXPECT_THAT(other->Run(CollectiveRequest()), IsOk());
    EXPECT_THAT(self.Run(CollectiveRequest()), IsOk());
  });
}

// The others come when it is too late.
TEST_P(CommunicatorConformance, DestroyingAPartWithACallInFlightFailsItOnEveryRank) {
  if (GetParam().checked) GTEST_SKIP() << "nothing is in flight before all ranks have called";
  ForSizes({2, 3}, [&] {
    const CaseReference reference(Large(4), size());
    Gate destroyed;
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> part, self.Duplicate());
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      if (self.rank() == Rank(0)) {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, part->Start(run.request()));
        Completions completions;
        work.OnComplete(completions.Expect());
        part.reset();
        EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(Code::kCancelled, ::testing::HasSubstr("destroyed")));
        EXPECT_THAT(completions.Await(), ::testing::ElementsAre(StatusIs(Code::kCancelled)));
        destroyed.Open();
      } else {
        EXPECT_THAT(destroyed.Await(CommTestDeadline()), IsOk());
        EXPECT_THAT(part->Run(run.request()), StatusIs(Code::kAborted));
      }
    });
    ExpectUsable();
  });
}

// As destroying it, but for what is still there.
TEST_P(CommunicatorConformance, WhoHasLeftHasItsCallsCancelledAndTheOthersHearOfIt) {
  if (GetParam().checked) GTEST_SKIP() << "nothing is in flight before all ranks have called";
  ForSizes({1, 2, 3}, [&] {
    const CaseReference reference(Large(4), size());
    Gate left;
    OnRanks([&](Communicator& self) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> part, self.Duplicate());
      CaseRun run(reference, self.rank(), OrdinaryMemoryOf(self.rank()));
      if (self.rank() != Rank(0)) {
        EXPECT_THAT(left.Await(CommTestDeadline()), IsOk());
        EXPECT_THAT(part->Run(run.request()), StatusIs(Code::kAborted));
        return;
      }
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<PreparedCollective> prepared, part->Prepare(run.request()));
      const auto cancelled = StatusIs(Code::kCancelled, ::testing::HasSubstr("the communicator was destroyed"));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work work, part->Start(run.request()));
      EXPECT_FALSE(part->left());
      part->Leave();
      EXPECT_TRUE(part->left());
      // Alone it may have been done before; in any case its buffers are borrowed until then.
      const absl::Status ended = work.Wait(CommTestDeadline());
      if (size() > 1 || !ended.ok()) {
        EXPECT_THAT(ended, cancelled);
      }
      EXPECT_THAT(part->status(), cancelled);
      EXPECT_THAT(part->Run(run.request()), cancelled);
      EXPECT_THAT(part->Run(CollectiveRequest()), cancelled);
      EXPECT_THAT(part->Start(run.request()).status(), cancelled);
      EXPECT_THAT(prepared->Start(), cancelled);
      EXPECT_THAT(part->StartGroup(), ::testing::Not(IsOk()));
      EXPECT_THAT(part->Duplicate().status(), ::testing::Not(IsOk()));
      part->Leave();
      left.Open();
      EXPECT_THAT(part->status(), cancelled);
    });
    ExpectUsable();
  });
}

// A rank destroys a duplicate that the others use: in a collective already, or only afterwards. The duplicate is new, or was used.
TEST_P(CommunicatorConformance, DestroyingADuplicateEndsWhatPeersCallThere) {
  ForSizes({2, 3, 5}, [&] {
    for (const bool used : {false, true}) {
      for (const bool inside : {false, true}) {
        SCOPED_TRACE(absl::StrCat(used ? "used" : "new", inside ? ", called before" : ", called afterwards"));
        const Rank leaver(size() - 1);
        std::atomic<int> waiting{0};  // ranks that have finished what they all call
        Gate destroyed;
        OnRanks([&](Communicator& self) {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> part, self.Duplicate());
          std::vector<int64_t> data = {1, 2, 3};
          if (used) {
            EXPECT_THAT(part->Run(SumOf(&data)), IsOk());
          }
          if (self.rank() == leaver) {
            const Deadline deadline = CommTestDeadline();
            while (waiting < size() - 1 && !deadline.passed()) std::this_thread::yield();
            part.reset();
            destroyed.Open();
            return;
          }
          ++waiting;
          if (!inside) {
            EXPECT_THAT(destroyed.Await(CommTestDeadline()), IsOk());
          }
          const absl::Status status = part->Run(SumOf(&data));
          const std::string name =
              GetParam().announces_failures || size() == 2 ? absl::StrCat("rank ", leaver.value()) : "";
          EXPECT_THAT(status, StatusIs(Code::kAborted, ::testing::HasSubstr(name)));
          EXPECT_EQ(part->status().code(), status.code());
        });
        ExpectUsable();
      }
    }
  });
}

// Whoever is first to be done may destroy its part while others have yet to call what all call last.
TEST_P(CommunicatorConformance, DestroyingAPartInGoodOrderFailsNobody) {
  OnRanksOfSizes({2, 3}, [&](Communicator& self) {
    const Rank root(0);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<Communicator> part, self.Duplicate());
    EXPECT_THAT(part->Run(CollectiveRequest()), IsOk());
    // The root of a small broadcast needs nobody to be done with it, unless it goes in shared memory.
    std::vector<int64_t> data(2, self.rank() == root ? 7 : 0);
    CollectiveRequest last = SumOf(&data);
    last.collective = Collective::kBroadcast;
    last.root = root;
    if (self.rank() == root) {
      EXPECT_THAT(part->Run(last), IsOk());
      part.reset();
    } else {
      // Longer than the coordinator needs to notice anything.
      Gate never;
      EXPECT_THAT(never.Await(Deadline::AfterMs(GetParam().announces_failures ? 1'500 : 10)), ::testing::Not(IsOk()));
      EXPECT_THAT(part->status(), IsOk());
      EXPECT_THAT(part->Run(last), IsOk());
      EXPECT_THAT(data, ::testing::Each(7));
      EXPECT_THAT(part->status(), IsOk());
    }
  });
}

}  // namespace
}  // namespace lockstep

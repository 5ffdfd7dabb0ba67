// What every transport promises of closing, aborting and waiting. Part of tests/transport_conformance.h.

#include "tests/transport_conformance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/transport.h"

namespace lockstep {

TEST_P(TransportConformance, CloseCompletesWhatIsLeftWithCancelledOnce) {
  if (!Create(2)) return;
  Exchange(0, TestPayload(10, 1));
  const std::vector<unsigned char>& large = LargePayload();
  std::vector<unsigned char> target(8);
  TestOperation cut_send, queued_send, receive, unopened_receive, later_send, later_receive;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), large.size(), &cut_send);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), 8, &queued_send);
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Receive(Rank(1), 77, TestEnvelope(1), CopySink(&target), &unopened_receive);
  EXPECT_THAT(rank(0)->Close(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded, testing::HasSubstr("closed")));
  EXPECT_THAT(rank(0)->Close(Deadline::AfterMs(20)), IsOk());
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), 8, &later_send);
  rank(0)->Receive(Rank(1), 123, TestEnvelope(1), CopySink(&target), &later_receive);
  for (TestOperation* operation : {&cut_send, &queued_send, &receive, &unopened_receive, &later_send, &later_receive}) {
    EXPECT_EQ(operation->completions, 1);
    EXPECT_THAT(operation->status, StatusIs(Code::kCancelled, testing::HasSubstr("closed")));
  }
}

TEST_P(TransportConformance, DestructionCompletesWhatIsLeftWithCancelled) {
  if (!Create(2)) return;
  std::vector<unsigned char> target(8);
  TestOperation receive;
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), CopySink(&target), &receive);
  ranks_[0] = nullptr;
  EXPECT_EQ(receive.completions, 1);
  EXPECT_THAT(receive.status, StatusIs(Code::kCancelled, testing::HasSubstr("closed")));
}

TEST_P(TransportConformance, CloseFlushesSends) {
  if (!Create(2)) return;
  const std::vector<unsigned char> data = TestPayload(8 << 20, 1);
  RunRanks(ranks_, [&](Transport* self) {
    TestOperation operation;
    std::vector<unsigned char> target(data.size());
    if (self->rank() == Rank(0)) {
      self->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &operation);
      EXPECT_THAT(self->Close(TestDeadline()), IsOk());
      EXPECT_EQ(operation.completions, 1);
    } else {
      self->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &operation);
      Await(self, [&] { return operation.done(); });
      EXPECT_TRUE(target == data);
    }
    EXPECT_THAT(operation.status, IsOk());
  });
}

TEST_P(TransportConformance, APeersCloseFailsReceivesAfterWhatHadArrived) {
  if (!Create(3)) return;
  const std::vector<unsigned char> data = TestPayload(1000, 1);
  TestOperation sends[3], receives[5], send_back;
  std::vector<unsigned char> targets[5];
  for (TestOperation& send : sends) rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  ASSERT_TRUE(DriveAll([&] { return sends[2].done(); }));
  ranks_[0] = nullptr;
  for (int i = 0; i < 5; ++i) {
    targets[i].resize(data.size());
    rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&targets[i]), &receives[i]);
  }
  ASSERT_TRUE(Await(rank(1), [&] { return receives[4].done(); }));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(receives[i].status, IsOk());
    EXPECT_EQ(targets[i], data);
  }
  for (int i = 3; i < 5; ++i) {
    EXPECT_THAT(receives[i].status,
                StatusIs(Code::kUnavailable,
                         "recv from rank 0 over " + rank(1)->DescribePeer(Rank(0)) + ": connection closed by peer"));
  }
}

// Whether there ever was a message between the two, or on the channel, does not matter.
TEST_P(TransportConformance, APeersCloseFailsReceivesOfWhatItNeverBegan) {
  if (!Create(3)) return;
  TestOperation before, after;
  std::vector<unsigned char> target(8);
  rank(1)->Receive(Rank(0), 5, TestEnvelope(1), CopySink(&target), &before);
  ranks_[0] = nullptr;
  rank(1)->Receive(Rank(0), 6, TestEnvelope(1), CopySink(&target), &after);
  ASSERT_TRUE(Await(rank(1), [&] { return before.done() && after.done(); }));
  for (const TestOperation* receive : {&before, &after}) {
    EXPECT_THAT(receive->status,
                StatusIs(Code::kUnavailable,
                         testing::StartsWith("recv from rank 0 over " + rank(1)->DescribePeer(Rank(0)) + ": ")));
  }
}

TEST_P(TransportConformance, APeersCloseFailsSendsThatAreUnderWayAndLaterOnes) {
  if (!Create(2)) return;
  const std::vector<unsigned char>& large = LargePayload();
  Exchange(0, TestPayload(10, 1));
  TestOperation send, later;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), large.size(), &send);
  rank(0)->Progress();
  EXPECT_FALSE(send.done());
  ranks_[1] = nullptr;
  ASSERT_TRUE(Await(rank(0), [&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, testing::HasSubstr("send to rank 1 over ")));
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), 8, &later);
  ASSERT_TRUE(later.done());
  EXPECT_THAT(later.status, StatusIs(Code::kUnavailable, testing::HasSubstr("rank 1")));
}

TEST_P(TransportConformance, AbortEndsEverythingForEver) {
  if (!Create(2)) return;
  Exchange(0, TestPayload(10, 1));
  const std::vector<unsigned char>& large = LargePayload();
  std::vector<unsigned char> target(8), untouched(8, 0xab);
  TestOperation send, receive, peers_receive, later;
  rank(1)->Receive(Rank(0), 3, TestEnvelope(1), CopySink(&target), &peers_receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), large.data(), large.size(), &send);
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), CopySink(&untouched), &receive);
  rank(0)->Abort(absl::AbortedError("enough"));
  for (TestOperation* operation : {&send, &receive}) {
    EXPECT_EQ(operation->completions, 1);
    EXPECT_THAT(operation->status, StatusIs(Code::kAborted, "enough"));
  }
  rank(0)->Send(Rank(1), 99, TestEnvelope(1), large.data(), 8, &later);
  EXPECT_THAT(later.status, StatusIs(Code::kAborted, "enough"));
  EXPECT_EQ(untouched, std::vector<unsigned char>(8, 0xab));

  // The peer sees the connections close that were there.
  std::vector<unsigned char> large_target(large.size());
  TestOperation cut;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&large_target), &cut);
  ASSERT_TRUE(Await(rank(1), [&] { return cut.done(); }));
  EXPECT_THAT(cut.status, StatusIs(Code::kUnavailable, testing::HasSubstr("rank 0")));
  ranks_[1] = nullptr;
  EXPECT_EQ(peers_receive.completions, 1);
}

TEST_P(TransportConformance, AbortChannelLeavesTheOthers) {
  if (!Create(2)) return;
  Exchange(1, TestPayload(10, 1));
  Exchange(2, TestPayload(10, 1));
  const std::vector<unsigned char>& data = LargePayload();
  std::vector<unsigned char> target(data.size());
  TestOperation send, receive, peers_receive, later, peers_send;
  rank(0)->Send(Rank(1), 1, TestEnvelope(1), data.data(), data.size(), &send);
  rank(0)->Receive(Rank(1), 1, TestEnvelope(1), CopySink(&target), &receive);
  rank(1)->Receive(Rank(0), 1, TestEnvelope(1), CopySink(&target), &peers_receive);
  rank(1)->Progress();
  rank(0)->AbortChannel(1, absl::AbortedError("given up"));
  for (TestOperation* operation : {&send, &receive}) {
    EXPECT_EQ(operation->completions, 1);
    EXPECT_THAT(operation->status, StatusIs(Code::kAborted, "given up"));
  }
  rank(0)->Receive(Rank(1), 1, TestEnvelope(1), CopySink(&target), &later);
  EXPECT_THAT(later.status, StatusIs(Code::kAborted, "given up"));
  ASSERT_TRUE(DriveAll([&] { return peers_receive.done(); }));
  EXPECT_THAT(peers_receive.status, StatusIs(Code::kUnavailable, testing::HasSubstr("recv from rank 0")));
  rank(1)->Send(Rank(0), 1, TestEnvelope(1), data.data(), 8, &peers_send);
  ASSERT_TRUE(DriveAll([&] { return peers_send.done(); }));
  EXPECT_THAT(peers_send.status, StatusIs(Code::kUnavailable, testing::HasSubstr("send to rank 0")));
  Exchange(2, TestPayload(300'000, 1));
}

// Whether there ever was a message on the channel, and whether the receive comes first, does not matter.
TEST_P(TransportConformance, AbortChannelEndsReceivesOfWhatItNeverBegan) {
  if (!Create(3)) return;
  std::vector<unsigned char> target(8);
  TestOperation before, after, others;
  rank(1)->Receive(Rank(0), 5, TestEnvelope(1), CopySink(&target), &before);
  rank(1)->Receive(Rank(2), 5, TestEnvelope(1), CopySink(&target), &others);
  rank(0)->AbortChannel(5, absl::AbortedError("given up"));
  rank(0)->AbortChannel(6, absl::AbortedError("given up"));
  rank(1)->Receive(Rank(0), 6, TestEnvelope(1), CopySink(&target), &after);
  ASSERT_TRUE(DriveAll([&] { return before.done() && after.done(); }));
  for (const TestOperation* receive : {&before, &after}) {
    EXPECT_THAT(receive->status, StatusIs(Code::kUnavailable, testing::HasSubstr("recv from rank 0")));
  }
  EXPECT_FALSE(others.done());
  Exchange(7, TestPayload(100, 1));
  ranks_[1] = nullptr;  // before what it refers to
}

TEST_P(TransportConformance, ACompletionMayAbortItsChannel) {
  if (!Create(2)) return;
  const std::vector<unsigned char> data = TestPayload(64, 1);
  std::vector<unsigned char> target(64);
  TestOperation sends[2], receives[3];
  for (TestOperation& send : sends) rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  receives[0].then = [&] { rank(1)->AbortChannel(0, absl::AbortedError("from a completion")); };
  for (TestOperation& receive : receives) {
    rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  }
  ASSERT_TRUE(DriveAll([&] { return receives[2].done() && sends[1].done(); }));
  EXPECT_THAT(receives[0].status, IsOk());
  for (int i : {1, 2}) EXPECT_THAT(receives[i].status, StatusIs(Code::kAborted, "from a completion"));
}

TEST_P(TransportConformance, WaitEndsWithItsDeadlineAndWithWake) {
  if (!Create(2)) return;
  rank(0)->Progress();
  // Early returns are allowed. A wait that nothing ends would last until the test times out.
  rank(0)->WaitForEvent(Deadline::AfterMs(10));
  rank(0)->WaitForEvent(Deadline::Now());
  rank(0)->Wake();
  rank(0)->WaitForEvent(Deadline::Infinite());
  std::atomic<bool> woken{false};
  Thread waiter("waiter", [&] {
    rank(0)->WaitForEvent(Deadline::Infinite());
    woken = true;
  });
  while (!woken) rank(0)->Wake();
  waiter.Join();
}

// One thread sleeps in WaitForEvent while another posts operations, and drives nothing: the sleeper must be woken by
// what happens to operations that it has never seen.
TEST_P(TransportConformance, AWaitCoversOperationsPostedMeanwhile) {
  if (!Create(2)) return;
  constexpr int kRounds = 200;
  Mutex mu;  // what comm/engine/progress_engine.h is to a communicator
  std::atomic<int> received{0};
  std::atomic<bool> end{false};
  Thread driver("driver", [&] {
    while (!end) {
      bool moved;
      {
        MutexLock lock(&mu);
        moved = rank(1)->Progress();
      }
      if (!moved) rank(1)->WaitForEvent(TestDeadline());
    }
  });
  const std::vector<unsigned char> data = TestPayload(3'000'000, 1);
  std::vector<unsigned char> target(data.size());
  std::deque<TestOperation> operations;  // until the driver has ended: it may still be returning from a completion
  const Deadline deadline = TestDeadline();
  for (int i = 0; i < kRounds && !deadline.passed(); ++i) {
    const size_t bytes = i % 50 == 0 ? data.size() : i;
    target.resize(bytes);
    TestOperation& send = operations.emplace_back();
    TestOperation& receive = operations.emplace_back();
    receive.then = [&] { ++received; };
    if (i % 2 == 0) rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), bytes, &send);
    {
      MutexLock lock(&mu);
      rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
    }
    if (i % 2 == 1) rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), bytes, &send);
    while ((received <= i || !send.done()) && !deadline.passed()) {
      if (!rank(0)->Progress()) rank(0)->WaitForEvent(Deadline::AfterMs(1));
    }
    EXPECT_TRUE(std::equal(target.begin(), target.end(), data.begin())) << "round " << i;
  }
  EXPECT_EQ(received, kRounds);
  end = true;
  rank(1)->Wake();
  driver.Join();
}

}  // namespace lockstep

// Ranks that are processes: one that is killed, one that is stopped and wakes up later.

#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"
#include "tests/transport_testing.h"
#include "transport/shm/shm_process_testing.h"
#include "transport/shm/shm_testing.h"
#include "transport/shm/shm_transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

constexpr char kCannotUnshare[] = "this process may not leave its network namespace";

// Sends without end, and says how the first send that fails does.
absl::Status SendUntilItFails(ShmTransport* transport, Rank target, ChannelId channel) {
  const Deadline deadline = TestDeadline();
  for (;;) {
    TestOperation send;
    transport->Send(target, channel, TestEnvelope(1), LargePayload().data(), LargePayload().size(), &send);
    while (!send.done() && !deadline.passed()) {
      if (!transport->Progress()) transport->WaitForEvent(deadline);
    }
    if (!send.done()) transport->Abort(absl::DeadlineExceededError("nothing happened to a send"));
    if (!send.status.ok()) return send.status;
  }
}

absl::StatusOr<std::vector<unsigned char>> ReceiveLarge(ShmTransport* transport, Rank source, ChannelId channel) {
  TestOperation receive;
  std::vector<unsigned char> target(LargePayload().size());
  transport->Receive(source, channel, TestEnvelope(1), CopySink(&target), &receive);
  if (!Await(transport, [&] { return receive.done(); })) transport->Abort(absl::InternalError("late"));
  if (!receive.status.ok()) return receive.status;
  return target;
}

// Rank 1 sends messages that no mailbox holds until it is killed; rank 0 receives one, says so, and receives on. With an
// argument, rank 1 has a child by then that lives on, as a data loader might.
LOCKSTEP_RANK_FUNCTION(KilledInAMessage) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto transport, ConnectInProcess(&self, self.rank(), 2));
  if (self.rank() == 1) {
    if (!self.arguments().empty() && fork() == 0) {
      alarm(60);  // should the test die
      for (;;) pause();
    }
    return SendUntilItFails(transport.get(), Rank(0), 0);
  }
  absl::Status failure;
  for (int i = 0; failure.ok(); ++i) {
    const auto received = ReceiveLarge(transport.get(), Rank(1), 0);
    failure = received.status();
    EXPECT_TRUE(!received.ok() || *received == LargePayload()) << "message " << i;
    if (i == 0) LOCKSTEP_RETURN_IF_ERROR(self.Send("one received"));
  }
  // Whatever is posted later fails in the same way.
  TestOperation later;
  transport->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &later);
  EXPECT_THAT(later.status, StatusIs(Code::kUnavailable, HasSubstr("send to rank 1 over shm pid")));
  return self.Send(failure.ToString());
}

class ShmPeerDeathTest : public testing::TestWithParam<bool> {};

TEST_P(ShmPeerDeathTest, IsNoticedInTheMiddleOfAMessage) {
  ProcessGroup::Options options;
  options.size = 2;
  if (GetParam()) options.arguments = {"with a child"};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("KilledInAMessage", options));
  Introduce(group.get(), {0, 1});
  EXPECT_THAT(group->Receive(0, TestDeadline()), IsOkAndHolds("one received"));
  ASSERT_THAT(group->Signal(1, SIGKILL), IsOk());
  EXPECT_THAT(group->Receive(0, TestDeadline()),
              IsOkAndHolds(testing::AllOf(HasSubstr("UNAVAILABLE"),
                                          HasSubstr(absl::StrCat("recv from rank 1 over shm pid ", group->pid(1))),
                                          HasSubstr("connection closed by peer"))));
  EXPECT_THAT(group->Wait(0, TestDeadline()), IsOk());
}

INSTANTIATE_TEST_SUITE_P(AndItsChild, ShmPeerDeathTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Lives" : "IsNone"; });

// Ranks 0 and 1 send to each other; rank 2 sends to both all the time and is stopped. The others give it up, connect again,
// exchange; it wakes up, writes what it was about to write, finds itself alone; they exchange again.
LOCKSTEP_RANK_FUNCTION(StoppedAndResumed) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto first, ConnectInProcess(&self, self.rank(), 3));
  if (self.rank() == 2) {
    const absl::Status failure = SendUntilItFails(first.get(), Rank(0), 0);
    return self.Send(failure.ToString());
  }
  // A receive that is under way when the peer stops: its memory is the caller's again once the transport was aborted.
  if (self.rank() == 0) {
    LOCKSTEP_RETURN_IF_ERROR(ReceiveLarge(first.get(), Rank(2), 0).status());
    LOCKSTEP_RETURN_IF_ERROR(self.Send("receiving"));
  }
  LOCKSTEP_RETURN_IF_ERROR(self.Receive(TestDeadline()).status());  // it is stopped
  TestOperation receive;
  std::vector<unsigned char> target(LargePayload().size());
  first->Receive(Rank(2), 0, TestEnvelope(1), CopySink(&target), &receive);
  while (first->Progress()) {
  }
  EXPECT_FALSE(receive.done());
  first->Abort(absl::AbortedError("rank 2 does not answer"));
  EXPECT_THAT(receive.status, StatusIs(Code::kAborted, "rank 2 does not answer"));
  target.assign(target.size(), 0xab);

  LOCKSTEP_ASSIGN_OR_RETURN(auto second, ConnectInProcess(&self, self.rank(), 2));
  const Rank peer(1 - self.rank());
  for (int round = 0; round < 2; ++round) {
    TestOperation send, arrival;
    std::vector<unsigned char> arrived(LargePayload().size());
    second->Send(peer, 0, TestEnvelope(1), LargePayload().data(), LargePayload().size(), &send);
    second->Receive(peer, 0, TestEnvelope(1), CopySink(&arrived), &arrival);
    Await(second.get(), [&] { return send.done() && arrival.done(); });
    EXPECT_THAT(arrival.status, IsOk());
    EXPECT_TRUE(arrived == LargePayload()) << "round " << round;
    LOCKSTEP_RETURN_IF_ERROR(self.Send("exchanged"));
    // In between the stopped one wakes up, and has ended when this comes.
    LOCKSTEP_RETURN_IF_ERROR(self.Receive(TestDeadline()).status());
  }
  EXPECT_TRUE(target == std::vector<unsigned char>(target.size(), 0xab)) << "written after the abort";
  return second->Close(TestDeadline());
}

TEST(ShmProcesses, AStoppedPeerIsGivenUpAndHarmsNobodyWhenItWakes) {
  ProcessGroup::Options options;
  options.size = 3;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("StoppedAndResumed", options));
  Introduce(group.get(), {0, 1, 2});
  EXPECT_THAT(group->Receive(0, TestDeadline()), IsOkAndHolds("receiving"));
  ASSERT_THAT(group->Signal(2, SIGSTOP), IsOk());
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "it is stopped"), IsOk());
  Introduce(group.get(), {0, 1});
  for (int rank : {0, 1}) EXPECT_THAT(group->Receive(rank, TestDeadline()), IsOkAndHolds("exchanged"));
  ASSERT_THAT(group->Signal(2, SIGCONT), IsOk());
  EXPECT_THAT(group->Receive(2, TestDeadline()),
              IsOkAndHolds(testing::AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("send to rank 0 over shm pid"))));
  EXPECT_THAT(group->Wait(2, TestDeadline()), IsOk());
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "it has ended"), IsOk());
  for (int rank : {0, 1}) EXPECT_THAT(group->Receive(rank, TestDeadline()), IsOkAndHolds("exchanged"));
  for (int rank : {0, 1}) ASSERT_THAT(group->Send(rank, "end"), IsOk());
  for (int rank : {0, 1}) EXPECT_THAT(group->Wait(rank, TestDeadline()), IsOk());
}

// What each rank finds of the other, where rank 1 is in a network namespace of its own, as a container is: the same kernel, but
// none of the other's unix sockets.
LOCKSTEP_RANK_FUNCTION(InANetworkOfItsOwn) {
  if (self.rank() == 1 && unshare(CLONE_NEWNET) != 0) return self.Send(kCannotUnshare);
  const absl::StatusOr<std::unique_ptr<ShmTransport>> transport = ConnectInProcess(&self, self.rank(), 2);
  return self.Send(transport.status().ToString());
}

TEST(ShmProcesses, RanksInDifferentNetworkNamespacesFindThatTheyShareNone) {
  ProcessGroup::Options options;
  options.size = 2;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("InANetworkOfItsOwn", options));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string first, group->Receive(0, TestDeadline()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string second, group->Receive(1, TestDeadline()));
  if (second == kCannotUnshare) GTEST_SKIP() << second;
  for (const int rank : {0, 1}) ASSERT_THAT(group->Send(rank, absl::StrCat(first, ",", second)), IsOk());
  for (const int rank : {0, 1}) {
    EXPECT_THAT(group->Receive(rank, TestDeadline()),
                IsOkAndHolds(testing::ContainsRegex("^UNAVAILABLE: connect to unix socket .*Connection refused")));
    EXPECT_THAT(group->Wait(rank, TestDeadline()), IsOk());
  }
}

}  // namespace
}  // namespace lockstep

// Processes that die, also ones that have forked: what their peers see of it.

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

TcpTransportOptions SecuredOptions(int rank, SecurityLevel level) {
  TcpTransportOptions options = TestOptions(rank, 2);
  options.credentials = TestCredentials(level);
  return options;
}

std::string ReadLine(int descriptor) {
  std::string line;
  for (char c; read(descriptor, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

bool WriteLine(int descriptor, std::string line) {
  line += '\n';
  return write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

// Rank 1 of two: a child that sends one byte on channel 0 to the parent and drives its transport until it is killed.
// With `grandchild`, it first forks one that sleeps, as a data loader might, and sends its process id.
[[noreturn]] void RunChild(int parents_address_pipe, int address_pipe, bool grandchild, SecurityLevel level) {
  const SocketAddress parent = TestAddress(ReadLine(parents_address_pipe));
  absl::StatusOr<std::unique_ptr<TcpTransport>> transport = TcpTransport::Create(SecuredOptions(1, level));
  if (!transport.ok() || !(*transport)->SetPeers({parent, (*transport)->address()}).ok()) _exit(1);
  if (!WriteLine(address_pipe, (*transport)->address().ToString())) _exit(2);

  TestOperation first, second;
  (*transport)->Send(Rank(0), 0, TestEnvelope(1), "a", 1, &first);
  while (!first.done()) (*transport)->Progress();
  pid_t sleeper = 0;
  if (grandchild) {
    sleeper = fork();
    if (sleeper == 0) {
      alarm(60);  // should the test die
      for (;;) pause();
    }
  }
  (*transport)->Send(Rank(0), 0, TestEnvelope(2), &sleeper, sizeof(sleeper), &second);
  const Deadline end = TestDeadline();
  while (!end.passed()) {
    if (!(*transport)->Progress()) (*transport)->WaitForEvent(end);
  }
  _exit(3);
}

class PeerDeathTest : public testing::TestWithParam<std::tuple<bool, SecurityLevel>> {};

// The peer is killed while the survivor waits for its message. Its sockets close with it, whoever else has a copy.
TEST_P(PeerDeathTest, FailsTheReceivesOfTheSurvivorAtOnce) {
  const auto [with_grandchild, level] = GetParam();
  // Before there is a thread: ThreadSanitizer follows none in a child otherwise.
  int there[2];
  int back[2];
  ASSERT_EQ(pipe(there), 0);
  ASSERT_EQ(pipe(back), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) RunChild(there[0], back[1], with_grandchild, level);
  close(there[0]);
  close(back[1]);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto survivor, TcpTransport::Create(SecuredOptions(0, level)));
  const SocketAddress own = survivor->address();
  ASSERT_TRUE(WriteLine(there[1], own.ToString()));
  const std::string address = ReadLine(back[0]);
  close(there[1]);
  close(back[0]);
  ASSERT_THAT(survivor->SetPeers({own, TestAddress(address)}), IsOk());

  TestOperation first, second, last, send, later;
  char byte = 0;
  pid_t grandchild = 0;
  survivor->Receive(Rank(1), 0, TestEnvelope(1), {&byte, 1}, &first);
  survivor->Receive(Rank(1), 0, TestEnvelope(2), {&grandchild, sizeof(grandchild)}, &second);
  survivor->Receive(Rank(1), 0, TestEnvelope(3), {&byte, 1}, &last);
  // Nobody receives this one: it stays under way.
  survivor->Send(Rank(1), 0, TestEnvelope(1), LargePayload().data(), LargePayload().size(), &send);
  ASSERT_TRUE(Await(survivor.get(), [&] { return second.done(); }));
  EXPECT_THAT(first.status, IsOk());
  EXPECT_THAT(second.status, IsOk());
  EXPECT_EQ(grandchild != 0, with_grandchild);

  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_TRUE(Await(survivor.get(), [&] { return last.done() && send.done(); }));
  EXPECT_THAT(last.status, StatusIs(Code::kUnavailable, testing::HasSubstr("recv from rank 1 over tcp " + address)));
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable, testing::HasSubstr("send to rank 1 over tcp " + address)));
  if (grandchild != 0) {
    EXPECT_EQ(kill(grandchild, 0), 0) << "it should still live: else this shows nothing";
    kill(grandchild, SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

INSTANTIATE_TEST_SUITE_P(AndItsChild, PeerDeathTest,
                         testing::Combine(testing::Bool(),
                                          testing::Values(SecurityLevel::kNone, SecurityLevel::kEncrypt)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Lives_" : "IsNone_") +
                                  Name(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace lockstep

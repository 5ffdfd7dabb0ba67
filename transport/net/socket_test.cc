#include "transport/net/socket.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {
std::atomic<bool> let_go{false};
}  // namespace

// In place of the C library's: a resolver that does not answer for one name until it is let go.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** result) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::strcmp(name, "stuck.example") == 0 && (hints->ai_flags & AI_NUMERICHOST) == 0) {
    while (!let_go) usleep(1000);
    return EAI_AGAIN;
  }
  return real(name, service, hints, result);
}

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Longer than anything here takes; short enough that a hang fails rather than times the test out.
Deadline Soon() { return Deadline::AfterMs(30'000); }

SocketAddress Loopback(uint16_t port = 0) { return SocketAddress::Parse("127.0.0.1:0")->WithPort(port); }

// A port that was just free: bound once, then closed. Nothing else on this machine is given it for a while.
SocketAddress UnusedAddress() { return *LocalAddress(Listen(Loopback())->get()); }

bool WaitFor(int socket, short events) {
  pollfd entry = {socket, events, 0};
  return poll(&entry, 1, Soon().remaining_ms()) == 1;
}

struct Pair {
  UniqueFd client;
  UniqueFd server;
  SocketAddress seen_peer;
};

Pair MakePair(const SocketAddress& at) {
  Pair pair;
  UniqueFd listener = *Listen(at);
  pair.client = *Connect(*LocalAddress(listener.get()), Soon());
  EXPECT_TRUE(WaitFor(listener.get(), POLLIN));
  pair.server = *Accept(listener.get(), &pair.seen_peer);
  return pair;
}

TEST(SocketAddress, ParseAndToStringAreInverse) {
  for (const char* text : {"10.0.0.7:4411", "0.0.0.0:0", "255.255.255.255:65535", "[::]:0", "[::1]:80",
                           "[2001:db8::ff]:4411", "[fe80::1%lo]:4411"}) {
    const auto address = SocketAddress::Parse(text);
    ASSERT_THAT(address, IsOk()) << text;
    EXPECT_EQ(address->ToString(), text);
    EXPECT_EQ(SocketAddress::From(address->get(), address->length()), *address);
  }
}

TEST(SocketAddress, ParseKeepsTheScopeOfLinkLocalAddresses) {
  const auto by_name = SocketAddress::Parse("[fe80::1%lo]:1");
  ASSERT_THAT(by_name, IsOk());
  const unsigned index = if_nametoindex("lo");
  EXPECT_EQ(reinterpret_cast<const sockaddr_in6*>(by_name->get())->sin6_scope_id, index);
  EXPECT_EQ(*SocketAddress::Parse(absl::StrCat("[fe80::1%", index, "]:1")), *by_name);
  EXPECT_EQ(by_name->HostString(), "fe80::1%lo");
  EXPECT_NE(*SocketAddress::Parse("[fe80::1]:1"), *by_name);
}

TEST(SocketAddress, ParseRefusesNamesAndUnknownScopes) {
  EXPECT_THAT(SocketAddress::Parse("localhost:1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'localhost' is no numeric")));
  EXPECT_THAT(SocketAddress::Parse("[fe80::1%no-such-if]:1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no interface 'no-such-if'")));
  // What inet_aton would take, and people do not mean.
  EXPECT_THAT(SocketAddress::Parse("127.1:80"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("127.1")));
}

TEST(SocketAddress, WithPortChangesOnlyThePort) {
  EXPECT_EQ(SocketAddress::Parse("10.0.0.7:1")->WithPort(9).ToString(), "10.0.0.7:9");
  EXPECT_EQ(SocketAddress::Parse("[2001:db8::1]:1")->WithPort(65535).ToString(), "[2001:db8::1]:65535");
}

TEST(SocketAddress, KnowsLoopbackAndWildcard) {
  EXPECT_TRUE(SocketAddress::Parse("127.3.2.1:0")->loopback());
  EXPECT_TRUE(SocketAddress::Parse("[::1]:0")->loopback());
  EXPECT_TRUE(SocketAddress::Parse("[::ffff:127.0.0.1]:0")->loopback());
  EXPECT_FALSE(SocketAddress::Parse("[::ffff:10.0.0.1]:0")->loopback());
  EXPECT_FALSE(SocketAddress::Parse("128.0.0.1:0")->loopback());
  EXPECT_TRUE(SocketAddress::Parse("0.0.0.0:7")->wildcard());
  EXPECT_TRUE(SocketAddress::Parse("[::]:7")->wildcard());
  EXPECT_FALSE(SocketAddress::Parse("0.0.0.1:7")->wildcard());
  EXPECT_FALSE(SocketAddress().wildcard());
}

TEST(ParseHostPort, SplitsNamesAndBracketedAddresses) {
  ASSERT_THAT(ParseHostPort("node-3.cluster:29400"), IsOk());
  EXPECT_EQ(ParseHostPort("node-3.cluster:29400")->host, "node-3.cluster");
  EXPECT_EQ(ParseHostPort("node-3.cluster:29400")->port, 29400);
  EXPECT_EQ(ParseHostPort("[fe80::1%eth0]:0")->host, "fe80::1%eth0");
}

TEST(ParseHostPort, SaysWhatIsWrong) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "no port"},
      {"host", "no port"},
      {"host:", "'' is no port"},
      {"host:65536", "'65536' is no port"},
      {"host:-1", "'-1' is no port"},
      {"host:+1", "'+1' is no port"},
      {"host: 1", "' 1' is no port"},
      {"host:99999999999999999999", "is no port"},
      {":80", "no host"},
      {"[]:80", "no host"},
      {"[::1]", "no port"},
      {"[::1]80", "no port"},
      {"[::1:80", "no closing ']'"},
      {"::1:80", "brackets"},
      {std::string("a\0b:80", 6), "NUL"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(ParseHostPort(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                              AllOf(HasSubstr(message), HasSubstr("expected host:port"))))
        << text;
  }
}

TEST(Listen, TakenPortIsAlreadyExistsAndNamesTheAddress) {
  UniqueFd first = *Listen(Loopback());
  const SocketAddress taken = *LocalAddress(first.get());
  EXPECT_NE(taken.port(), 0);
  EXPECT_THAT(Listen(taken), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("listen on " + taken.ToString())));
}

TEST(Listen, PortIsFreeAgainAtOnceThoughItsConnectionsLinger) {
  const SocketAddress address = UnusedAddress();
  UniqueFd listener = *Listen(address);
  UniqueFd client = *Connect(address, Soon());
  ASSERT_TRUE(WaitFor(listener.get(), POLLIN));
  UniqueFd server = *Accept(listener.get(), nullptr);
  server.reset();  // The side that closes first is the one left in TIME_WAIT.
  client.reset();
  listener.reset();
  EXPECT_THAT(Listen(address), IsOk());
}

TEST(Listen, AddressOfAnotherMachineIsInvalid) {
  EXPECT_THAT(Listen(*SocketAddress::Parse("192.0.2.1:0")),  // reserved for documentation, RFC 5737
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("this machine does not have that address")));
}

TEST(Listen, Ipv6WildcardTakesIpv4Too) {
  absl::StatusOr<UniqueFd> listener = Listen(*SocketAddress::Parse("[::]:0"));
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status();
  EXPECT_THAT(Connect(Loopback(LocalAddress(listener->get())->port()), Soon()), IsOk());
}

TEST(Accept, NobodyWaitingIsAnInvalidDescriptorNotAnError) {
  UniqueFd listener = *Listen(Loopback());
  SocketAddress peer;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd accepted, Accept(listener.get(), &peer));
  EXPECT_FALSE(accepted.valid());
}

TEST(Sockets, AreNonBlockingCloseOnExecAndUndelayed) {
  const Pair pair = MakePair(Loopback());
  EXPECT_EQ(pair.seen_peer, *LocalAddress(pair.client.get()));
  EXPECT_EQ(*PeerAddress(pair.client.get()), *LocalAddress(pair.server.get()));
  for (const int socket : {pair.client.get(), pair.server.get()}) {
    EXPECT_NE(fcntl(socket, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(socket, F_GETFD) & FD_CLOEXEC, 0);
    int no_delay = 0;
    socklen_t length = sizeof(no_delay);
    ASSERT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
    EXPECT_EQ(no_delay, 1);
  }
}

TEST(Sockets, SpeakIpv6) {
  if (!Listen(*SocketAddress::Parse("[::1]:0")).ok()) GTEST_SKIP() << "no IPv6 here";
  const Pair pair = MakePair(*SocketAddress::Parse("[::1]:0"));
  ASSERT_THAT(SendAll(pair.client.get(), "six", 3, Soon()), IsOk());
  char received[3];
  ASSERT_THAT(ReceiveAll(pair.server.get(), received, 3, Soon()), IsOk());
  EXPECT_EQ(std::string(received, 3), "six");
}

TEST(Connect, RefusedNamesTheAddress) {
  const SocketAddress address = UnusedAddress();
  EXPECT_THAT(Connect(address, Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("connect to " + address.ToString()), HasSubstr("Connection refused"))));
}

TEST(Connect, NobodyAnsweringEndsAtTheDeadline) {
  // A listener whose queue is full drops further connection requests, as a dead host does.
  UniqueFd listener = *Listen(Loopback());
  ASSERT_EQ(listen(listener.get(), 0), 0);
  const SocketAddress address = *LocalAddress(listener.get());
  std::vector<UniqueFd> queued;
  absl::Status last;
  for (int i = 0; i < 16 && last.ok(); ++i) {
    absl::StatusOr<UniqueFd> socket = Connect(address, Deadline::AfterMs(50));
    last = socket.status();
    if (socket.ok()) queued.push_back(*std::move(socket));
  }
  EXPECT_THAT(last, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             AllOf(HasSubstr("from 127.0.0.1:"), HasSubstr("no answer by the deadline"))));
}

TEST(StartConnect, FinishTellsHowItEnded) {
  UniqueFd listener = *Listen(Loopback());
  const SocketAddress address = *LocalAddress(listener.get());
  UniqueFd socket = *StartConnect(address);
  ASSERT_TRUE(WaitFor(socket.get(), POLLOUT));
  bool refused = true;
  EXPECT_THAT(FinishConnect(socket.get(), address, &refused), IsOk());
  EXPECT_FALSE(refused);

  listener.reset();
  absl::Status status;
  if (absl::StatusOr<UniqueFd> started = StartConnect(address, &refused); started.ok()) {
    EXPECT_FALSE(refused);
    ASSERT_TRUE(WaitFor(started->get(), POLLOUT));
    status = FinishConnect(started->get(), address, &refused);
  } else {
    status = started.status();  // On loopback the refusal may come at once.
  }
  EXPECT_TRUE(refused);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr(address.ToString()), HasSubstr("Connection refused"))));
}

TEST(StartConnect, SaysThatTheLoopbackInterfaceIsDown) {
  const int status = RunInForkedChild(
      [] {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return 77;
        return StartConnect(Loopback()).status().code() == absl::StatusCode::kInternal ? 0 : 1;
      },
      Deadline::AfterMs(20'000));
  if (status == 77) GTEST_SKIP() << "no network namespaces";
  EXPECT_EQ(status, 0);
}

TEST(StartConnect, ConnectionToItselfCountsAsRefused) {
  // Binding first makes certain what happens to a port in the ephemeral range only now and then.
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const SocketAddress any_port = Loopback();
  ASSERT_EQ(bind(socket.get(), any_port.get(), any_port.length()), 0);
  const SocketAddress self = *LocalAddress(socket.get());
  (void)connect(socket.get(), self.get(), self.length());
  ASSERT_TRUE(WaitFor(socket.get(), POLLOUT));
  ASSERT_EQ(*PeerAddress(socket.get()), self);
  EXPECT_THAT(FinishConnect(socket.get(), self), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("refused")));
}

TEST(SendAll, MovesMoreThanTheSocketBuffersHold) {
  const Pair pair = MakePair(Loopback());
  std::string sent(8 << 20, '\0');
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 31 >> 3);
  absl::Status status;
  std::thread sender([&] { status = SendAll(pair.client.get(), sent.data(), sent.size(), Soon()); });
  std::string received(sent.size(), '\0');
  EXPECT_THAT(ReceiveAll(pair.server.get(), &received[0], received.size(), Soon()), IsOk());
  sender.join();
  EXPECT_THAT(status, IsOk());
  EXPECT_TRUE(sent == received);
}

TEST(SendAll, PeerThatDoesNotReadMeetsTheDeadline) {
  const Pair pair = MakePair(Loopback());
  const std::string data(64 << 20, 'x');
  EXPECT_THAT(SendAll(pair.client.get(), data.data(), data.size(), Deadline::AfterMs(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("send 67108864 bytes to 127.0.0.1:"), HasSubstr("by the deadline"))));
}

TEST(SendAll, ClosedPeerIsUnavailableAndNoSignal) {
  Pair pair = MakePair(Loopback());
  pair.server.reset();
  absl::Status status;
  const std::string data(1 << 20, 'x');
  for (int i = 0; i < 100 && status.ok(); ++i) status = SendAll(pair.client.get(), data.data(), data.size(), Soon());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("send 1048576 bytes to ")));
}

TEST(ReceiveAll, EndOfFileSaysHowFarItGot) {
  Pair pair = MakePair(Loopback());
  ASSERT_THAT(SendAll(pair.client.get(), "abc", 3, Soon()), IsOk());
  pair.client.reset();
  char received[8];
  EXPECT_THAT(ReceiveAll(pair.server.get(), received, 8, Soon()),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("receive 8 bytes from "), HasSubstr("connection closed after 3"))));
}

TEST(ReceiveAll, SilenceMeetsTheDeadline) {
  const Pair pair = MakePair(Loopback());
  char received[8];
  EXPECT_THAT(ReceiveAll(pair.server.get(), received, 8, Deadline::AfterMs(5)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(pair.seen_peer.ToString()), HasSubstr("only 0 by the deadline"))));
  EXPECT_THAT(ReceiveAll(pair.server.get(), received, 8, Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("only 0")));
}

TEST(ReceiveAll, WhatIsThereIsTakenEvenAfterTheDeadline) {
  const Pair pair = MakePair(Loopback());
  ASSERT_THAT(SendAll(pair.client.get(), "abc", 3, Deadline::Now()), IsOk());
  ASSERT_TRUE(WaitFor(pair.server.get(), POLLIN));
  char received[3];
  EXPECT_THAT(ReceiveAll(pair.server.get(), received, 3, Deadline::Now()), IsOk());
  EXPECT_THAT(ReceiveAll(pair.server.get(), received, 0, Deadline::Now()), IsOk());
}

TEST(StaysOnHost, IsSoOnLoopbackAndUnknownOfASocketWithoutAPeer) {
  const Pair pair = MakePair(Loopback());
  EXPECT_TRUE(StaysOnHost(pair.client.get()));
  EXPECT_TRUE(StaysOnHost(pair.server.get()));
  const UniqueFd alone = *Listen(Loopback());
  EXPECT_FALSE(StaysOnHost(alone.get()));
}

TEST(DiscardUnread, LetsThePeerReadWhatWasSaidLast) {
  Pair pair = MakePair(Loopback());
  ASSERT_THAT(SendAll(pair.client.get(), std::string(4096, 'x').data(), 4096, Soon()), IsOk());
  char byte;
  ASSERT_THAT(ReceiveAll(pair.server.get(), &byte, 1, Soon()), IsOk());
  ASSERT_THAT(SendAll(pair.server.get(), "bye", 3, Soon()), IsOk());
  DiscardUnread(pair.server.get());
  pair.server.reset();
  char received[3];
  EXPECT_THAT(ReceiveAll(pair.client.get(), received, 3, Soon()), IsOk());
  EXPECT_EQ(std::string(received, 3), "bye");
  EXPECT_THAT(ReceiveAll(pair.client.get(), &byte, 1, Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connection closed after 0")));
}

TEST(Duplicate, IsTheSameFileCloseOnExec) {
  UniqueFd listener = *Listen(Loopback());
  const SocketAddress address = *LocalAddress(listener.get());
  const UniqueFd copy = Duplicate(listener.get());
  listener.reset();
  ASSERT_TRUE(copy.valid());
  EXPECT_EQ(fcntl(copy.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_THAT(LocalAddress(copy.get()), IsOkAndHolds(address));
  EXPECT_FALSE(Duplicate(listener.get()).valid());
}

TEST(Resolve, NumericAddressesNeedNoResolver) {
  const auto v4 = Resolve("10.0.0.7", 4411, Deadline::Now());
  ASSERT_THAT(v4, IsOk());
  ASSERT_THAT(*v4, SizeIs(1));
  EXPECT_EQ(v4->front().ToString(), "10.0.0.7:4411");
  const auto v6 = Resolve("::1", 1, Deadline::Now());
  ASSERT_THAT(v6, IsOk());
  EXPECT_EQ(v6->front().ToString(), "[::1]:1");
}

TEST(Resolve, NamesOfThisHostAreFound) {
  const auto found = Resolve("localhost", 7, Soon());
  ASSERT_THAT(found, IsOk());
  EXPECT_TRUE(found->front().loopback());
  EXPECT_EQ(found->front().port(), 7);
}

TEST(Resolve, UnknownHostIsNotFoundInTheResolversWords) {
  // A name that no resolver may answer, and that is therefore not asked for: works without a network.
  EXPECT_THAT(
      Resolve("no such host", 1, Soon()),
      StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("resolve host 'no such host': "), HasSubstr("not known"))));
}

TEST(Resolve, AResolverThatDoesNotAnswerIsLeftToItself) {
  const auto late =
      StatusIs(absl::StatusCode::kDeadlineExceeded, "resolve host 'stuck.example': the resolver has not answered");
  EXPECT_THAT(Resolve("stuck.example", 1, Deadline::Now()), late);
  EXPECT_THAT(Resolve("stuck.example", 1, Deadline::AfterMs(20)), late);
  let_go = true;
  EXPECT_THAT(Resolve("stuck.example", 1, Soon()), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace lockstep

#include "transport/store/secret_handout.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "transport/net/socket.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/secure/secret.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kSomebodyElse = 65534;

Deadline Soon() { return Deadline::AfterMs(20'000); }

SocketAddress Address(const std::string& text) { return *SocketAddress::Parse(text); }

std::string NameOf(const std::string& server) { return absl::StrCat("lockstep-secret-", geteuid(), "-", server); }

std::unique_ptr<TcpStoreServer> Serve(const std::vector<SocketAddress>& addresses, bool hands_out = true) {
  TcpStoreServer::Options options;
  options.credentials = {SecurityLevel::kAuthenticate, Secret::Draw().value(), "the test"};
  options.hands_out_secret = hands_out;
  auto server = TcpStoreServer::Create(addresses, options);
  EXPECT_THAT(server, IsOk());
  return *std::move(server);
}

// Whether the store serves who has this.
absl::Status TryAt(const SocketAddress& server, std::shared_ptr<const Secret> secret) {
  return TcpStoreClient::Connect({server.HostString(), server.port()},
                                 {SecurityLevel::kAuthenticate, std::move(secret), "its server"}, Soon())
      .status();
}

TEST(SecretHandout, TheServersSecretComesToWhoeverAsks) {
  const auto server = Serve({Address("127.0.0.1:0")});
  for (int i = 0; i < 3; ++i) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto secret, AskForSecret({server->address()}, Soon()));
    EXPECT_THAT(TryAt(server->address(), secret), IsOk());
  }
  EXPECT_EQ(server->refusals().total(), 0);
}

TEST(SecretHandout, EachAddressOfTheServerHasOne) {
  const int port = LocalAddress(Listen(Address("127.0.0.1:0"))->get())->port();
  const std::vector<SocketAddress> addresses = {Address(absl::StrCat("127.0.0.1:", port)),
                                                Address(absl::StrCat("127.0.0.2:", port))};
  const auto server = Serve(addresses);
  for (const SocketAddress& address : addresses) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto secret, AskForSecret({address}, Soon()));
    EXPECT_THAT(TryAt(address, secret), IsOk());
  }
}

TEST(SecretHandout, AServerOnAllAddressesIsFoundByAnyOfThem) {
  const auto server = Serve({Address("0.0.0.0:0")});
  const SocketAddress address = Address("127.0.0.3:0").WithPort(server->address().port());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto secret, AskForSecret({address}, Soon()));
  EXPECT_THAT(TryAt(address, secret), IsOk());
}

TEST(SecretHandout, NothingIsHandedOutUnlessTheServerDoes) {
  const auto server = Serve({Address("127.0.0.1:0")}, /*hands_out=*/false);
  EXPECT_THAT(AskForSecret({server->address()}, Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(NameOf(server->address().ToString()))));
  EXPECT_THAT(AskForSecret({}, Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST(SecretHandout, TheNameGoesWithTheServer) {
  auto server = Serve({Address("127.0.0.1:0")});
  const SocketAddress address = server->address();
  server.reset();
  EXPECT_THAT(AskForSecret({address}, Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST(SecretHandout, WhoListensAndSaysNothingMeetsTheDeadline) {
  const std::string server = "127.0.0.1:1";
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(NameOf(server)));
  EXPECT_THAT(AskForSecret({Address(server)}, Deadline::AfterMs(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(NameOf(server))));
}

TEST(SecretHandout, ATakenNameIsNamed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd first, ListenForSecretRequests(Address("127.0.0.1:2")));
  EXPECT_THAT(ListenForSecretRequests(Address("127.0.0.1:2")),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr(NameOf("127.0.0.1:2")), HasSubstr("LOCKSTEP_SECRET_FILE"))));
}

// Only root can, and not everywhere.
bool CanBeSomebodyElse() {
  return geteuid() == 0 && RunInForkedChild([] { return setuid(kSomebodyElse) == 0 ? 0 : 1; }, Soon()) == 0;
}

// Runs a part as another user.
int AsSomebodyElse(absl::FunctionRef<int()> body) {
  return RunInForkedChild([&] { return setuid(kSomebodyElse) == 0 ? body() : 99; }, Soon());
}

TEST(SecretHandout, AnotherUserGetsNothingAndIsCounted) {
  if (!CanBeSomebodyElse()) GTEST_SKIP() << "this process cannot be another user";
  const auto server = Serve({Address("127.0.0.1:0")});
  const std::string name = NameOf(server->address().ToString());
  EXPECT_EQ(AsSomebodyElse([&] {
              const absl::StatusOr<UniqueFd> socket = ConnectUnix(name);
              if (!socket.ok() || !socket->valid()) return 1;
              for (UnixMessage message;;) {
                const absl::StatusOr<bool> received = ReceiveUnix(socket->get(), &message);
                if (!received.ok()) return 0;  // closed
                if (*received) return 2;
              }
            }),
            0);
  EXPECT_EQ(server->refusals().count(Refusal::kOtherUser), 1);
}

// Where the kernel does not say whose process asks, it is not said to be another user's.
TEST(SecretHandout, WhoseOwnerIsNotKnownGetsNothingAndIsCounted) {
  const int result = RunInForkedChild(
      [] {
        const std::string name = absl::StrCat("lockstep-secret-test-", getpid());
        const absl::StatusOr<UniqueFd> listener = ListenUnix(name);
        const absl::StatusOr<UniqueFd> asks = ConnectUnix(name);
        if (!listener.ok() || !asks.ok() || !asks->valid()) return 1;
        if (!Refuse({SYS_getsockopt, ENOPROTOOPT, 2, SO_PEERCRED}).ok()) return 99;
        Refusals refusals("the test");
        if (!HandOutSecret(listener->get(), *Secret::Draw().value(), &refusals).ok()) return 2;
        UnixMessage message;
        if (ReceiveUnix(asks->get(), &message).ok()) return 3;  // not closed
        return refusals.count(Refusal::kBroken) == 1 && refusals.total() == 1 ? 0 : 4;
      },
      Soon());
  if (result == 99) GTEST_SKIP() << "this system has no filters of system calls";
  EXPECT_EQ(result, 0);
}

TEST(SecretHandout, EachNameIsAskedOnce) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, ListenUnix(NameOf("*:5")));
  EXPECT_THAT(AskForSecret({Address("127.0.0.1:5"), Address("127.0.0.2:5"), Address("0.0.0.0:5")}, Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(AcceptUnix(listener.get())->valid());
  EXPECT_FALSE(AcceptUnix(listener.get())->valid());
}

// Asker and owner are both shown as the overflow id there, and need not be the same user.
TEST(SecretHandout, InANamespaceWithoutAMapNobodyIsBelieved) {
  const int result = RunInForkedChild(
      [&] {
        if (unshare(CLONE_NEWUSER) != 0) return 99;
        const absl::StatusOr<UniqueFd> listener = ListenUnix("lockstep-secret-65534-127.0.0.1:4");
        if (!listener.ok()) return 1;
        const absl::Status asked = AskForSecret({Address("127.0.0.1:4")}, Soon()).status();
        return absl::IsPermissionDenied(asked) && absl::StrContains(asked.message(), "anybody outside") ? 0 : 2;
      },
      Soon());
  if (result == 99) GTEST_SKIP() << "this process can make no user namespace";
  EXPECT_EQ(result, 0);
}

TEST(SecretHandout, ASocketOfAnotherUserIsRefusedByName) {
  if (!CanBeSomebodyElse()) GTEST_SKIP() << "this process cannot be another user";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const SocketAddress server = Address("127.0.0.1:3");
  const std::string name = NameOf(server.ToString());
  // The squatter holds the name as long as this end is open.
  const pid_t squatter = fork();
  if (squatter == 0) {
    close(ends[1]);
    if (setuid(kSomebodyElse) != 0) _exit(1);
    const absl::StatusOr<UniqueFd> listener = ListenUnix(name);
    char byte;
    _exit(listener.ok() && read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  close(ends[0]);
  const Deadline deadline = Soon();
  absl::Status asked;
  do {
    asked = AskForSecret({server}, deadline).status();
  } while (absl::IsNotFound(asked) && !deadline.passed());
  EXPECT_THAT(asked, StatusIs(absl::StatusCode::kPermissionDenied,
                              AllOf(HasSubstr(name), HasSubstr(absl::StrCat("of user ", kSomebodyElse)))));
  EXPECT_THAT(ListenForSecretRequests(server),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(absl::StrCat("of user ", kSomebodyElse))));
  close(ends[1]);
  int status = 0;
  ASSERT_EQ(waitpid(squatter, &status, 0), squatter);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep

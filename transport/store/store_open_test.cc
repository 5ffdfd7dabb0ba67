#include "transport/store/store_open.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/exchange/exchange.h"
#include "transport/net/interface.h"
#include "transport/net/socket.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/credentials.h"
#include "transport/store/rendezvous.h"
#include "transport/store/secret_handout.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

Deadline Soon() { return Deadline::AfterMs(20'000); }

WorldSpec World(int rank, const std::string& url) {
  WorldSpec world;
  world.rank = Rank(rank);
  world.size = 2;
  world.store_url = url;
  world.store_source = "the test";
  return world;
}

absl::StatusOr<OpenedStore> OpenAt(SecurityLevel level, const WorldSpec& world, Deadline deadline = Soon()) {
  Credentials credentials;
  credentials.level = level;
  return OpenStore(world, &credentials, deadline);
}

// At level none.
absl::StatusOr<OpenedStore> Open(const WorldSpec& world, Deadline deadline = Soon()) {
  return OpenAt(SecurityLevel::kNone, world, deadline);
}

Credentials Given(char fill) {
  return {SecurityLevel::kAuthenticate, Secret::FromBytes(std::string(Secret::kBytes, fill)).value(),
          absl::StrCat("file ", std::string(1, fill))};
}

// Free a moment ago, and not given to anybody else at once.
int UnusedPort() { return LocalAddress(Listen(*SocketAddress::Parse("127.0.0.1:0"))->get())->port(); }

void ExpectSameStore(Store* a, Store* b) {
  EXPECT_THAT(a->Set("key", "value", Soon()), IsOk());
  EXPECT_THAT(b->Wait("key", Soon()), IsOkAndHolds("value"));
}

TEST(OpenStore, Rank0ServesAndTheOthersConnect) {
  for (const char* const host : {"127.0.0.1", "localhost"}) {
    const std::string url = absl::StrCat("tcp://", host, ":", UnusedPort());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, Open(World(0, url)));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, Open(World(1, url)));
    ASSERT_NE(rank0.server, nullptr);
    EXPECT_EQ(rank1.server, nullptr);
    // No wider than it was asked for.
    EXPECT_TRUE(rank0.server->address().loopback());
    ExpectSameStore(rank0.store.get(), rank1.store.get());
  }
}

// Answers as Hydra does, and gives out what was put last; nothing while `silent`.
void ServePmi1(int socket, const std::atomic<bool>& silent) {
  std::string line, value;
  for (char byte = 0; recv(socket, &byte, 1, 0) == 1;) {
    if (byte != '\n') {
      line.push_back(byte);
      continue;
    }
    std::string answer = "cmd=barrier_out";
    if (absl::StartsWith(line, "cmd=get_my_kvsname")) answer = "cmd=my_kvsname kvsname=kvs";
    if (absl::StartsWith(line, "cmd=put")) answer = "cmd=put_result rc=0", value = line.substr(line.find("value="));
    if (absl::StartsWith(line, "cmd=get ")) answer = "cmd=get_result rc=0 " + value;
    answer.push_back('\n');
    if (!silent) send(socket, answer.data(), answer.size(), MSG_NOSIGNAL);
    line.clear();
  }
}

// A process has one launcher, so this is one test.
TEST(OpenStoreByExchange, TheLauncherBringsTheAddress) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd launcher(pair[0]), ours(pair[1]);
  std::atomic<bool> silent{false};
  Thread thread("launcher", [&] { ServePmi1(launcher.get(), silent); });
  setenv("PMI_FD", absl::StrCat(ours.get()).c_str(), 1);
  WorldSpec world0 = World(0, ""), world1 = World(1, "");
  world0.exchange = world1.exchange = ExchangeKind::kPmi1;
  world0.source = world1.source = "PMI";
  const SocketAddress address = *SocketAddress::Parse("127.0.0.1:1");

  Credentials job0, job1;
  job0.level = job1.level = SecurityLevel::kAuthenticate;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, OpenStoreByExchange(&world0, &job0, address, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, OpenStoreByExchange(&world1, &job1, address, Soon()));
  ASSERT_NE(rank0.server, nullptr);
  EXPECT_EQ(world0.store_url, absl::StrCat("tcp://127.0.0.1:", rank0.server->address().port()));
  EXPECT_NE(rank0.server->address().port(), 1);
  EXPECT_EQ(world1.store_url, world0.store_url);
  EXPECT_EQ(world1.store_source, "PMI-1");
  // And the secret, which it does not hand out in any other way.
  ASSERT_TRUE(job0.secret != nullptr && job1.secret != nullptr);
  EXPECT_EQ(job1.secret->bytes(), job0.secret->bytes());
  EXPECT_EQ(job1.source, "PMI-1");
  EXPECT_THAT(AskForSecret({rank0.server->address()}, Soon()), StatusIs(absl::StatusCode::kNotFound));
  ExpectSameStore(rank0.store.get(), rank1.store.get());

  // A secret of the user's is not told. A rank without it is told what to do.
  Credentials given0 = Given('s'), given1 = Given('s');
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore given_rank0, OpenStoreByExchange(&world0, &given0, address, Soon()));
  Credentials none;
  none.level = SecurityLevel::kAuthenticate;
  EXPECT_THAT(OpenStoreByExchange(&world1, &none, address, Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("LOCKSTEP_SECRET_FILE")));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore again_rank0, OpenStoreByExchange(&world0, &given0, address, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore given_rank1, OpenStoreByExchange(&world1, &given1, address, Soon()));
  ExpectSameStore(again_rank0.store.get(), given_rank1.store.get());
  Credentials at_none0, at_none1;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore none_rank0, OpenStoreByExchange(&world0, &at_none0, address, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore none_rank1, OpenStoreByExchange(&world1, &at_none1, address, Soon()));
  EXPECT_EQ(at_none0.secret, nullptr);
  ExpectSameStore(none_rank0.store.get(), none_rank1.store.get());

  // Rank 0 cannot serve: nothing to be helped by another store.
  const absl::Status no_interface = absl::NotFoundError("no interface");
  EXPECT_EQ(OpenStoreByExchange(&world0, &job0, no_interface, Soon()).status(), no_interface);
  EXPECT_THAT(OpenStoreByExchange(&world1, &job1, address, Soon()),
              StatusIs(absl::StatusCode::kNotFound, "rank 1 of 2 (by PMI): rank 0: no interface"));

  silent = true;
  EXPECT_THAT(
      OpenStoreByExchange(&world0, &job0, address, Deadline::AfterMs(50)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("rank 0 of 2 (by PMI)"), HasSubstr("to do without PMI-1, set LOCKSTEP_STORE=tcp://"))));
  EXPECT_THAT(OpenStoreByExchange(&world1, &job1, address, Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("earlier call"), HasSubstr("set LOCKSTEP_STORE=tcp://"))));
  shutdown(launcher.get(), SHUT_RDWR);
  thread.Join();
  unsetenv("PMI_FD");
}

TEST(OpenStore, AHostNameIsServedWhereItLeads) {
  char host[256] = "";
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  if (std::string(host) == "localhost" || !Resolve(host, 1, Soon()).ok())
    GTEST_SKIP() << "this machine has no name of its own";
  const std::string url = absl::StrCat("tcp://", host, ":", UnusedPort());
  WorldSpec world = World(0, url);
  world.local_size = world.size;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, Open(world));
  const std::vector<SocketAddress> named = *Resolve(host, rank0.server->address().port(), Soon());
  for (const SocketAddress& address : rank0.server->addresses()) EXPECT_THAT(named, Contains(address));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, Open(World(1, url)));
  ExpectSameStore(rank0.store.get(), rank1.store.get());
}

// What it means elsewhere this machine does not know.
TEST(OpenStore, AHostNameThatLeadsElsewhereIsServedOnEveryAddress) {
  const std::string url = absl::StrCat("tcp://no.such.host.invalid:", UnusedPort());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, Open(World(0, url)));
  EXPECT_TRUE(rank0.server->address().wildcard());
}

TEST(StoreListenAddresses, AreThoseOfTheNameThatThisMachineHas) {
  const auto address = [](const char* text) { return *SocketAddress::Parse(text); };
  std::vector<InterfaceAddress> machine;
  for (const char* text : {"127.0.0.1:0", "10.0.0.7:0", "10.1.0.7:0", "[2001:db8::7]:0"}) {
    machine.push_back({"eth", address(text), true});
  }
  const auto chosen = [&](std::vector<const char*> named, bool one_host) {
    std::vector<SocketAddress> addresses;
    for (const char* text : named) addresses.push_back(address(text));
    std::string texts;
    for (const SocketAddress& one : StoreListenAddresses(addresses, machine, one_host)) texts += one.ToString() + " ";
    return texts;
  };
  for (const bool one_host : {false, true}) {
    EXPECT_EQ(chosen({"10.0.0.7:5"}, one_host), "10.0.0.7:5 ");
    // Another machine's, or that of a service, beside our own.
    EXPECT_EQ(chosen({"10.9.9.9:5", "[2001:db8::7]:5", "10.0.0.7:5"}, one_host), "[2001:db8::7]:5 10.0.0.7:5 ");
    EXPECT_EQ(chosen({"10.9.9.9:5"}, one_host), "");
    EXPECT_EQ(chosen({}, one_host), "");
    EXPECT_EQ(chosen({"127.0.1.1:5", "10.0.0.7:5"}, one_host), "127.0.1.1:5 10.0.0.7:5 ");
  }
  // As /etc/hosts may have it; the other hosts ask elsewhere.
  EXPECT_EQ(chosen({"127.0.1.1:5"}, /*one_host=*/false), "");
  EXPECT_EQ(chosen({"127.0.1.1:5"}, /*one_host=*/true), "127.0.1.1:5 ");
}

TEST(OpenStore, SeveralAddressesLeadToOneStore) {
  const int port = UnusedPort();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto server,
                                TcpStoreServer::Create({*SocketAddress::Parse(absl::StrCat("127.0.0.1:", port)),
                                                        *SocketAddress::Parse(absl::StrCat("127.0.0.2:", port))},
                                                       {}));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore one, Open(World(1, absl::StrCat("tcp://127.0.0.1:", port))));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore two, Open(World(1, absl::StrCat("tcp://127.0.0.2:", port))));
  ExpectSameStore(one.store.get(), two.store.get());
}

TEST(OpenStore, APortThatAnotherJobHasSaysSo) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto other, TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), {}));
  EXPECT_THAT(Open(World(0, absl::StrCat("tcp://", other->address().ToString()))),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("another job is here"), HasSubstr("set LOCKSTEP_STORE to another port"))));
}

TEST(OpenStore, Rank0LeavesServingToTheLauncherThatDoes) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto launcher, TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), {}));
  WorldSpec world = World(0, absl::StrCat("tcp://", launcher->address().ToString()));
  world.store_served = true;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, Open(world));
  EXPECT_EQ(rank0.server, nullptr);
  world.rank = Rank(1);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, Open(world));
  ExpectSameStore(rank0.store.get(), rank1.store.get());
}

TEST(OpenStore, ATakenPortNamesPortSourceAndHint) {
  const UniqueFd squatter = *Listen(*SocketAddress::Parse("127.0.0.1:0"));
  const std::string address = LocalAddress(squatter.get())->ToString();
  EXPECT_THAT(
      Open(World(0, "tcp://" + address)),
      StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("listen on " + address), HasSubstr("is from the test"),
                                                       HasSubstr("set LOCKSTEP_STORE to another port"))));
}

TEST(OpenStore, APortOfSomethingElseIsNotTakenForAnotherJobs) {
  const UniqueFd web_server = *Listen(*SocketAddress::Parse("127.0.0.1:0"));
  const std::string url = absl::StrCat("tcp://", LocalAddress(web_server.get())->ToString());
  const auto answer = [&] {
    const Deadline deadline = Soon();
    pollfd entry = {web_server.get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, deadline.remaining_ms()), 1);
    const UniqueFd client = *Accept(web_server.get(), nullptr);
    const absl::string_view text = "HTTP/1.1 400 Bad Request";
    EXPECT_THAT(SendAll(client.get(), text.data(), text.size(), deadline), IsOk());
    // Closed with bytes unread, it would take back its answer.
    for (char byte; ReceiveAll(client.get(), &byte, 1, deadline).ok();) {
    }
  };
  Thread thread;
  ASSERT_THAT(thread.Start("web", answer), IsOk());
  EXPECT_THAT(Open(World(0, url)),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("set LOCKSTEP_STORE to another port"), Not(HasSubstr("another job is here")))));
  thread.Join();
}

TEST(OpenStore, NobodyServingMeetsTheDeadline) {
  const std::string url = absl::StrCat("tcp://127.0.0.1:", UnusedPort());
  EXPECT_THAT(Open(World(1, url), Deadline::AfterMs(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr(url), HasSubstr("Connection refused"), HasSubstr("is from the test"))));
}

TEST(OpenStore, UnknownHostIsNotFoundForEveryRankButTheServer) {
  EXPECT_THAT(Open(World(1, "tcp://no such host:1")),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("store tcp://no such host:1"),
                                                          HasSubstr("not known"), HasSubstr("is from the test"))));
}

TEST(OpenStore, FilesNeedNoServer) {
  const std::string url = absl::StrCat("file://", testing::TempDir(), "/open_test", getpid());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, Open(World(0, url)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, Open(World(1, url)));
  EXPECT_EQ(rank0.server, nullptr);
  ExpectSameStore(rank0.store.get(), rank1.store.get());
}

TEST(OpenStore, UnknownSchemesAreInvalidAndListTheKnownOnes) {
  EXPECT_THAT(Open(World(0, "redis://host:1")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("redis://host:1"), HasSubstr("tcp://host:port or file:///path"))));
}

TEST(OpenStore, AWorldOfOneNeedsNone) {
  WorldSpec world;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore opened, Open(world));
  EXPECT_EQ(opened.store->Describe(), "store memory");
  world.size = 2;
  EXPECT_THAT(Open(world), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a world of 2")));
}

// ---- With a secret ----

TEST(OpenStoreWithASecret, Rank0DrawsOneAndTheOthersOfThisMachineAskForIt) {
  const struct {
    const char* served;
    const char* asked;
  } hosts[] = {
      {"127.0.0.1", "127.0.0.1"}, {"localhost", "localhost"}, {"0.0.0.0", "127.0.0.1"}, {"0.0.0.0", "0.0.0.0"}};
  for (const auto& host : hosts) {
    SCOPED_TRACE(absl::StrCat(host.served, " ", host.asked));
    const int port = UnusedPort();
    Credentials job0, job1;
    job0.level = job1.level = SecurityLevel::kAuthenticate;
    // The others may come first.
    absl::StatusOr<OpenedStore> rank1 = absl::UnknownError("not run");
    Thread thread;
    const std::string from_here = absl::StrCat("tcp://", host.asked, ":", port);
    ASSERT_THAT(thread.Start("rank1", [&] { rank1 = OpenStore(World(1, from_here), &job1, Soon()); }), IsOk());
    const absl::StatusOr<OpenedStore> rank0 =
        OpenStore(World(0, absl::StrCat("tcp://", host.served, ":", port)), &job0, Soon());
    thread.Join();
    ASSERT_THAT(rank0, IsOk());
    ASSERT_THAT(rank1, IsOk());
    ASSERT_TRUE(job0.secret != nullptr && job1.secret != nullptr);
    EXPECT_EQ(job0.secret->bytes(), job1.secret->bytes());
    EXPECT_EQ(job1.source, absl::StrCat("the store's server at ", from_here.substr(6)));
    ExpectSameStore(rank0->store.get(), rank1->store.get());
  }
}

// Has a name until it ends: a process of another user.
class Squatter {
 public:
  explicit Squatter(const std::string& name) {
    int lives[2], listens[2];
    EXPECT_EQ(pipe(lives) | pipe(listens), 0);
    process_ = fork();
    if (process_ == 0) {
      close(lives[1]);
      const bool other = setuid(65534) == 0;
      const absl::StatusOr<UniqueFd> listener = ListenUnix(name);
      char byte = other && listener.ok() ? 'y' : 'n';
      (void)!write(listens[1], &byte, 1);
      _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(lives[0]);
    close(listens[1]);
    char byte = 'n';
    there_ = read(listens[0], &byte, 1) == 1 && byte == 'y';
    close(listens[0]);
    end_ = lives[1];
  }
  ~Squatter() {
    close(end_);
    waitpid(process_, nullptr, 0);
  }
  // False where this process cannot be another user.
  bool there() const { return there_; }

 private:
  pid_t process_ = -1;
  int end_ = -1;
  bool there_ = false;
};

// The name that a server on all addresses would have.
TEST(OpenStoreWithASecret, AnotherUserWhoHasANameKeepsNobodyFromTheServer) {
  if (geteuid() != 0) GTEST_SKIP() << "this process cannot be another user";
  const int port = UnusedPort();
  const std::string name = absl::StrCat("lockstep-secret-", geteuid(), "-*:", port);
  const Squatter squatter(name);
  if (!squatter.there()) GTEST_SKIP() << "this process cannot be another user";
  const std::string url = absl::StrCat("tcp://127.0.0.1:", port);
  EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, World(1, url), Deadline::AfterMs(200)),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(name), HasSubstr("user 65534"), HasSubstr("LOCKSTEP_SECRET_FILE"))));
  Credentials job0, job1;
  job0.level = job1.level = SecurityLevel::kAuthenticate;
  absl::StatusOr<OpenedStore> rank1 = absl::UnknownError("not run");
  Thread thread;
  ASSERT_THAT(thread.Start("rank1", [&] { rank1 = OpenStore(World(1, url), &job1, Soon()); }), IsOk());
  const absl::StatusOr<OpenedStore> rank0 = OpenStore(World(0, url), &job0, Soon());
  thread.Join();
  ASSERT_THAT(rank0, IsOk());
  ASSERT_THAT(rank1, IsOk());
  EXPECT_EQ(job0.secret->bytes(), job1.secret->bytes());
}

TEST(OpenStoreWithASecret, OneOfTheUsersIsNeitherHandedOutNorAskedFor) {
  const std::string url = absl::StrCat("tcp://127.0.0.1:", UnusedPort());
  Credentials job0 = Given('s'), job1 = Given('s'), other = Given('x');
  WorldSpec world0 = World(0, url), world1 = World(1, url);
  // However many hosts there are.
  world0.local_size = world1.local_size = 1;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank0, OpenStore(world0, &job0, Soon()));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const OpenedStore rank1, OpenStore(world1, &job1, Soon()));
  ExpectSameStore(rank0.store.get(), rank1.store.get());
  EXPECT_THAT(AskForSecret({rank0.server->address()}, Soon()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(OpenStore(world1, &other, Soon()),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr("file x"), HasSubstr("is from the test"))));
}

TEST(OpenStoreWithASecret, SeveralHostsNeedOneOfTheUsers) {
  const auto needs_one =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("several hosts"), HasSubstr("LOCKSTEP_SECRET_FILE"),
                     HasSubstr("the same 64 hex digits (openssl rand"), HasSubstr("LOCKSTEP_SECURITY=none")));
  for (const int rank : {0, 1}) {
    WorldSpec world = World(rank, "tcp://192.0.2.1:29400");
    world.local_size = 1;
    EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, world), needs_one);
  }
  // Known by the server's address alone. It is one of those that are for documents (RFC 5737).
  EXPECT_THAT(OpenAt(SecurityLevel::kEncrypt, World(1, "tcp://192.0.2.1:29400")), needs_one);
}

TEST(OpenStoreWithASecret, AServerOfThisHostThatHandsOutNoneIsSaidToBe) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto server, TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), {}));
  EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, World(1, absl::StrCat("tcp://", server->address().ToString())),
                     Deadline::AfterMs(30)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("hands out no secret"), HasSubstr("LOCKSTEP_SECURITY have to be set alike"),
                             Not(HasSubstr("several hosts")))));
}

TEST(OpenStoreWithASecret, NobodyServingMeetsTheDeadlineAsWithout) {
  EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, World(1, absl::StrCat("tcp://127.0.0.1:", UnusedPort())),
                     Deadline::AfterMs(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("Connection refused"), HasSubstr("is from the test"))));
}

TEST(OpenStoreWithASecret, UnknownHostIsNotFound) {
  EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, World(1, "tcp://no such host:1")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("not known")));
}

TEST(OpenStoreWithASecret, APortThatAnotherJobHasSaysSo) {
  TcpStoreServer::Options options;
  options.credentials = Given('x');
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto other,
                                TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), options));
  EXPECT_THAT(OpenAt(SecurityLevel::kAuthenticate, World(0, absl::StrCat("tcp://", other->address().ToString()))),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("another job is here")));
}

TEST(OpenStoreWithASecret, AFileAndAWorldOfOneBringNone) {
  Credentials job;
  job.level = SecurityLevel::kAuthenticate;
  const std::string url = absl::StrCat("file://", testing::TempDir(), "/secret_open_test", getpid());
  EXPECT_THAT(OpenStore(World(0, url), &job, Soon()), IsOk());
  EXPECT_THAT(OpenStore(WorldSpec(), &job, Soon()), IsOk());
  EXPECT_EQ(job.secret, nullptr);
}

TEST(ParseStoreUrl, Tcp) {
  for (const char* text : {"tcp://10.0.0.1:29400", "tcp://node-0.cluster:1", "tcp://[fe80::1%eth0]:65535"}) {
    const auto url = ParseStoreUrl(text);
    ASSERT_THAT(url, IsOk()) << text;
    EXPECT_EQ(url->scheme, StoreUrl::kTcp);
    EXPECT_EQ("tcp://" + HostPortText(url->server), text);
  }
  EXPECT_EQ(ParseStoreUrl("tcp://[fe80::1%eth0]:65535")->server.host, "fe80::1%eth0");
  EXPECT_EQ(ParseStoreUrl("tcp://[fe80::1%eth0]:65535")->server.port, 65535);
}

TEST(ParseStoreUrl, File) {
  const auto url = ParseStoreUrl("file:///tmp/a job/store");
  ASSERT_THAT(url, IsOk());
  EXPECT_EQ(url->scheme, StoreUrl::kFile);
  EXPECT_EQ(url->path, "/tmp/a job/store");
}

TEST(ParseStoreUrl, SaysWhatIsWrong) {
  const struct {
    std::string url;
    const char* message;
  } cases[] = {
      {"", "expected tcp://host:port or file:///path"},
      {"10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"TCP://10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"etcd://10.0.0.1:29400", "expected tcp://host:port or file:///path"},
      {"tcp://10.0.0.1", "no port"},
      {"tcp://:29400", "no host"},
      {"tcp://host:29400/", "'29400/' is no port"},
      {"tcp://host:0", "port 0"},
      {"file://relative/path", "absolute path"},
      {"file://", "absolute path"},
      {"file:///folder/", "a folder"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(ParseStoreUrl(c.url), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr(c.message), HasSubstr("store URL '" + c.url + "'"))))
        << c.url;
  }
  EXPECT_THAT(ParseStoreUrl(std::string("file:///a\0b", 11)),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("NUL"), HasSubstr("'file:///a\\x00b'"))));
}

}  // namespace
}  // namespace lockstep

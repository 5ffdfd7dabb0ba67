#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/log_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/store_conformance.h"
#include "transport/net/little_endian.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/store/secret_handout.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"
#include "transport/store/store_wire.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using Side = Channel::Side;

Deadline Soon() { return Deadline::AfterMs(20'000); }

SocketAddress Loopback() { return *SocketAddress::Parse("127.0.0.1:0"); }

HostPort PortOf(const SocketAddress& address) { return {address.HostString(), address.port()}; }

Credentials CredentialsOf(SecurityLevel level, char fill = 's') {
  Credentials credentials;
  credentials.level = level;
  if (level == SecurityLevel::kNone) return credentials;
  credentials.secret = Secret::FromBytes(std::string(Secret::kBytes, fill)).value();
  credentials.source = absl::StrCat("file ", std::string(1, fill));
  return credentials;
}

absl::StatusOr<StoreWorld> TcpWorld(SecurityLevel level) {
  TcpStoreServer::Options options;
  options.credentials = CredentialsOf(level);
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<TcpStoreServer> server, TcpStoreServer::Create(Loopback(), options));
  return StoreWorld{[=] { return TcpStoreClient::Connect(PortOf(server->address()), CredentialsOf(level), Soon()); }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return TcpWorld(SecurityLevel::kNone); })));
INSTANTIATE_TEST_SUITE_P(SecuredTcp, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return TcpWorld(SecurityLevel::kAuthenticate); })));

void SendBytes(const UniqueFd& socket, absl::string_view bytes) {
  EXPECT_THAT(SendAll(socket.get(), bytes.data(), bytes.size(), Soon()), IsOk());
}

// One end of a connection, to say what neither a client nor a server would.
class RawEnd {
 public:
  RawEnd(UniqueFd socket, Side side, SecurityLevel level)
      : socket_(std::move(socket)), level_(level), channel_(Purpose::kStore, side, CredentialsOf(level)) {
    if (side == Side::kConnects) {
      EXPECT_THAT(ShakeHands(socket_.get(), &channel_, Soon()), IsOk());
    } else {
      while (!channel_.ready() && Take(channel_.wanted())) {
      }
    }
  }

  void Send(absl::string_view plain) {
    std::string bytes;
    channel_.Send(plain, &bytes);
    SendBytes(socket_, bytes);
  }

  // Shorter where the connection ends before.
  std::string Receive(size_t bytes) {
    while (plain_.size() < bytes && Take(level_ == SecurityLevel::kNone ? bytes - plain_.size() : channel_.wanted())) {
    }
    std::string plain = plain_.substr(0, bytes);
    plain_.erase(0, bytes);
    return plain;
  }

  UniqueFd& socket() { return socket_; }

 private:
  bool Take(size_t bytes) {
    std::string arrived(bytes, '\0'), to_send;
    absl::Status status = ReceiveAll(socket_.get(), &arrived[0], bytes, Soon());
    if (status.ok()) status = channel_.Receive(arrived, &plain_, &to_send);
    EXPECT_THAT(status, IsOk());
    if (!to_send.empty()) SendBytes(socket_, to_send);
    return status.ok();
  }

  UniqueFd socket_;
  const SecurityLevel level_;
  Channel channel_;
  std::string plain_;
};

constexpr char kSomethingElse[] = "(does something else listen there?)";

// A server with one well-behaved client, whom the unauthenticated peers of each test must not trouble.
class TcpStoreServerTest : public testing::TestWithParam<SecurityLevel> {
 protected:
  void Start(TcpStoreServer::Options options) {
    options.credentials = CredentialsOf(GetParam());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(server_, TcpStoreServer::Create(Loopback(), options));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(client_, NewClient());
  }

  absl::StatusOr<std::unique_ptr<TcpStoreClient>> NewClient() {
    return TcpStoreClient::Connect(PortOf(server_->address()), CredentialsOf(GetParam()), Soon());
  }
  UniqueFd ConnectUnauthenticated() { return *Connect(server_->address(), Soon()); }
  RawEnd ConnectRaw() { return RawEnd(ConnectUnauthenticated(), Side::kConnects, GetParam()); }

  // Whatever it says before.
  void ExpectClosedByServer(const UniqueFd& socket) {
    char byte;
    absl::Status status;
    while (status.ok()) status = ReceiveAll(socket.get(), &byte, 1, Soon());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  }

  void ExpectClientWorks() {
    EXPECT_THAT(client_->Set("still", "served", Soon()), IsOk());
    EXPECT_THAT(client_->Get("still", Soon()), IsOkAndHolds("served"));
  }

  uint64_t refused(Refusal kind) const { return server_->refusals().count(kind); }

  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<TcpStoreClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Levels, TcpStoreServerTest,
                         testing::Values(SecurityLevel::kNone, SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(TcpStoreServerTest, UnauthenticatedPeersThatSendNonsenseAreDroppedAndCounted) {
  Start({});
  LogLines log;
  for (const absl::string_view nonsense : {absl::string_view("GET / HTTP/1.1\r\n\r\n"), absl::string_view("\0", 1),
                                           absl::string_view("LKSX\1\0\1\1", 8)}) {
    const UniqueFd peer = ConnectUnauthenticated();
    SendBytes(peer, nonsense);
    ExpectClosedByServer(peer);
  }
  ExpectClientWorks();
  EXPECT_EQ(refused(Refusal::kNotOurs), 3);
  EXPECT_THAT(log.lines(),
              Contains(AllOf(HasSubstr(absl::StrCat("store server ", server_->address().ToString(), ": turned away")),
                             HasSubstr("does not speak Lockstep's protocol"))));
}

TEST_P(TcpStoreServerTest, RandomBytesAreTurnedAway) {
  Start({});
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  const std::string preamble =
      Channel(Purpose::kStore, Side::kConnects, CredentialsOf(GetParam())).Start().substr(0, 8);
  constexpr int kPeers = 200;
  for (int i = 0; i < kPeers; ++i) {
    std::string bytes = i % 2 == 0 ? "" : preamble;
    for (int size = random() % 3000 + 100; size > 0; --size) bytes.push_back(static_cast<char>(random()));
    const UniqueFd peer = ConnectUnauthenticated();
    SendBytes(peer, bytes);
    (void)shutdown(peer.get(), SHUT_WR);
    ExpectClosedByServer(peer);
  }
  ExpectClientWorks();
  EXPECT_EQ(server_->refusals().total(), kPeers);
}

TEST_P(TcpStoreServerTest, SilentAndHalfFinishedHandshakesAreDroppedInTime) {
  TcpStoreServer::Options options;
  options.handshake_timeout = std::chrono::milliseconds(1000);
  Start(options);
  LogLines log;
  const std::string begin = Channel(Purpose::kStore, Side::kConnects, CredentialsOf(GetParam())).Start();
  const UniqueFd silent = ConnectUnauthenticated();
  const UniqueFd half = ConnectUnauthenticated();
  SendBytes(half, begin.substr(0, begin.size() - 1));
  ExpectClosedByServer(silent);
  ExpectClosedByServer(half);
  ExpectClientWorks();
  EXPECT_EQ(refused(Refusal::kSilent), 2);
  EXPECT_THAT(log.lines(), Contains(HasSubstr("was not through with the handshake in time")));
}

TEST_P(TcpStoreServerTest, AnEarlierVersionIsKnownByItsHelloAndToldOurPreamble) {
  Start({});
  const UniqueFd peer = ConnectUnauthenticated();
  SendBytes(peer, absl::string_view("LKST\x01\0\0\0", 8));
  char reply[kPreambleBytes];
  ASSERT_THAT(ReceiveAll(peer.get(), reply, sizeof(reply), Soon()), IsOk());
  EXPECT_EQ(std::string(reply, 4), "LKSP");
  ExpectClosedByServer(peer);
  ExpectClientWorks();
  EXPECT_EQ(refused(Refusal::kOldProtocol), 1);
}

TEST_P(TcpStoreServerTest, AClientOfAnotherLevelIsRefusedAtOnceAndBothAreNamed) {
  Start({});
  const bool none = GetParam() == SecurityLevel::kNone;
  const char* const both = none ? "none, not authenticate or encrypt" : "authenticate or encrypt, not none";
  EXPECT_EQ(server_->turned_away(), "");
  Refusal refusal;
  EXPECT_THAT(TcpStoreClient::Connect(PortOf(server_->address()),
                                      CredentialsOf(none ? SecurityLevel::kAuthenticate : SecurityLevel::kNone), Soon(),
                                      &refusal),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("store tcp://127.0.0.1:"), HasSubstr(both), HasSubstr("LOCKSTEP_SECURITY"),
                             Not(HasSubstr(kSomethingElse)))));
  EXPECT_EQ(refusal, Refusal::kOtherLevel);
  ExpectClientWorks();
  EXPECT_EQ(refused(Refusal::kOtherLevel), 1);
  EXPECT_THAT(server_->turned_away(),
              AllOf(HasSubstr("turned away 127.0.0.1:"),
                    HasSubstr(none ? "authenticate or encrypt, not none" : "none, not authenticate or encrypt")));
}

TEST_P(TcpStoreServerTest, WhoLeavesDuringTheHandshakeIsCounted) {
  Start({});
  const std::string begin = Channel(Purpose::kStore, Side::kConnects, CredentialsOf(GetParam())).Start();
  for (const size_t bytes : {size_t{0}, begin.size() - 1}) {
    const uint64_t before = refused(Refusal::kGaveUp);
    const UniqueFd peer = ConnectUnauthenticated();
    SendBytes(peer, begin.substr(0, bytes));
    (void)shutdown(peer.get(), SHUT_WR);
    ExpectClosedByServer(peer);
    ExpectClientWorks();
    EXPECT_EQ(refused(Refusal::kGaveUp), before + 1) << bytes << " bytes";
  }
  EXPECT_EQ(refused(Refusal::kBroken), 0);
}

TEST_P(TcpStoreServerTest, AClientWithAnotherSecretIsRefusedAtOnceAndToldWhereItsOwnIsFrom) {
  if (GetParam() == SecurityLevel::kNone) GTEST_SKIP() << "there is no secret";
  Start({});
  LogLines log;
  EXPECT_THAT(
      TcpStoreClient::Connect(PortOf(server_->address()), CredentialsOf(GetParam(), 'x'), Soon()),
      StatusIs(absl::StatusCode::kPermissionDenied,
               AllOf(HasSubstr("store tcp://127.0.0.1:"), HasSubstr("ours is from file x; all ranks need the same"),
                     Not(HasSubstr(kSomethingElse)))));
  ExpectClientWorks();
  EXPECT_EQ(refused(Refusal::kNoSecret), 1);
  EXPECT_THAT(server_->turned_away(),
              AllOf(HasSubstr("turned away 127.0.0.1:"), HasSubstr("does not have the secret")));
  for (const std::string& line : log.lines()) {
    EXPECT_THAT(line, Not(HasSubstr("xxxx")));
    EXPECT_THAT(line, Not(HasSubstr("ssss")));
  }
}

TEST_P(TcpStoreServerTest, ServesNobodyWhoHasNotProvedThatHeHasTheSecret) {
  if (GetParam() == SecurityLevel::kNone) GTEST_SKIP() << "there is no secret";
  Start({});
  const UniqueFd peer = ConnectUnauthenticated();
  const std::string begin = Channel(Purpose::kStore, Side::kConnects, CredentialsOf(GetParam(), 'x')).Start();
  SendBytes(peer, begin + EncodeStoreRequest({{StoreOp::kSet, "k", "v"}}));
  ExpectClosedByServer(peer);
  EXPECT_THAT(client_->Get("k", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

// A process with descriptors of its own, which stays until the end. Made before the server, since a child of a process with threads may
// find a lock taken.
class OtherProcess {
 public:
  using Body = std::function<bool(const SocketAddress& server)>;

  explicit OtherProcess(const Body& body) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      (void)Limit(RLIMIT_NOFILE, RLIM_INFINITY);
      char text[64];
      const ssize_t bytes = read(ends[1], text, sizeof(text));
      const auto server = SocketAddress::Parse(absl::string_view(text, bytes > 0 ? static_cast<size_t>(bytes) : 0));
      if (server.ok() && body(*server)) (void)!write(ends[1], "x", 1);
      (void)!read(ends[1], text, 1);
      _exit(0);
    }
    close(ends[1]);
    socket_ = ends[0];
  }
  ~OtherProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(socket_);
  }
  OtherProcess(const OtherProcess&) = delete;

  // What the body returns; once.
  bool Run(const SocketAddress& server) {
    const std::string text = server.ToString();
    char byte = 0;
    pollfd entry = {socket_, POLLIN, 0};
    return write(socket_, text.data(), text.size()) > 0 && poll(&entry, 1, Soon().remaining_ms()) == 1 &&
           read(socket_, &byte, 1) == 1;
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

// Connects, says nothing, and stays.
OtherProcess::Body Outsiders(int count) {
  return [count](const SocketAddress& server) {
    static std::vector<UniqueFd> connections;
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<UniqueFd> socket = Connect(server, Soon());
      if (!socket.ok()) return false;
      connections.push_back(*std::move(socket));
    }
    return true;
  };
}

TEST_P(TcpStoreServerTest, ManySilentUnauthenticatedPeersKeepNoClientOut) {
  OtherProcess outsiders(Outsiders(200));
  const DescriptorLimit limit(60);
  Start({});
  ASSERT_TRUE(outsiders.Run(server_->address()));
  for (int i = 0; i < 3; ++i) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto client, NewClient());
    EXPECT_THAT(client->Set("k", "v", Soon()), IsOk());
  }
  ExpectClientWorks();
  EXPECT_GE(refused(Refusal::kCrowded), 200 - HalfOpen::MostForThisProcess());
}

TEST_P(TcpStoreServerTest, UnauthenticatedPeersMakeWayWhereDescriptorsRunOut) {
  OtherProcess outsiders(Outsiders(50));
  OtherProcess other([level = GetParam()](const SocketAddress& server) {
    const auto client = TcpStoreClient::Connect(PortOf(server), CredentialsOf(level), Soon());
    return client.ok() && (*client)->Set("from", "another", Soon()).ok();
  });
  Start({});
  const DescriptorLimit limit(3);
  ASSERT_TRUE(outsiders.Run(server_->address()));
  EXPECT_TRUE(other.Run(server_->address()));
  EXPECT_THAT(client_->Get("from", Soon()), IsOkAndHolds("another"));
  EXPECT_GT(refused(Refusal::kCrowded), 0);
}

TEST_P(TcpStoreServerTest, AClientThatCannotBeServedForWantOfDescriptorsIsToldSo) {
  OtherProcess other([level = GetParam()](const SocketAddress& server) {
    return absl::IsResourceExhausted(TcpStoreClient::Connect(PortOf(server), CredentialsOf(level), Soon()).status());
  });
  Start({});
  const DescriptorLimit limit(0);
  EXPECT_TRUE(other.Run(server_->address()));
  ExpectClientWorks();
  EXPECT_FALSE(server_->status().ok());
  EXPECT_GE(refused(Refusal::kCrowded), 1);
}

TEST_P(TcpStoreServerTest, ASecretIsHandedOutWhereNoDescriptorIsFree) {
  if (GetParam() == SecurityLevel::kNone) GTEST_SKIP() << "there is no secret";
  OtherProcess other([level = GetParam()](const SocketAddress& server) {
    const auto secret = AskForSecret({server}, Soon());
    return secret.ok() && (*secret)->bytes() == CredentialsOf(level).secret->bytes();
  });
  TcpStoreServer::Options options;
  options.hands_out_secret = true;
  Start(options);
  const DescriptorLimit limit(0);
  EXPECT_TRUE(other.Run(server_->address()));
}

TEST_P(TcpStoreServerTest, AnImpossibleRequestEndsOnlyItsOwnConnection) {
  Start({});
  std::string huge = EncodeStoreRequest({{StoreOp::kGet, "k"}});
  StoreLittleEndian<uint32_t>(0xfffffff0, &huge[20]);
  RawEnd liar = ConnectRaw();
  liar.Send(huge);
  ExpectClosedByServer(liar.socket());
  ExpectClientWorks();
}

TEST_P(TcpStoreServerTest, HalfARequestHoldsUpNobodyAndIsForgotten) {
  Start({});
  const std::string bytes = EncodeStoreRequest({{StoreOp::kSet, "half", "value"}});
  RawEnd half = ConnectRaw();
  half.Send(absl::string_view(bytes).substr(0, bytes.size() - 1));
  ExpectClientWorks();
  half.socket().reset();
  ExpectClientWorks();
  EXPECT_THAT(client_->Get("half", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_P(TcpStoreServerTest, RequestsInOneSegmentAndByteByByteAreTheSame) {
  Start({});
  const std::string requests =
      EncodeStoreRequest({{StoreOp::kSet, "k", "v"}, 1}) + EncodeStoreRequest({{StoreOp::kGet, "k"}, 2});
  const std::string expected = EncodeStoreReply({1}) + EncodeStoreReply({2, absl::StatusCode::kOk, "v"});

  RawEnd at_once = ConnectRaw();
  at_once.Send(requests);
  RawEnd in_pieces = ConnectRaw();
  for (const char byte : requests) in_pieces.Send(absl::string_view(&byte, 1));
  for (RawEnd* end : {&at_once, &in_pieces}) EXPECT_EQ(end->Receive(expected.size()), expected);
}

TEST_P(TcpStoreServerTest, AnAlteredRecordEndsTheConnectionAndIsNotCarriedOut) {
  if (GetParam() == SecurityLevel::kNone) GTEST_SKIP() << "there are no records";
  Start({});
  const UniqueFd socket = ConnectUnauthenticated();
  Channel channel(Purpose::kStore, Side::kConnects, CredentialsOf(GetParam()));
  ASSERT_THAT(ShakeHands(socket.get(), &channel, Soon()), IsOk());
  std::string record;
  channel.Send(EncodeStoreRequest({{StoreOp::kSet, "k", "v"}}), &record);
  record[record.size() / 2] ^= 1;
  SendBytes(socket, record);
  ExpectClosedByServer(socket);
  EXPECT_THAT(client_->Get("k", Soon()), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(refused(Refusal::kBroken), 1);
}

TEST_P(TcpStoreServerTest, AClientThatDoesNotReadHoldsUpNobodyAndGetsEverythingLater) {
  Start({});
  const std::string big(kStoreValueBytesMax, 'b');
  ASSERT_THAT(client_->Set("big", big, Soon()), IsOk());
  // More than the server queues for one client and the sockets hold, so it stops listening to this one half way.
  constexpr uint64_t kRequests = 400;
  RawEnd sloth = ConnectRaw();
  for (uint64_t i = 0; i < kRequests; ++i) sloth.Send(EncodeStoreRequest({{StoreOp::kGet, "big"}, i}));
  ExpectClientWorks();
  const size_t reply_bytes = EncodeStoreReply(StoreReply()).size() + big.size();
  for (uint64_t i = 0; i < kRequests; ++i) {
    const std::string reply = sloth.Receive(reply_bytes);
    ASSERT_EQ(reply.size(), reply_bytes) << i;
    EXPECT_EQ(LoadLittleEndian<uint64_t>(reply.data()), i);
  }
}

// Others' requests answer its waits, whether it reads or not.
TEST_P(TcpStoreServerTest, AClientThatNeverReadsIsDisconnectedBeforeItsAnswersFillTheMemory) {
  Start({});
  RawEnd sloth = ConnectRaw();
  const std::string big(kStoreValueBytesMax, 'b');
  constexpr uint64_t kWaits = 400;
  for (uint64_t i = 0; i < kWaits; ++i) sloth.Send(EncodeStoreRequest({{StoreOp::kWait, "big"}, i, kStoreNoTimeout}));
  sloth.Send(EncodeStoreRequest({{StoreOp::kSet, "heard", ""}, kWaits}));
  ASSERT_THAT(client_->Wait("heard", Soon()), IsOk());
  LogLines log;
  ASSERT_THAT(client_->Set("big", big, Soon()), IsOk());
  EXPECT_THAT(log.lines(), Contains(HasSubstr("does not read its answers")));
  ExpectClientWorks();
}

TEST_P(TcpStoreServerTest, ConnectionsBeyondTheLimitAreRefused) {
  TcpStoreServer::Options options;
  options.clients_max = 2;
  Start(options);
  RawEnd second = ConnectRaw();
  // What the server says last over it is its answer to this.
  second.Send(EncodeStoreRequest({{StoreOp::kSet, "k", "v"}}));
  (void)second.Receive(EncodeStoreReply(StoreReply()).size());
  LogLines log;
  const UniqueFd third = ConnectUnauthenticated();
  ExpectClosedByServer(third);
  ExpectClientWorks();
  EXPECT_THAT(log.lines(), Contains(HasSubstr("refused: there are 2 connections")));
  // A place becomes free when somebody leaves; the server may hear of the newcomer first.
  second.socket().reset();
  EXPECT_THAT(NewClient(), IsOk());
}

TEST_P(TcpStoreServerTest, AFullStoreSaysSo) {
  TcpStoreServer::Options options;
  options.bytes_max = 1000;
  Start(options);
  EXPECT_THAT(client_->Set("k", std::string(1000, 'x'), Soon()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 1000 bytes")));
  ExpectClientWorks();
}

TEST_P(TcpStoreServerTest, HoldsNoMoreThanSetUpNeeds) {
  Start({});
  const std::string big(kStoreValueBytesMax, 'b');
  absl::Status status;
  int held = 0;
  while (status.ok() && held < 1000) status = client_->Set(absl::StrCat("big", held++), big, Soon());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 16777216 bytes")));
  EXPECT_THAT(client_->Set("k", big + "b", Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(TcpStoreServerTest, ServerThatStopsEndsWaitsAtOnce) {
  Start({});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto other, NewClient());
  absl::StatusOr<std::string> waited = absl::UnknownError("not run");
  absl::StatusOr<std::string> waited_too = absl::UnknownError("not run");
  std::thread waiter([&] { waited = client_->Wait("never", Deadline::AfterMs(60'000)); });
  std::thread waiter_too([&] { waited_too = client_->Wait("nor this", Deadline::AfterMs(60'000)); });
  ASSERT_THAT(other->Set("connected", "", Soon()), IsOk());
  server_.reset();
  waiter.join();
  waiter_too.join();
  const auto lost = [](const char* key) {
    return StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("tcp://127.0.0.1:"), HasSubstr(key)));
  };
  EXPECT_THAT(waited, lost("'never'"));
  EXPECT_THAT(waited_too, lost("'nor this'"));
  EXPECT_THAT(client_->Set("k", "v", Soon()), lost("'k'"));  // for good
  EXPECT_THAT(other->Get("k", Soon()), lost("'k'"));
}

TEST_P(TcpStoreServerTest, AForkedChildHoldsNoConnectionAndIsToldSo) {
  Start({});
  const auto child = [&] {
    const bool told = absl::IsFailedPrecondition(client_->Set("k", "v", Deadline::Now()));
    server_.reset();
    return told ? 0 : 1;
  };
  EXPECT_EQ(RunInForkedChild(child, Soon()), 0);
  ExpectClientWorks();
}

TEST(TcpStoreClient, WaitsForAServerThatStartsLater) {
  const SocketAddress address = *LocalAddress(Listen(Loopback())->get());
  absl::StatusOr<std::unique_ptr<TcpStoreClient>> client = absl::UnknownError("not run");
  std::thread connecting([&] { client = TcpStoreClient::Connect(PortOf(address), {}, Soon()); });
  const auto server = TcpStoreServer::Create(address, {});
  connecting.join();
  ASSERT_THAT(server, IsOk());
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT((*client)->Set("k", "v", Soon()), IsOk());
  EXPECT_EQ((*client)->Describe(), absl::StrCat("store tcp://", address.ToString()));
}

TEST(TcpStoreClient, TriesEveryAddressOfAName) {
  // "localhost" is ::1 as well on most machines, and nobody listens there.
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto server, TcpStoreServer::Create(Loopback(), {}));
  EXPECT_THAT(TcpStoreClient::Connect({"localhost", server->address().port()}, {}, Soon()), IsOk());
}

// Something that listens but is no store server of ours: the test says what it answers.
class Impostor {
 public:
  Impostor() : listener_(*Listen(Loopback())) {}

  HostPort port() const { return PortOf(*LocalAddress(listener_.get())); }

  // A client that takes this for its server, which `answers`.
  template <typename Answer>
  absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectClient(SecurityLevel level, Deadline deadline,
                                                                const Answer& answer) {
    std::thread accepting([&] {
      pollfd entry = {listener_.get(), POLLIN, 0};
      ASSERT_EQ(poll(&entry, 1, Soon().remaining_ms()), 1);
      answer(*Accept(listener_.get(), nullptr));
    });
    auto client = TcpStoreClient::Connect(port(), CredentialsOf(level), deadline);
    accepting.join();
    return client;
  }

 private:
  UniqueFd listener_;
};

// Whoever has the port at another address of the name may be another user. The server comes later.
TEST(TcpStoreClient, AnImpostorAtOneAddressOfANameKeepsNobodyFromTheOther) {
  const absl::StatusOr<UniqueFd> impostor = Listen(*SocketAddress::Parse("[::1]:0"));
  if (!impostor.ok()) GTEST_SKIP() << impostor.status();
  const uint16_t port = LocalAddress(impostor->get())->port();
  const auto addresses = Resolve("localhost", port, Soon());
  if (!addresses.ok() || addresses->size() < 2 || addresses->front().HostString() != "::1") {
    GTEST_SKIP() << "localhost is not first ::1, and then 127.0.0.1";
  }
  std::thread connecting([port] { EXPECT_THAT(TcpStoreClient::Connect({"localhost", port}, {}, Soon()), IsOk()); });
  std::atomic<int> visits{0};
  std::atomic<bool> ended{false};
  std::thread answering([&] {
    pollfd entry = {impostor->get(), POLLIN, 0};
    while (!ended) {
      if (poll(&entry, 1, 10) != 1) continue;
      SendBytes(*Accept(impostor->get(), nullptr), "SSH-2.0-OpenSSH\r\n");
      ++visits;
    }
  });
  for (const Deadline deadline = Soon(); visits < 2 && !deadline.passed();) std::this_thread::yield();
  EXPECT_GE(visits, 2);
  const auto server = TcpStoreServer::Create(Loopback().WithPort(port), {});
  EXPECT_THAT(server, IsOk());
  connecting.join();
  ended = true;
  answering.join();
}

class TcpStoreClientTest : public testing::TestWithParam<SecurityLevel> {
 protected:
  // A client of a server that the test plays.
  void Start() {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(client_, impostor_.ConnectClient(GetParam(), Soon(), [&](UniqueFd socket) {
      server_ = std::make_unique<RawEnd>(std::move(socket), Side::kListens, GetParam());
    }));
  }

  Impostor impostor_;
  std::unique_ptr<RawEnd> server_;
  std::unique_ptr<TcpStoreClient> client_;
};

INSTANTIATE_TEST_SUITE_P(Levels, TcpStoreClientTest,
                         testing::Values(SecurityLevel::kNone, SecurityLevel::kAuthenticate),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(TcpStoreClientTest, WhatIsNoStoreIsRefusedAtOnce) {
  const auto answer = [](UniqueFd socket) { SendBytes(socket, "SSH-2.0-OpenSSH\r\n"); };
  EXPECT_THAT(impostor_.ConnectClient(GetParam(), Soon(), answer),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("does not speak Lockstep's protocol"), HasSubstr("something else"))));
}

TEST_P(TcpStoreClientTest, SilenceAfterConnectingMeetsTheDeadline) {
  UniqueFd connection;
  EXPECT_THAT(impostor_.ConnectClient(GetParam(), Deadline::AfterMs(100),
                                      [&](UniqueFd socket) { connection = std::move(socket); }),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("handshake with ")));
}

TEST_P(TcpStoreClientTest, NonsenseFromTheServerEndsTheConnection) {
  Start();
  server_->Send(std::string(64, '\xff'));
  EXPECT_THAT(client_->Get("k", Soon()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nonsense")));
  EXPECT_THAT(client_->Get("k", Soon()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nonsense")));
}

TEST_P(TcpStoreClientTest, WhatTheServerHasNotSentEndsTheConnection) {
  if (GetParam() == SecurityLevel::kNone) GTEST_SKIP() << "nobody can tell";
  Start();
  SendBytes(server_->socket(), EncodeStoreReply({1, absl::StatusCode::kOk, "forged"}));
  const auto lost = StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("'k'"), HasSubstr("altered")));
  EXPECT_THAT(client_->Get("k", Soon()), lost);
  EXPECT_THAT(client_->Get("k", Soon()), lost);
}

TEST_P(TcpStoreClientTest, ARequestCutShortByItsDeadlineDoesNotSpoilTheNext) {
  Start();
  const std::string big(kStoreValueBytesMax, 'b');
  constexpr int kRequests = 200;
  // More than the sockets hold: one is cut, and those after it are not begun.
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_THAT(client_->Set("big", big, Deadline::AfterMs(5)),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'big'")));
  }
  absl::StatusOr<std::string> value = absl::UnknownError("not run");
  std::thread getting([&] { value = client_->Get("small", Soon()); });
  StoreRequest request;
  int whole = 0;
  for (std::string bytes;; ++whole) {
    bytes = server_->Receive(28);
    ASSERT_EQ(bytes.size(), 28);
    size_t body_bytes = 0;
    for (const size_t at : {16, 20, 24}) body_bytes += LoadLittleEndian<uint32_t>(&bytes[at]);
    bytes += server_->Receive(body_bytes);
    ASSERT_THAT(ParseStoreRequest(bytes, &request), IsOkAndHolds(bytes.size()));
    // The first answers calls that have returned.
    server_->Send(EncodeStoreReply({request.id, absl::StatusCode::kOk, "value"}));
    if (request.key == "small") break;
    ASSERT_TRUE(request.key == "big" && request.first == big);
  }
  getting.join();
  EXPECT_THAT(value, IsOkAndHolds("value"));
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, kRequests);
}

// The kernel takes connections for a process that is stopped.
TEST(TcpStoreClient, AServerThatDoesNotAnswerIsUnresponsive) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(Loopback()));
  EXPECT_THAT(TcpStoreClient::Connect(PortOf(*LocalAddress(listener.get())), {}, Deadline::AfterMs(20'000), nullptr,
                                      std::chrono::milliseconds(50)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("is unresponsive: no answer for 50 ms")));
}

}  // namespace
}  // namespace lockstep

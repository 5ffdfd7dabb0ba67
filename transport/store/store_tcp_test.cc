#include <poll.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

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
#include "tests/store_conformance.h"
#include "transport/net/little_endian.h"
#include "transport/net/socket.h"
#include "transport/store/store.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"
#include "transport/store/store_wire.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::AfterMs(20'000); }

SocketAddress Loopback() { return *SocketAddress::Parse("127.0.0.1:0"); }

HostPort PortOf(const SocketAddress& address) { return {address.HostString(), address.port()}; }

absl::StatusOr<StoreWorld> TcpWorld() {
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<TcpStoreServer> server, TcpStoreServer::Create(Loopback(), {}));
  return StoreWorld{[server] { return TcpStoreClient::Connect(PortOf(server->address()), Soon()); }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformance, testing::Values(StoreWorldFactory(TcpWorld)));

// A server with one well-behaved client, whom the unauthenticated peers of each test must not trouble.
class TcpStoreServerTest : public testing::Test {
 protected:
  void Start(const TcpStoreServer::Options& options) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(server_, TcpStoreServer::Create(Loopback(), options));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(client_, TcpStoreClient::Connect(PortOf(server_->address()), Soon()));
  }

  UniqueFd ConnectUnauthenticated() { return *Connect(server_->address(), Soon()); }

  UniqueFd ConnectWithHello() {
    UniqueFd socket = ConnectUnauthenticated();
    const std::string hello = StoreClientHello();
    EXPECT_THAT(SendAll(socket.get(), hello.data(), hello.size(), Soon()), IsOk());
    char reply[kStoreHelloBytes];
    EXPECT_THAT(ReceiveAll(socket.get(), reply, sizeof(reply), Soon()), IsOk());
    EXPECT_EQ(std::string(reply, sizeof(reply)), StoreServerHello(StoreVerdict::kWelcome));
    return socket;
  }

  void Send(const UniqueFd& socket, absl::string_view bytes) {
    EXPECT_THAT(SendAll(socket.get(), bytes.data(), bytes.size(), Soon()), IsOk());
  }

  void ExpectClosedByServer(const UniqueFd& socket) {
    char byte;
    EXPECT_THAT(ReceiveAll(socket.get(), &byte, 1, Soon()), StatusIs(absl::StatusCode::kUnavailable));
  }

  void ExpectClientWorks() {
    EXPECT_THAT(client_->Set("still", "served", Soon()), IsOk());
    EXPECT_THAT(client_->Get("still", Soon()), IsOkAndHolds("served"));
  }

  std::unique_ptr<TcpStoreServer> server_;
  std::unique_ptr<TcpStoreClient> client_;
};

TEST_F(TcpStoreServerTest, UnauthenticatedPeersThatSendNonsenseAreDroppedWithAWarning) {
  Start({});
  LogLines log;
  for (const absl::string_view nonsense :
       {absl::string_view("GET / HTTP/1.1\r\n\r\n"), absl::string_view("\0", 1), absl::string_view("LKSX")}) {
    const UniqueFd peer = ConnectUnauthenticated();
    Send(peer, nonsense);
    ExpectClosedByServer(peer);
  }
  ExpectClientWorks();
  EXPECT_THAT(log.lines(), Contains(AllOf(HasSubstr("connection from 127.0.0.1:"), HasSubstr("no client of this store"),
                                          HasSubstr("GET / HT"))));
}

TEST_F(TcpStoreServerTest, SilentAndHalfFinishedHandshakesAreDroppedInTime) {
  TcpStoreServer::Options options;
  options.hello_timeout = std::chrono::milliseconds(20);
  Start(options);
  LogLines log;
  const UniqueFd silent = ConnectUnauthenticated();
  const UniqueFd half = ConnectUnauthenticated();
  Send(half, "LKST\x01");
  ExpectClosedByServer(silent);
  ExpectClosedByServer(half);
  ExpectClientWorks();
  EXPECT_THAT(log.lines(), Contains(HasSubstr("silent for 20 ms")));
}

TEST_F(TcpStoreServerTest, AnotherVersionIsToldOursAndDropped) {
  Start({});
  const UniqueFd peer = ConnectUnauthenticated();
  Send(peer, absl::string_view("LKST\x09\0\0\0", 8));
  char reply[kStoreHelloBytes];
  ASSERT_THAT(ReceiveAll(peer.get(), reply, sizeof(reply), Soon()), IsOk());
  EXPECT_EQ(std::string(reply, sizeof(reply)), StoreServerHello(StoreVerdict::kVersionNotSpoken));
  ExpectClosedByServer(peer);
  ExpectClientWorks();
}

TEST_F(TcpStoreServerTest, AnImpossibleRequestEndsOnlyItsOwnConnection) {
  Start({});
  std::string huge = EncodeStoreRequest({{StoreOp::kGet, "k"}});
  StoreLittleEndian<uint32_t>(0xfffffff0, &huge[20]);
  const UniqueFd liar = ConnectWithHello();
  Send(liar, huge);
  ExpectClosedByServer(liar);
  ExpectClientWorks();
}

TEST_F(TcpStoreServerTest, HalfARequestHoldsUpNobodyAndIsForgotten) {
  Start({});
  const std::string bytes = EncodeStoreRequest({{StoreOp::kSet, "half", "value"}});
  UniqueFd half = ConnectWithHello();
  Send(half, absl::string_view(bytes).substr(0, bytes.size() - 1));
  ExpectClientWorks();
  half.reset();
  ExpectClientWorks();
  EXPECT_THAT(client_->Get("half", Soon()), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(TcpStoreServerTest, RequestsInOneSegmentAndByteByByteAreTheSame) {
  Start({});
  const std::string requests =
      EncodeStoreRequest({{StoreOp::kSet, "k", "v"}, 1}) + EncodeStoreRequest({{StoreOp::kGet, "k"}, 2});
  const std::string expected = EncodeStoreReply({1}) + EncodeStoreReply({2, absl::StatusCode::kOk, "v"});

  const UniqueFd at_once = ConnectWithHello();
  Send(at_once, requests);
  const UniqueFd in_pieces = ConnectWithHello();
  for (const char byte : requests) Send(in_pieces, absl::string_view(&byte, 1));
  for (const UniqueFd* socket : {&at_once, &in_pieces}) {
    std::string reply(expected.size(), '\0');
    ASSERT_THAT(ReceiveAll(socket->get(), &reply[0], reply.size(), Soon()), IsOk());
    EXPECT_EQ(reply, expected);
  }
}

TEST_F(TcpStoreServerTest, AClientThatDoesNotReadHoldsUpNobodyAndGetsEverythingLater) {
  Start({});
  const std::string big(kStoreValueBytesMax, 'b');
  ASSERT_THAT(client_->Set("big", big, Soon()), IsOk());
  // More than the server queues for one client, so it stops listening to this one half way.
  constexpr int kRequests = 8;
  const UniqueFd sloth = ConnectWithHello();
  for (uint64_t i = 0; i < kRequests; ++i) Send(sloth, EncodeStoreRequest({{StoreOp::kGet, "big"}, i}));
  ExpectClientWorks();
  std::string reply(EncodeStoreReply(StoreReply()).size() + big.size(), '\0');
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_THAT(ReceiveAll(sloth.get(), &reply[0], reply.size(), Soon()), IsOk()) << i;
    EXPECT_EQ(LoadLittleEndian<uint64_t>(reply.data()), static_cast<uint64_t>(i));
  }
}

TEST_F(TcpStoreServerTest, ConnectionsBeyondTheLimitAreRefused) {
  TcpStoreServer::Options options;
  options.clients_max = 2;
  Start(options);
  UniqueFd second = ConnectWithHello();
  LogLines log;
  const UniqueFd third = ConnectUnauthenticated();
  ExpectClosedByServer(third);
  ExpectClientWorks();
  EXPECT_THAT(log.lines(), Contains(HasSubstr("refused: there are 2 connections")));
  // A place becomes free when somebody leaves; the server may hear of the newcomer first.
  second.reset();
  EXPECT_THAT(TcpStoreClient::Connect(PortOf(server_->address()), Soon()), IsOk());
}

TEST_F(TcpStoreServerTest, AFullStoreSaysSo) {
  TcpStoreServer::Options options;
  options.bytes_max = 100;
  Start(options);
  EXPECT_THAT(client_->Set("k", std::string(100, 'x'), Soon()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 100 bytes")));
  ExpectClientWorks();
}

TEST_F(TcpStoreServerTest, ServerThatStopsEndsWaitsAtOnce) {
  Start({});
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto other, TcpStoreClient::Connect(PortOf(server_->address()), Soon()));
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

TEST_F(TcpStoreServerTest, AForkedChildHoldsNoConnectionAndIsToldSo) {
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
  std::thread connecting([&] { client = TcpStoreClient::Connect(PortOf(address), Soon()); });
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
  EXPECT_THAT(TcpStoreClient::Connect({"localhost", server->address().port()}, Soon()), IsOk());
}

// Something that listens but is no store server of ours: the test says what it answers.
class Impostor {
 public:
  Impostor() : listener_(*Listen(Loopback())) {}

  HostPort port() const { return PortOf(*LocalAddress(listener_.get())); }

  void AcceptAndSend(absl::string_view bytes) {
    pollfd entry = {listener_.get(), POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, Soon().remaining_ms()), 1);
    connection_ = *Accept(listener_.get(), nullptr);
    ASSERT_THAT(SendAll(connection_.get(), bytes.data(), bytes.size(), Soon()), IsOk());
  }

  std::string Receive(size_t bytes) {
    std::string received(bytes, '\0');
    EXPECT_THAT(ReceiveAll(connection_.get(), &received[0], bytes, Soon()), IsOk());
    return received;
  }

  // A client that took this for its server.
  absl::StatusOr<std::unique_ptr<TcpStoreClient>> ConnectClient(absl::string_view hello, Deadline deadline) {
    std::thread accepting([&] { AcceptAndSend(hello); });
    auto client = TcpStoreClient::Connect(port(), deadline);
    accepting.join();
    return client;
  }

  UniqueFd& connection() { return connection_; }

 private:
  UniqueFd listener_;
  UniqueFd connection_;
};

TEST(TcpStoreClient, WhatIsNoStoreIsFailedPrecondition) {
  Impostor impostor;
  EXPECT_THAT(impostor.ConnectClient("SSH-2.0-OpenSSH\r\n", Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("no Lockstep store"), HasSubstr("SSH-2.0-"), HasSubstr("something else"))));
}

TEST(TcpStoreClient, AnotherVersionIsFailedPreconditionWithBothVersions) {
  Impostor impostor;
  EXPECT_THAT(impostor.ConnectClient(absl::string_view("LKST\x09\0\x01\0", 8), Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("speaks version 9, this client 1")));
}

TEST(TcpStoreClient, SilenceAfterConnectingMeetsTheDeadline) {
  Impostor impostor;
  EXPECT_THAT(impostor.ConnectClient("", Deadline::AfterMs(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("handshake with ")));
}

TEST(TcpStoreClient, NonsenseFromTheServerEndsTheConnection) {
  Impostor impostor;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto client,
                                impostor.ConnectClient(StoreServerHello(StoreVerdict::kWelcome), Soon()));
  const std::string nonsense(64, '\xff');
  ASSERT_THAT(SendAll(impostor.connection().get(), nonsense.data(), nonsense.size(), Soon()), IsOk());
  EXPECT_THAT(client->Get("k", Soon()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nonsense")));
  EXPECT_THAT(client->Get("k", Soon()), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("nonsense")));
}

TEST(TcpStoreClient, ARequestCutShortByItsDeadlineDoesNotSpoilTheNext) {
  Impostor impostor;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto client,
                                impostor.ConnectClient(StoreServerHello(StoreVerdict::kWelcome), Soon()));
  ASSERT_EQ(impostor.Receive(kStoreHelloBytes), StoreClientHello());
  const std::string big(kStoreValueBytesMax, 'b');
  ASSERT_THAT(client->Set("big", big, Deadline::AfterMs(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'big'")));

  absl::StatusOr<std::string> value = absl::UnknownError("not run");
  std::thread getting([&] { value = client->Get("small", Soon()); });
  StoreRequest first;
  const std::string first_bytes = impostor.Receive(28 + 3 + big.size());
  EXPECT_THAT(ParseStoreRequest(first_bytes, &first), IsOkAndHolds(first_bytes.size()));
  EXPECT_EQ(first.key, "big");
  StoreRequest second;
  const std::string second_bytes = impostor.Receive(28 + 5);
  ASSERT_THAT(ParseStoreRequest(second_bytes, &second), IsOkAndHolds(second_bytes.size()));
  EXPECT_EQ(second.key, "small");
  // The first answers a call that has returned.
  const std::string replies =
      EncodeStoreReply({first.id}) + EncodeStoreReply({second.id, absl::StatusCode::kOk, "value"});
  ASSERT_THAT(SendAll(impostor.connection().get(), replies.data(), replies.size(), Soon()), IsOk());
  getting.join();
  EXPECT_THAT(value, IsOkAndHolds("value"));
}

}  // namespace
}  // namespace lockstep

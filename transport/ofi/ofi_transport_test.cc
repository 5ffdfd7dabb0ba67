// What is the libfabric transport's own, over a provider that runs on any machine: hellos that do not fit, unauthenticated peers,
// garbage, processes that are not there. tests/transport_conformance.h has what every transport promises,
// fake_provider_test.cc providers that are difficult.

#include "transport/ofi/ofi_transport.h"

#include <rdma/fabric.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/net/socket.h"
#include "transport/ofi/endpoint.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/provider.h"
#include "transport/ofi/wire.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using Code = absl::StatusCode;

// The best one here for TCP.
const std::string& Provider() {
  static const std::string* const name = [] {
    OfiRequest request;
    request.provider = "tcp";
    request.address = OfiTestAddress();
    const auto api = Ofi();
    const absl::StatusOr<OfiProvider> best = api.ok() ? FindProvider(**api, request) : api.status();
    return new std::string(best.ok() ? best->info->fabric_attr->prov_name : "tcp");
  }();
  return *name;
}

// The provider's own part of an address.
std::string NameOf(const std::string& address) { return DecodeOfiName(address.substr(address.find(' ') + 1)); }

class OfiTransportTest : public TransportWorldTest<OfiTransport> {
 protected:
  // Not in SetUp, so that a test says what it wants. False when the test is to end.
  bool Create(
      int size, const std::function<void(OfiTransportOptions*)>& change = [](OfiTransportOptions*) {},
      const std::string& provider = Provider()) {
    return Take(UnavailableIfNotFound(CreateOfiWorld(size, provider, change)));
  }
};

TEST_F(OfiTransportTest, CreationSaysWhatIsWrong) {
  if (!Create(1)) return;
  const auto create = [](const std::function<void(OfiTransportOptions*)>& change) {
    OfiTransportOptions options = OfiTestOptions(0, 2, Provider());
    change(&options);
    return OfiTransport::Create(options).status();
  };
  EXPECT_THAT(create([](auto* o) { o->size = 0; }), StatusIs(Code::kInvalidArgument, HasSubstr("world of 0")));
  EXPECT_THAT(create([](auto* o) { o->rank = Rank(2); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 2 in a world of 2")));
  EXPECT_THAT(create([](auto* o) { o->job_id = std::string(1025, 'j'); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("1025 bytes")));
  EXPECT_THAT(create([](auto* o) { o->staging_pieces = 1; }), StatusIs(Code::kInvalidArgument, HasSubstr("pieces")));
  EXPECT_THAT(create([](auto* o) { o->bind_address = "192.0.2.77:0"; }),
              StatusIs(Code::kNotFound, HasSubstr("is not at 192.0.2.77")));
  EXPECT_THAT(create([](auto* o) { o->provider = "nobody's"; }),
              StatusIs(Code::kNotFound, AllOf(HasSubstr("(nobody's)"), HasSubstr("tcp;ofi_rxm"))));
}

TEST_F(OfiTransportTest, TellsItsProviderAndWhyNoOther) {
  if (!Create(2)) return;
  EXPECT_EQ(rank(0)->agreed(), Provider());
  EXPECT_THAT(rank(0)->address(), MatchesRegex(absl::StrCat(Provider(), " [0-9a-f]+")));
  EXPECT_THAT(rank(0)->DescribePeer(Rank(1)),
              MatchesRegex(absl::StrCat("ofi ", Provider(), " 127\\.0\\.0\\.1:[0-9]+")));
  EXPECT_THAT(rank(0)->DescribeChoice(),
              AllOf(testing::StartsWith(absl::StrCat("providers of libfabric:\n", Provider(), " ")),
                    HasSubstr(" 127.0.0.1: chosen\n"), HasSubstr(": is not ")));
}

TEST_F(OfiTransportTest, AddressesMustBeThoseOfTheWorldAndOfOneProvider) {
  if (!Create(2)) return;
  OfiTransportOptions options = OfiTestOptions(0, 2, Provider());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto other, OfiTransport::Create(options));
  EXPECT_THAT(other->SetPeers({other->address()}), StatusIs(Code::kInvalidArgument, HasSubstr("1 addresses")));
  EXPECT_THAT(
      other->SetPeers({other->address(), "efa 0011"}),
      StatusIs(Code::kFailedPrecondition, AllOf(HasSubstr(absl::StrCat("rank 0 uses ", Provider(), " and rank 1 efa")),
                                                HasSubstr("LOCKSTEP_OFI_PROVIDER"))));
  EXPECT_THAT(other->SetPeers({other->address(), ""}),
              StatusIs(Code::kFailedPrecondition, HasSubstr("rank 1 no provider")));
  EXPECT_THAT(other->SetPeers({other->address(), absl::StrCat(Provider(), " 0011")}),
              StatusIs(Code::kInvalidArgument, AllOf(HasSubstr("rank 1"), HasSubstr("no address of this provider"))));
  TestOperation send;
  other->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("before SetPeers")));
}

// What the peer sends on wakes nobody, though the endpoint may be one that cannot be closed.
TEST_F(OfiTransportTest, WhoAbortsInTheMiddleOfAMessageSleeps) {
  if (!Create(2)) return;
  const std::vector<unsigned char> data(64 << 20, 1);
  std::vector<unsigned char> target(data.size());
  TestOperation send, receive;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  ASSERT_TRUE(DriveAll([&] { return target.front() == 1; }));
  rank(1)->Abort(absl::AbortedError("enough"));
  EXPECT_THAT(receive.status, StatusIs(Code::kAborted, HasSubstr("enough")));
  for (int i = 0; i < 1000; ++i) rank(0)->Progress();
  const Deadline deadline = Deadline::AfterMs(500);
  int wakes = 0;
  for (; !deadline.passed(); ++wakes) {
    rank(1)->Progress();
    rank(1)->WaitForEvent(deadline);
  }
  EXPECT_LT(wakes, 50) << "a tick comes every 50 ms";
}

TEST_F(OfiTransportTest, WhoDoesNotFitIsRefusedAndToldWhyWhileTheOthersGoOn) {
  struct Case {
    const char* message;
    void (*change)(OfiTransportOptions* options);
  };
  for (const Case& c : {Case{"it belongs to another job than 'stray'", [](auto* o) { o->job_id = "stray"; }},
                        Case{"it belongs to another world", [](auto* o) { o->world_id = 18; }},
                        Case{"it cuts messages into 1048576 bytes", [](auto* o) { o->chunk_bytes = 1 << 18; }}}) {
    if (!Create(3, [&](OfiTransportOptions* options) {
          if (options->rank == Rank(1)) c.change(options);
        })) {
      return;
    }
    ExpectExchange(0, 2);
    EXPECT_THAT(SendStatus(1, 0),
                StatusIs(Code::kFailedPrecondition,
                         AllOf(HasSubstr(absl::StrCat("send to rank 0 over ofi ", Provider(), " 127.0.0.1:")),
                               HasSubstr("the peer refused the connection"), HasSubstr(c.message))));
    ExpectExchange(0, 2, 5);
  }
}

TEST_F(OfiTransportTest, ASecondProcessOfTheSameRankIsRefused) {
  if (!Create(2)) return;
  ExpectExchange(1, 0);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto second, OfiTransport::Create(OfiTestOptions(1, 2, Provider())));
  ASSERT_THAT(second->SetPeers({rank(0)->address(), second->address()}), IsOk());
  TestOperation send;
  second->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &send);
  ranks_.push_back(std::move(second));
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("another process has this rank already")));
  ExpectExchange(1, 0, 3);
}

TEST_F(OfiTransportTest, WhatUnauthenticatedPeersSendReachesNobody) {
  if (!Create(2)) return;
  ExpectExchange(0, 1);
  OfiOutsider outsider(*Ofi(), Provider());
  const std::vector<unsigned char> noise = TestPayload(20'000, 1);
  const std::string bytes(noise.begin(), noise.end());
  std::vector<unsigned char> target(16, 0xab);
  TestOperation receive;
  rank(1)->Receive(Rank(0), 7, TestEnvelope(1), CopySink(&target), &receive);
  for (int kind = 0; kind < 256; kind += kind < 12 ? 1 : 61) {
    const uint64_t tag = OfiNoticeTag(static_cast<OfiKind>(kind), 7);
    for (size_t length : {size_t{0}, size_t{10}, kOfiNoticeBytes, kOfiNoticeBytes + 16, kOfiSlotBytes, noise.size()}) {
      outsider.Say(rank(1)->address(), tag, bytes.substr(0, length));
    }
  }
  ASSERT_TRUE(DriveAll([&] { return outsider.said_all(); }));
  EXPECT_FALSE(receive.done());
  ExpectExchange(0, 1, 3);
  ExpectExchange(1, 0, 4);
  EXPECT_EQ(target, std::vector<unsigned char>(16, 0xab));
  ranks_.clear();
  EXPECT_EQ(receive.completions, 1);
}

TEST_F(OfiTransportTest, GarbageOnTheProvidersPortStopsNobody) {
  if (!Create(3)) return;
  ExpectExchange(0, 1);
  const std::string name = NameOf(rank(0)->address());
  const SocketAddress port =
      SocketAddress::From(reinterpret_cast<const sockaddr*>(name.data()), static_cast<socklen_t>(name.size()));
  std::vector<UniqueFd> open;
  for (int i = 0; i < 20; ++i) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd socket, Connect(port, TestDeadline()));
    const std::vector<unsigned char> noise = TestPayload(i * 50, i);
    (void)!send(socket.get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (i % 2 == 0) open.push_back(std::move(socket));
    rank(0)->Progress();
  }
  ExpectExchange(0, 1, 1);
  ExpectExchange(2, 0, 2);  // a new connection
}

TEST_F(OfiTransportTest, NobodyAtTheAddressIsUnavailable) {
  constexpr std::chrono::milliseconds kConnectTimeout(3000);  // which ranks that are there must keep
  if (!Create(3, [&](OfiTransportOptions* o) { o->connect_timeout = kConnectTimeout; })) return;
  ranks_[1] = nullptr;
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ExpectExchange(0, 2);
  ASSERT_TRUE(Await(rank(0), [&] { return send.done(); }));
  EXPECT_THAT(send.status,
              StatusIs(Code::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat("send to rank 1 over ofi ", Provider(), " 127.0.0.1:")),
                             HasSubstr(absl::StrCat("no answer within ", kConnectTimeout.count(), " ms")))));
}

TEST_F(OfiTransportTest, ConnectMakesAllWaysOrSaysWhichIsMissing) {
  if (!Create(4)) return;
  RunRanks(ranks_, [](OfiTransport* rank) { EXPECT_THAT(rank->Connect(TestDeadline(), absl::OkStatus), IsOk()); });
  // Nobody drives rank 3, and still it can be sent to.
  TestOperation send;
  rank(0)->Send(Rank(3), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(Await(rank(0), [&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto lonely, OfiTransport::Create(OfiTestOptions(0, 2, Provider())));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto gone, OfiTransport::Create(OfiTestOptions(1, 2, Provider())));
  ASSERT_THAT(lonely->SetPeers({lonely->address(), gone->address()}), IsOk());
  gone = nullptr;
  EXPECT_THAT(lonely->Connect(Deadline::AfterMs(50), absl::OkStatus),
              StatusIs(Code::kDeadlineExceeded,
                       HasSubstr(absl::StrCat("connecting to rank 1 over ofi ", Provider(), " 127.0.0.1:"))));
}

TEST_F(OfiTransportTest, ManyChannelsAtOnce) {
  if (!Create(2)) return;
  constexpr int kChannels = 500;
  std::deque<TestOperation> operations;
  std::vector<std::vector<unsigned char>> sent, received(2 * kChannels);
  for (int i = 0; i < 2 * kChannels; ++i) sent.push_back(TestPayload(i % 4 == 0 ? 20'000 : i, i));
  for (int i = 0; i < 2 * kChannels; ++i) {
    const int from = i % 2;
    rank(from)->Send(Rank(1 - from), i / 2, TestEnvelope(1), sent[i].data(), sent[i].size(),
                     &operations.emplace_back());
  }
  for (int i = 2 * kChannels - 1; i >= 0; --i) {
    received[i].resize(sent[i].size());
    rank(1 - i % 2)->Receive(Rank(i % 2), i / 2, TestEnvelope(1), CopySink(&received[i]), &operations.emplace_back());
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(operations); }));
  for (const TestOperation& operation : operations) EXPECT_THAT(operation.status, IsOk());
  EXPECT_TRUE(received == sent);
}

TEST_F(OfiTransportTest, AForkedChildHasNoUseOfItAndDoesNotDisturbTheParent) {
  if (Create(2)) ExpectUselessAfterFork();
}

// Some milliseconds a message: enough to see that it works.
TEST_F(OfiTransportTest, TheProviderSocketsPassesMessages) {
  if (!Create(
          2, [](OfiTransportOptions*) {}, "sockets"))
    return;
  for (size_t bytes : {0, 100, 100'000}) {
    const std::vector<unsigned char> data = TestPayload(bytes, 1);
    std::vector<unsigned char> target(bytes);
    EXPECT_THAT(Exchange(0, 1, 0, data.data(), target.data(), bytes), IsOk());
    EXPECT_TRUE(target == data);
  }
}

}  // namespace
}  // namespace lockstep

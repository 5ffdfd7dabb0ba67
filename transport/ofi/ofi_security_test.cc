// Who is let in over libfabric: ranks that have the world's secret and belong there, whatever else is said on the fabric.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/net/little_endian.h"
#include "transport/ofi/fake_provider.h"
#include "transport/ofi/ofi_testing.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/ofi/wire.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

class OfiSecurityTest : public TransportWorldTest<OfiTransport>, public testing::WithParamInterface<SecurityLevel> {
 protected:
  // In place of the world that there was. Ranks have the parameter's level unless `change` says otherwise.
  void Create(
      int size, const FakeProviderOptions& fake = {},
      const std::function<void(OfiTransportOptions*)>& change = [](OfiTransportOptions*) {}) {
    NewProvider(fake);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateOfiWorld(size, "", [&](OfiTransportOptions* options) {
                                    Prepare(options);
                                    change(options);
                                  }));
  }
  void NewProvider(const FakeProviderOptions& fake) {
    ranks_.clear();
    outsider_ = nullptr;
    fake_ = nullptr;
    fake_ = std::make_unique<FakeProvider>(fake);
  }
  void Prepare(OfiTransportOptions* options) {
    options->api = &fake_->api();
    options->credentials = OfiTestCredentials(GetParam());
  }

  // Rank 0 of two, of which the outsider has the address of rank 1.
  void CreateWithOutsider(std::chrono::milliseconds connect_timeout = std::chrono::seconds(30),
                          const FakeProviderOptions& fake = {}) {
    NewProvider(fake);
    outsider_ = std::make_unique<OfiOutsider>(&fake_->api(), "");
    OfiTransportOptions options = OfiTestOptions(0, 2);
    Prepare(&options);
    options.connect_timeout = connect_timeout;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<OfiTransport> transport, OfiTransport::Create(options));
    ranks_.push_back(std::move(transport));
    ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), outsider_->address()}), IsOk());
  }
  // Until the outsider has heard so many notices.
  bool AwaitHeard(size_t notices) {
    return DriveAll([&] { return outsider_->heard().size() >= notices; });
  }
  // Until rank 0 has seen all that the outsider has said.
  void LetRankZeroSee() {
    ASSERT_TRUE(DriveAll([&] { return outsider_->said_all(); }));
    for (int i = 0; i < 100; ++i) rank(0)->Progress();
  }
  void Say(OfiKind kind, uint64_t token, uint32_t number, const std::string& payload) {
    OfiNotice notice;
    notice.token = token;
    notice.number = number;
    outsider_->Say(rank(0)->address(), kind, notice, payload);
  }

  // What rank 1 would say of itself.
  static OfiHandshake HandshakeOfRankOne() {
    const WorldIdentity self = TestIdentity(1, 2);
    OfiHandshake handshake;
    handshake.token = 0x1122334455667788;
    handshake.world_id = self.world_id;
    handshake.source = 1;
    handshake.world_size = 2;
    handshake.target = 0;
    handshake.chunk_bytes = self.chunk_bytes;
    handshake.job_id = self.job_id;
    handshake.provider = "fake";
    return handshake;
  }

  // The outsider as rank 1, with the secret: what it said, and what it was answered.
  struct Met {
    std::string hello, confirm;
    OfiAnswer answer;
  };
  Met Meet(uint64_t exchange, const OfiHandshake& handshake) {
    Met met;
    Channel channel(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
    OfiHello hello;
    hello.address = outsider_->name();
    hello.flight = channel.Start();
    met.hello = EncodeOfiHello(hello);
    const size_t heard = outsider_->heard().size();
    Say(OfiKind::kHello, exchange, 1, met.hello);
    if (!AwaitHeard(heard + 1)) return met;
    EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kWelcome);
    std::string plain;
    EXPECT_THAT(channel.Receive(outsider_->heard().back().payload, &plain, &met.confirm), IsOk());
    channel.Send(EncodeOfiHandshake(handshake), &met.confirm);
    Say(OfiKind::kConfirm, exchange, 1, met.confirm);
    if (!AwaitHeard(heard + 2)) return met;
    EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kAnswer);
    EXPECT_EQ(outsider_->heard().back().notice.token, exchange);
    std::string nothing;
    EXPECT_THAT(channel.Receive(outsider_->heard().back().payload, &plain, &nothing), IsOk());
    EXPECT_TRUE(DecodeOfiAnswer(plain, &met.answer));
    return met;
  }

  std::unique_ptr<FakeProvider> fake_;
  std::unique_ptr<OfiOutsider> outsider_;

 public:
  ~OfiSecurityTest() override {
    ranks_.clear();
    outsider_ = nullptr;
  }
};

std::string LevelName(const testing::TestParamInfo<SecurityLevel>& info) { return Name(info.param); }
constexpr SecurityLevel kLevels[] = {SecurityLevel::kNone, SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt};
INSTANTIATE_TEST_SUITE_P(Levels, OfiSecurityTest, testing::ValuesIn(kLevels), LevelName);

// Where there is a secret.
class OfiSecretTest : public OfiSecurityTest {};
INSTANTIATE_TEST_SUITE_P(Levels, OfiSecretTest, testing::Values(SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt),
                         LevelName);

TEST_P(OfiSecretTest, WhoHasAnotherSecretIsRefusedBothWaysAndSaysSo) {
  for (const int begins : {0, 1}) {
    Create(3, {}, [](OfiTransportOptions* options) {
      if (options->rank == Rank(1)) options->credentials = OfiTestCredentials(GetParam(), 'x');
    });
    const int other = 1 - begins;
    EXPECT_THAT(
        SendStatus(begins, other),
        StatusIs(Code::kPermissionDenied,
                 AllOf(HasSubstr(absl::StrCat("send to rank ", other, " over ofi fake ")),
                       HasSubstr("does not have the secret"), HasSubstr(begins == 1 ? "a test of x" : "a test of s"))));
    EXPECT_EQ(rank(other)->refusals().count(Refusal::kNoSecret), 1u);
    EXPECT_EQ(rank(other)->refusals().total(), 1u);
    EXPECT_EQ(rank(begins)->refusals().total(), 0u);
    ExpectExchange(0, 2);
    ExpectExchange(2, 0);
  }
}

TEST_P(OfiSecurityTest, WhoHasAnotherLevelIsRefusedBothWaysAndSaysSo) {
  for (const SecurityLevel level : kLevels) {
    if (level == GetParam()) continue;
    for (const int begins : {0, 1}) {
      Create(2, {}, [level](OfiTransportOptions* options) {
        if (options->rank == Rank(1)) options->credentials = OfiTestCredentials(level);
      });
      const char* const own = Name(begins == 1 ? level : GetParam());
      const char* const peers = Name(begins == 1 ? GetParam() : level);
      EXPECT_THAT(SendStatus(begins, 1 - begins),
                  StatusIs(Code::kPermissionDenied,
                           AllOf(HasSubstr(absl::StrCat("send to rank ", 1 - begins, " over ofi fake ")),
                                 HasSubstr(absl::StrCat("another security level: ", peers, ", not ", own)))));
      EXPECT_EQ(rank(1 - begins)->refusals().count(Refusal::kOtherLevel), 1u);
    }
  }
}

// Both ranks begin, in every order in which a fabric may deliver that. What is left of the slower handshake is nobody's fault.
TEST_P(OfiSecurityTest, HandshakesThatCrossMakeOneConnection) {
  constexpr std::chrono::milliseconds kConnectTimeout(2000);  // which a handshake must keep
  for (int round = 0; round < 20; ++round) {
    FakeProviderOptions fake;
    fake.scramble = round % 2 == 1;
    fake.refusals = round % 4;
    Create(2, fake, [&](OfiTransportOptions* options) { options->connect_timeout = kConnectTimeout; });
    char targets[2][2] = {};
    TestOperation sends[4], receives[4];
    for (int i = 0; i < 4; ++i) {
      const int self = i % 2;
      rank(self)->Send(Rank(1 - self), i / 2, TestEnvelope(1), self == 0 ? "a" : "b", 1, &sends[i]);
      rank(1 - self)->Receive(Rank(self), i / 2, TestEnvelope(1), {&targets[self][i / 2], 1}, &receives[i]);
      // Some rounds let one of them go ahead.
      for (int step = 0; step < round / 4; ++step) rank(self)->Progress();
    }
    ASSERT_TRUE(DriveAll([&] { return AllDone(sends) && AllDone(receives); }));
    for (int i = 0; i < 4; ++i) {
      EXPECT_THAT(sends[i].status, IsOk());
      EXPECT_THAT(receives[i].status, IsOk());
      EXPECT_EQ(targets[i % 2][i / 2], i % 2 == 0 ? 'a' : 'b');
    }
    ExpectExchange(0, 1, 3);
    ExpectExchange(1, 0, 3);
    if (round > 1) continue;
    const Deadline over = Deadline::After(kConnectTimeout + std::chrono::milliseconds(100));
    while (!over.passed()) {
      rank(round)->Progress();
      rank(round)->WaitForEvent(over);
    }
    EXPECT_EQ(rank(round)->refusals().Describe(), "");
    ExpectExchange(0, 1, 4);
  }
}

TEST_P(OfiSecurityTest, WhoKnowsNoAddressesYetAnswersLater) {
  NewProvider({});
  std::vector<std::string> addresses;
  for (int i = 0; i < 2; ++i) {
    OfiTransportOptions options = OfiTestOptions(i, 2);
    Prepare(&options);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<OfiTransport> transport, OfiTransport::Create(options));
    addresses.push_back(transport->address());
    ranks_.push_back(std::move(transport));
  }
  ASSERT_THAT(rank(0)->SetPeers(addresses), IsOk());
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  for (int i = 0; i < 100; ++i) {
    rank(0)->Progress();
    rank(1)->Progress();
  }
  EXPECT_FALSE(send.done());
  ASSERT_THAT(rank(1)->SetPeers(addresses), IsOk());
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());
}

TEST_P(OfiSecurityTest, TheLongestJobIdFits) {
  Create(2, {}, [](OfiTransportOptions* options) { options->job_id = std::string(kOfiJobIdBytesMax, 'j'); });
  ExpectExchange(0, 1);
}

std::string Bytes(uint64_t number) {
  std::string bytes;
  AppendLittleEndian(&bytes, number);
  return bytes;
}

TEST_P(OfiSecurityTest, TokensAreNotToBeSeenWhereThereIsASecret) {
  CreateWithOutsider();
  const OfiHandshake handshake = HandshakeOfRankOne();
  const Met met = Meet(/*exchange=*/5, handshake);
  ASSERT_EQ(met.answer.refusal.verdict, OfiVerdict::kAccepted);
  std::string heard;
  for (const OfiOutsider::Heard& one : outsider_->heard()) heard += one.payload;
  const bool secret = GetParam() != SecurityLevel::kNone;
  EXPECT_EQ(heard.find(Bytes(met.answer.token)) == std::string::npos, secret);
  EXPECT_EQ((met.hello + met.confirm).find(Bytes(handshake.token)) == std::string::npos, secret);

  // They are what makes the two ranks hear each other.
  char target = 0;
  TestOperation receive, send;
  rank(0)->Receive(Rank(1), 7, TestEnvelope(1), {&target, 1}, &receive);
  OfiNotice notice;
  notice.token = met.answer.token;
  notice.envelope = TestEnvelope(1);
  std::string message(kOfiNoticeBytes, '\0');
  EncodeOfiNotice(notice, reinterpret_cast<unsigned char*>(&message[0]));
  outsider_->Say(rank(0)->address(), OfiNoticeTag(OfiKind::kEager, 7), message + "y");
  ASSERT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_EQ(target, 'y');
  const size_t before = outsider_->heard().size();
  rank(0)->Send(Rank(1), 7, TestEnvelope(1), "z", 1, &send);
  ASSERT_TRUE(AwaitHeard(before + 1));
  for (size_t i = before; i < outsider_->heard().size(); ++i) {
    EXPECT_EQ(outsider_->heard()[i].notice.token, handshake.token);
  }
}

TEST_P(OfiSecretTest, AHandshakeThatIsPlayedAgainIsRefused) {
  CreateWithOutsider();
  const Met met = Meet(/*exchange=*/5, HandshakeOfRankOne());
  ASSERT_EQ(met.answer.refusal.verdict, OfiVerdict::kAccepted);
  const size_t heard = outsider_->heard().size();
  Say(OfiKind::kHello, 5, 1, met.hello);
  Say(OfiKind::kHello, 5, 1, met.hello);
  ASSERT_TRUE(AwaitHeard(heard + 1));
  Say(OfiKind::kConfirm, 5, 1, met.confirm);
  LetRankZeroSee();
  EXPECT_EQ(outsider_->heard().size(), heard + 1) << "one welcome, and no answer";
  EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kWelcome);
  EXPECT_EQ(rank(0)->refusals().total(), 1u) << rank(0)->refusals().Describe();
}

// The handshake says who somebody is, and the notices around it cannot say otherwise.
TEST_P(OfiSecurityTest, WhoHasTheSecretIsWhoItSaysOrIsRefused) {
  struct Case {
    void (*change)(OfiHandshake* handshake);
    OfiVerdict verdict;
  };
  for (const Case& c : {Case{[](auto* h) { h->source = 0; }, OfiVerdict::kNoSuchRank},
                        Case{[](auto* h) { h->source = 2; }, OfiVerdict::kNoSuchRank},
                        Case{[](auto* h) { h->target = 1; }, OfiVerdict::kOtherRank},
                        Case{[](auto* h) { h->world_id ^= 1; }, OfiVerdict::kOtherWorld},
                        Case{[](auto* h) { h->job_id = "other"; }, OfiVerdict::kOtherJob}}) {
    CreateWithOutsider();
    OfiHandshake handshake = HandshakeOfRankOne();
    c.change(&handshake);
    const Met met = Meet(/*exchange=*/5, handshake);
    EXPECT_EQ(met.answer.refusal.verdict, c.verdict);
    EXPECT_EQ(met.answer.token, 0u);
    EXPECT_EQ(rank(0)->refusals().count(Refusal::kOtherWorld), 1u);
    EXPECT_EQ(Meet(/*exchange=*/6, HandshakeOfRankOne()).answer.refusal.verdict, OfiVerdict::kAccepted);
  }
}

// At an address that the others were not told.
TEST_P(OfiSecurityTest, WhoIsElsewhereThanItsRankIsRefused) {
  Create(2);
  outsider_ = std::make_unique<OfiOutsider>(&fake_->api(), "");
  EXPECT_EQ(Meet(/*exchange=*/5, HandshakeOfRankOne()).answer.refusal.verdict, OfiVerdict::kDuplicate);
  ExpectExchange(0, 1);
  EXPECT_EQ(Meet(/*exchange=*/6, HandshakeOfRankOne()).answer.refusal.verdict, OfiVerdict::kDuplicate);
  ExpectExchange(1, 0);
}

TEST_P(OfiSecurityTest, RandomNoticesReachNobody) {
  Create(2);
  ExpectExchange(0, 1);
  outsider_ = std::make_unique<OfiOutsider>(&fake_->api(), "");
  std::vector<unsigned char> target(16, 0xab);
  TestOperation receive;
  rank(0)->Receive(Rank(1), 7, TestEnvelope(1), CopySink(&target), &receive);
  uint32_t seed = 0;
  const auto noise = [&seed](size_t bytes) {
    const std::vector<unsigned char> payload = TestPayload(bytes, ++seed);
    return std::string(payload.begin(), payload.end());
  };
  uint64_t too_long = 0;
  for (int kind = 0; kind < 256; kind += kind < 14 ? 1 : 60) {
    const uint64_t tag = OfiNoticeTag(static_cast<OfiKind>(kind), 7);
    for (const size_t bytes : {size_t{0}, size_t{10}, kOfiNoticeBytes, kOfiNoticeBytes + 20, kOfiSlotBytes}) {
      outsider_->Say(rank(0)->address(), tag, noise(bytes));
    }
    outsider_->Say(rank(0)->address(), tag, noise(kOfiSlotBytes + 1));
    ++too_long;
  }
  LetRankZeroSee();
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kTooLong), too_long);
  const uint64_t noisy = rank(0)->refusals().total();
  EXPECT_GT(noisy, too_long);
  EXPECT_EQ(noisy, too_long + rank(0)->refusals().count(Refusal::kNotOurs));
  // What begins well.
  Channel channel(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  OfiHello hello;
  hello.address = outsider_->name();
  const std::string flight = channel.Start();
  for (size_t i = 0; i < flight.size(); ++i) {
    hello.flight = flight;
    hello.flight[i] = static_cast<char>(hello.flight[i] ^ (1 << i % 8));
    Say(OfiKind::kHello, 1000 + i, 1, EncodeOfiHello(hello));
    hello.flight = flight.substr(0, i) + noise(i % 50);
    Say(OfiKind::kHello, 2000 + i, i % 2 == 0 ? 1 : 0xffffffff, EncodeOfiHello(hello));
    Say(OfiKind::kConfirm, 1000 + i, 1, noise(i));
    hello.flight = flight;
    Say(OfiKind::kHello, 3000 + i, 1, EncodeOfiHello(hello));
    Say(OfiKind::kConfirm, 3000 + i, 1, noise(i));
  }
  LetRankZeroSee();
  EXPECT_GT(rank(0)->refusals().total(), noisy);
  EXPECT_FALSE(receive.done());
  EXPECT_EQ(target, std::vector<unsigned char>(16, 0xab));
  ExpectExchange(0, 1, 3);
  ExpectExchange(1, 0, 4);
  ranks_.clear();
  EXPECT_EQ(receive.completions, 1);
}

TEST_P(OfiSecurityTest, ARankKeepsItsToken) {
  CreateWithOutsider();
  OfiHandshake handshake = HandshakeOfRankOne();
  const OfiAnswer first = Meet(/*exchange=*/5, handshake).answer;
  EXPECT_EQ(first.refusal.verdict, OfiVerdict::kAccepted);
  const OfiAnswer again = Meet(/*exchange=*/6, handshake).answer;
  EXPECT_EQ(again.refusal.verdict, OfiVerdict::kAccepted);
  EXPECT_EQ(again.token, first.token);
  ++handshake.token;
  EXPECT_EQ(Meet(/*exchange=*/7, handshake).answer.refusal.verdict, OfiVerdict::kDuplicate);
}

// The rest of a handshake that another one made needless is not held against the peer.
TEST_P(OfiSecurityTest, AHandshakeIsGivenUpQuietlyOnceTheRanksHaveMet) {
  constexpr std::chrono::milliseconds kConnectTimeout(4000);  // in a quarter of which rank 0 is to be welcomed
  CreateWithOutsider(kConnectTimeout);
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(AwaitHeard(1));
  const uint64_t exchange = outsider_->heard().back().notice.token;
  OfiHello hello;
  ASSERT_TRUE(DecodeOfiHello(outsider_->heard().back().payload, &hello));

  Channel begun(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  OfiHello own_hello;
  own_hello.address = outsider_->name();
  own_hello.flight = begun.Start();
  Say(OfiKind::kHello, exchange + 1, 1, EncodeOfiHello(own_hello));
  ASSERT_TRUE(AwaitHeard(2));
  EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kWelcome);

  Channel channel(Purpose::kFabric, Channel::Side::kListens, OfiTestCredentials(GetParam()));
  std::string plain, flight, answer;
  EXPECT_THAT(channel.Receive(hello.flight, &plain, &flight), IsOk());
  Say(OfiKind::kWelcome, exchange, 1, flight);
  ASSERT_TRUE(AwaitHeard(3));
  EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kConfirm);
  EXPECT_THAT(channel.Receive(outsider_->heard().back().payload, &plain, &answer), IsOk());
  OfiHandshake handshake;
  ASSERT_TRUE(DecodeOfiHandshake(plain, &handshake));
  EXPECT_EQ(handshake.source, 0u);
  EXPECT_EQ(handshake.target, 1u);
  channel.Send(EncodeOfiAnswer({{}, /*token=*/77}), &answer);
  Say(OfiKind::kAnswer, exchange, 1, answer);
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());

  const Deadline over = Deadline::After(kConnectTimeout + std::chrono::milliseconds(100));
  while (!over.passed()) {
    rank(0)->Progress();
    rank(0)->WaitForEvent(over);
  }
  EXPECT_EQ(rank(0)->refusals().Describe(), "");
}

// In answer to a rank that begins.
TEST_P(OfiSecurityTest, AnswersOfWhoDoesNotKnowTheHelloAreNotHeard) {
  CreateWithOutsider();
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(AwaitHeard(1));
  const uint64_t exchange = outsider_->heard().back().notice.token;
  for (const OfiKind kind : {OfiKind::kWelcome, OfiKind::kAnswer, OfiKind::kRefused}) {
    Say(kind, exchange + 1, 1, std::string(20, 'x'));
    Say(kind, exchange, 0, std::string(20, 'x'));
    Say(kind, exchange, 77, std::string(20, 'x'));
  }
  Say(OfiKind::kAnswer, exchange, 1, std::string(20, '\0'));  // too early
  LetRankZeroSee();
  EXPECT_FALSE(send.done());
  Say(OfiKind::kWelcome, exchange, 1, std::string(20, 'x'));
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, StatusIs(Code::kPermissionDenied, HasSubstr("does not speak Lockstep's protocol")));
}

TEST_P(OfiSecurityTest, HandshakesThatAreNotFinishedAreFewAndEnd) {
  constexpr std::chrono::milliseconds kConnectTimeout(3000);  // which ranks that are there must keep
  Create(2, {}, [&](OfiTransportOptions* options) { options->connect_timeout = kConnectTimeout; });
  outsider_ = std::make_unique<OfiOutsider>(&fake_->api(), "");
  Channel channel(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  OfiHello hello;
  hello.address = outsider_->name();
  hello.flight = channel.Start();
  constexpr uint64_t kHellos = 100;
  for (uint64_t i = 0; i < kHellos; ++i) Say(OfiKind::kHello, 100 + i, 1, EncodeOfiHello(hello));
  LetRankZeroSee();
  EXPECT_GT(rank(0)->refusals().count(Refusal::kCrowded), 10u);
  ExpectExchange(1, 0);
  const uint64_t crowded = rank(0)->refusals().count(Refusal::kCrowded);
  for (uint64_t i = 0; i < kHellos; ++i) Say(OfiKind::kHello, 1000 + i, 7, EncodeOfiHello(hello));
  LetRankZeroSee();
  EXPECT_GT(rank(0)->refusals().count(Refusal::kCrowded), crowded);
  ASSERT_TRUE(Await(rank(0), [&] { return rank(0)->refusals().count(Refusal::kSilent) > 0; }));
  ExpectExchange(0, 1, 3);
}

// Rank 1 does not look at what comes, and the fabric has no room for more. Others say hello in its name, and the answers wait for it.
TEST_P(OfiSecurityTest, AnswersThatWaitForARankAreFew) {
  constexpr size_t kQueue = 16;
  FakeProviderOptions fake;
  fake.arriving_max = kQueue;
  CreateWithOutsider(std::chrono::seconds(30), fake);
  ASSERT_EQ(Meet(/*exchange=*/5, HandshakeOfRankOne()).answer.refusal.verdict, OfiVerdict::kAccepted);
  OfiOutsider others(&fake_->api(), "");
  uint64_t exchange = 1000;
  const auto say_often = [&](const std::string& payload) {
    for (int i = 0; i < 60; ++i) {
      OfiNotice notice;
      notice.token = ++exchange;
      notice.number = 1;
      others.Say(rank(0)->address(), OfiKind::kHello, notice, payload);
    }
    EXPECT_TRUE(DriveAll([&] { return others.said_all(); }));
    for (int i = 0; i < 100; ++i) rank(0)->Progress();
  };
  // What rank 1 hears until it has a message that rank 0 sends it now.
  const auto hear = [&] {
    const size_t before = outsider_->heard().size();
    TestOperation send;
    rank(0)->Send(Rank(1), 7, TestEnvelope(1), "x", 1, &send);
    EXPECT_TRUE(DriveAll(
        [&] { return outsider_->heard().size() > before && outsider_->heard().back().kind == OfiKind::kEager; }));
    const auto& heard = outsider_->heard();
    return std::vector<OfiOutsider::Heard>(heard.begin() + static_cast<ptrdiff_t>(before), heard.end());
  };
  const auto welcomes = [](uint64_t token) {
    return Contains(AllOf(Field(&OfiOutsider::Heard::kind, OfiKind::kWelcome),
                          Field(&OfiOutsider::Heard::notice, Field(&OfiNotice::token, token))));
  };
  const auto hello_with = [this](const std::string& flight) {
    OfiHello hello;
    hello.address = outsider_->name();
    hello.flight = flight;
    return EncodeOfiHello(hello);
  };
  std::string later;
  AppendLittleEndian(&later, kOfiMagic, uint32_t{9}, uint32_t{0});
  Channel copied(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  const std::string copy = hello_with(copied.Start()), of_others = hello_with("xxxxxxxx");
  constexpr size_t kRefusalsWaitingMax = 4, kWelcomesWaitingMax = 8;
  for (const auto& [payload, waiting_max] :
       {std::pair(later, kRefusalsWaitingMax), std::pair(hello_with(""), kRefusalsWaitingMax),
        std::pair(of_others, kRefusalsWaitingMax), std::pair(copy, kWelcomesWaitingMax)}) {
    say_often(payload);
    EXPECT_LE(hear().size(), kQueue + waiting_max + 1);
  }

  // Refusals leave room for rank 1's own handshake.
  Channel channel(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  const std::string own = hello_with(channel.Start());
  say_often(of_others);
  Say(OfiKind::kHello, /*token=*/6, 1, own);
  for (int i = 0; i < 100; ++i) rank(0)->Progress();
  EXPECT_THAT(hear(), welcomes(6));
  // Where copies of a first flight leave none, it says hello again.
  say_often(copy);
  Say(OfiKind::kHello, /*token=*/7, 1, own);
  for (int i = 0; i < 100; ++i) rank(0)->Progress();
  EXPECT_THAT(hear(), Not(welcomes(7)));
  const size_t heard = outsider_->heard().size();
  Say(OfiKind::kHello, /*token=*/7, 1, own);
  ASSERT_TRUE(AwaitHeard(heard + 1));
  EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kWelcome);
  EXPECT_EQ(outsider_->heard().back().notice.token, 7u);
}

// Rank 1 hears the hello before it can answer, and then too many others that claim to come from rank 0.
TEST_P(OfiSecurityTest, AHelloThatHadToMakeWayIsSaidAgain) {
  NewProvider({});
  std::vector<std::string> addresses;
  for (int i = 0; i < 2; ++i) {
    OfiTransportOptions options = OfiTestOptions(i, 2);
    Prepare(&options);
    options.connect_timeout = std::chrono::seconds(4);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<OfiTransport> transport, OfiTransport::Create(options));
    addresses.push_back(transport->address());
    ranks_.push_back(std::move(transport));
  }
  outsider_ = std::make_unique<OfiOutsider>(&fake_->api(), "");
  ASSERT_THAT(rank(0)->SetPeers(addresses), IsOk());
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  OfiHello hello;
  hello.address = fake_->addresses()[0];
  OfiNotice notice;
  for (notice.token = 100; notice.token < 200; ++notice.token) {
    outsider_->Say(addresses[1], OfiKind::kHello, notice, EncodeOfiHello(hello));
  }
  ASSERT_TRUE(Await(rank(1), [&] { return outsider_->said_all(); }));
  for (int i = 0; i < 100; ++i) rank(1)->Progress();
  EXPECT_GT(rank(1)->refusals().count(Refusal::kCrowded), 0u);
  ASSERT_THAT(rank(1)->SetPeers(addresses), IsOk());
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status, IsOk());
}

// Though they say that they are where it is, so that its address has the most.
TEST_P(OfiSecretTest, AHandshakeThatHasBegunWellDoesNotMakeWay) {
  CreateWithOutsider();
  const std::string name = outsider_->name();
  Channel channel(Purpose::kFabric, Channel::Side::kConnects, OfiTestCredentials(GetParam()));
  OfiHello hello;
  hello.address = name;
  hello.flight = channel.Start();
  Say(OfiKind::kHello, /*token=*/5, 1, EncodeOfiHello(hello));
  ASSERT_TRUE(AwaitHeard(1));
  const std::string flight = outsider_->heard().back().payload;

  OfiHello unfinished;
  unfinished.address = name;
  unfinished.flight = hello.flight.substr(0, kPreambleBytes - 1);
  constexpr uint64_t kHellos = 50;
  for (uint64_t i = 0; i < kHellos; ++i) Say(OfiKind::kHello, 100 + i, 1, EncodeOfiHello(unfinished));
  LetRankZeroSee();
  EXPECT_GT(rank(0)->refusals().count(Refusal::kCrowded), 0u);

  std::string plain, confirm;
  EXPECT_THAT(channel.Receive(flight, &plain, &confirm), IsOk());
  channel.Send(EncodeOfiHandshake(HandshakeOfRankOne()), &confirm);
  Say(OfiKind::kConfirm, 5, 1, confirm);
  EXPECT_TRUE(DriveAll([&] { return outsider_->heard().back().kind == OfiKind::kAnswer; }));
}

TEST_P(OfiSecurityTest, WhoCannotBeAnsweredIsTurnedAwayForThatReason) {
  const auto say_from = [this](const std::string& address, uint64_t exchange) {
    OfiHello hello;
    hello.address = address;
    Say(OfiKind::kHello, exchange, 1, EncodeOfiHello(hello));
  };
  LogLines log;
  CreateWithOutsider();
  say_from("four", 5);
  LetRankZeroSee();
  EXPECT_THAT(log.lines(),
              ElementsAre(HasSubstr("no rank is there: libfabric fake: 4 bytes are no address of this provider")));
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kBroken), 1u);
  CreateWithOutsider();
  constexpr uint64_t kAddressesMax = 32;
  for (uint64_t i = 0; i <= kAddressesMax; ++i) say_from(Bytes(1000 + i), i);
  LetRankZeroSee();
  EXPECT_THAT(log.lines(), Contains(HasSubstr("no rank is there: 32 other such addresses were answered")));
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kCrowded), 1u);
}

// As version 1 said it, and is answered in its words.
TEST_P(OfiSecurityTest, AnOldVersionIsRefusedByName) {
  CreateWithOutsider();
  constexpr uint32_t kItsToken = 4711;
  std::string old;
  AppendLittleEndian(&old, kOfiMagic, uint32_t{1}, kItsToken);
  Say(OfiKind::kHello, uint64_t{1} << 32, 0, old + std::string(36, '\0'));
  ASSERT_TRUE(AwaitHeard(1));
  const OfiOutsider::Heard& heard = outsider_->heard().back();
  EXPECT_EQ(heard.kind, OfiKind::kRefused);
  EXPECT_EQ(static_cast<uint32_t>(heard.notice.token), kItsToken);
  EXPECT_EQ(heard.notice.token >> 32, 0u) << "by rank 0";
  ASSERT_EQ(heard.payload.size(), kOfiRefusalBytes);
  const OfiRefusal refusal = DecodeOfiRefusal(reinterpret_cast<const unsigned char*>(heard.payload.data()));
  EXPECT_EQ(refusal.verdict, OfiVerdict::kOtherVersion);
  EXPECT_EQ(refusal.detail, kOfiProtocolVersion);
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kOldProtocol), 1u);
}

TEST_P(OfiSecurityTest, VersionsToComeAndThisOneRefuseEachOther) {
  CreateWithOutsider();
  std::string later;
  AppendLittleEndian(&later, kOfiMagic, uint32_t{9}, uint32_t{0});
  Say(OfiKind::kHello, 77, 1, later);
  ASSERT_TRUE(AwaitHeard(1));
  EXPECT_EQ(outsider_->heard().back().kind, OfiKind::kRefused);
  EXPECT_EQ(outsider_->heard().back().notice.token, 77u);
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kOtherVersion), 1u);

  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  ASSERT_TRUE(AwaitHeard(2));
  std::string refusal;
  AppendLittleEndian(&refusal, static_cast<uint32_t>(OfiVerdict::kOtherVersion), uint64_t{9});
  Say(OfiKind::kRefused, outsider_->heard().back().notice.token, 1, refusal);
  ASSERT_TRUE(DriveAll([&] { return send.done(); }));
  EXPECT_THAT(send.status,
              StatusIs(Code::kFailedPrecondition, HasSubstr("it speaks version 9 of the protocol, this rank 2")));
}

}  // namespace
}  // namespace lockstep

// Shared memory as a Transport (tests/transport_conformance.h), and what is its own: who shares it with whom, limits,
// unauthenticated peers, forks. shm_process_test.cc has processes that die and stop.

#include "transport/shm/shm_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/transport_conformance.h"
#include "tests/transport_testing.h"
#include "transport/net/unix_socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/secure/user.h"
#include "transport/shm/handshake.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/shm_testing.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

TransportFactory Factory(const std::string& name, const MailboxGeometry& mailbox, size_t piece_bytes_max,
                         int yields_max, SecurityLevel level = SecurityLevel::kNone, bool settled = false) {
  return {name, [=](int size) -> absl::StatusOr<Transports> {
            LOCKSTEP_ASSIGN_OR_RETURN(ShmTransports ranks, CreateShmWorld(size, [&](ShmTransportOptions* options) {
                                        options->mailbox = mailbox;
                                        options->piece_bytes_max = piece_bytes_max;
                                        options->yields_max = yields_max;
                                        options->credentials = TestCredentials(level);
                                      }));
            for (const auto& rank : ranks) {
              if (settled) rank->Settled(/*parks=*/rank->rank() == Rank(0));
            }
            return AsTransports(std::move(ranks));
          }};
}

INSTANTIATE_TEST_SUITE_P(
    Shm, TransportConformance,
    testing::Values(Factory("Default", MailboxGeometry(), 16 << 10, 20),
                    Factory("Authenticated", MailboxGeometry(), 16 << 10, 20, SecurityLevel::kAuthenticate),
                    Factory("Settled", MailboxGeometry(), 16 << 10, 0, SecurityLevel::kNone, /*settled=*/true),
                    // So small that everything wraps and blocks all the time.
                    Factory("Tiny", MailboxGeometry{32, 4096}, 192, 0)),
    TransportFactoryName);

class ShmTransportTest : public TransportWorldTest<ShmTransport> {
 protected:
  void Create(
      int size, const std::function<void(ShmTransportOptions*)>& change = [](ShmTransportOptions*) {}) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(ranks_, CreateShmWorld(size, change));
  }
  // The connecting side of a handshake. Drives the ranks meanwhile.
  absl::Status Introduce(int socket, Channel* channel) {
    EXPECT_THAT(SendUnix(socket, channel->Start(), {}), IsOkAndHolds(true));
    absl::Status status;
    DriveAll([&] {
      UnixMessage message;
      const absl::StatusOr<bool> received = ReceiveUnix(socket, &message);
      status = received.status();
      if (!received.ok() || !*received) return !received.ok();
      std::string plain, to_send;
      status = channel->Receive(message.bytes, &plain, &to_send);
      if (!to_send.empty()) {
        EXPECT_THAT(SendUnix(socket, to_send, {}), IsOkAndHolds(true));
      }
      return !status.ok() || channel->ready();
    });
    return status;
  }
  // Ranks that know nothing of each other.
  void CreateAlone(
      int size, const std::function<void(ShmTransportOptions*)>& change = [](ShmTransportOptions*) {}) {
    ranks_.clear();
    for (int i = 0; i < size; ++i) {
      ShmTransportOptions options = ShmTestOptions(i, size);
      change(&options);
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto rank, ShmTransport::Create(std::move(options)));
      ranks_.push_back(std::move(rank));
    }
  }
};

TEST_F(ShmTransportTest, CreationSaysWhatIsWrong) {
  const auto create = [](auto change) {
    ShmTransportOptions options = ShmTestOptions(0, 2);
    change(&options);
    return ShmTransport::Create(std::move(options)).status();
  };
  using Options = ShmTransportOptions;
  EXPECT_THAT(create([](Options* o) { o->size = 0; }), StatusIs(Code::kInvalidArgument, HasSubstr("world of 0")));
  EXPECT_THAT(create([](Options* o) { o->rank = Rank(2); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("rank 2 in a world of 2")));
  EXPECT_THAT(create([](Options* o) { o->job_id = std::string(2000, 'x'); }),
              StatusIs(Code::kInvalidArgument, HasSubstr("2000 bytes, more than 1024")));
  EXPECT_THAT(create([](Options* o) { o->mailbox.cells = 7; }), StatusIs(Code::kInvalidArgument, HasSubstr("7 cells")));
  EXPECT_THAT(create([](Options* o) { o->piece_bytes_max = 100; }),
              StatusIs(Code::kInvalidArgument, HasSubstr("pieces of 100")));
}

TEST_F(ShmTransportTest, WhoIsNotConnectedCannotBeReached) {
  CreateAlone(2);
  TestOperation send, receive;
  char byte = 0;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), Sink{&byte, 1}, &receive);
  EXPECT_THAT(send.status,
              StatusIs(Code::kUnavailable, "send to rank 1 over shm: its memory is not shared: it was not asked"));
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, HasSubstr("recv from rank 1 over shm")));
}

TEST_F(ShmTransportTest, ConnectFindsOutWhoSharesMemory) {
  CreateAlone(3);
  std::vector<std::string> addresses = Addresses(ranks_);
  // Nobody listens at rank 2's: as in another network namespace. It cannot reach the others' either.
  const std::string nowhere = ShmAddress{"lockstep-of-another-namespace", 0, UserNamespace()}.ToString();
  const std::vector<std::vector<std::string>> seen = {
      {addresses[0], addresses[1], nowhere}, {addresses[0], addresses[1], nowhere}, {nowhere, nowhere, addresses[2]}};
  std::vector<std::vector<absl::Status>> found(3);
  RunRanks(ranks_, [&](ShmTransport* rank) {
    found[rank->rank().value()] = rank->Connect(seen[rank->rank().value()], TestDeadline());
  });
  for (int i : {0, 1}) {
    EXPECT_THAT(found[i][0], IsOk());
    EXPECT_THAT(found[i][1], IsOk());
    EXPECT_THAT(found[i][2], StatusIs(Code::kUnavailable, HasSubstr("another-namespace: Connection refused")));
    EXPECT_THAT(found[2][i], StatusIs(Code::kUnavailable, HasSubstr("Connection refused")));
  }
  ExpectExchange(0, 1);
  ExpectExchange(1, 0);
}

// One side cannot reach the other: both find out, and why.
TEST_F(ShmTransportTest, ARankThatCannotReachAPeerTellsIt) {
  CreateAlone(2);
  std::vector<absl::Status> found;
  std::atomic<bool> answered{false};
  Thread other("connect", [&] {
    found = rank(1)->Connect({rank(0)->address(), ""}, TestDeadline());
    answered = true;
  });
  EXPECT_THAT(rank(0)->Connect({"", ShmAddress{"nowhere", 0, UserNamespace()}.ToString()}, TestDeadline())[1],
              StatusIs(Code::kUnavailable, HasSubstr("@nowhere: Connection refused")));
  // Should the hello come only now, it is answered as the rank goes on.
  const Deadline deadline = TestDeadline();
  while (!answered && !deadline.passed()) rank(0)->Progress();
  other.Join();
  EXPECT_THAT(found[0], StatusIs(Code::kUnavailable, HasSubstr("it turned us away: connect to unix socket @nowhere")));
}

TEST_F(ShmTransportTest, DifferencesAreFoundOnBothSides) {
  struct Case {
    std::function<void(ShmTransportOptions*)> change;
    const char* message;
  };
  for (const Case& c :
       {Case{[](ShmTransportOptions* o) { o->job_id = "job of " + std::to_string(o->rank.value()); }, "another job"},
        Case{[](ShmTransportOptions* o) { o->world_id = o->rank.value(); }, "another world"},
        Case{[](ShmTransportOptions* o) { o->chunk_bytes = 64 << o->rank.value(); }, "chunk size"}}) {
    CreateAlone(2, c.change);
    const auto found = ConnectAll(ranks_, Addresses(ranks_));
    EXPECT_THAT(found[0][1], StatusIs(Code::kFailedPrecondition, HasSubstr(c.message)));
    EXPECT_THAT(found[1][0], StatusIs(Code::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST_F(ShmTransportTest, ConnectEndsWithItsDeadline) {
  CreateAlone(2);
  const auto found = rank(0)->Connect(Addresses(ranks_), Deadline::AfterMs(20));
  EXPECT_THAT(found[0], IsOk());
  EXPECT_THAT(found[1], StatusIs(Code::kDeadlineExceeded, HasSubstr("did not answer in time")));
  // Who comes later finds out.
  std::vector<absl::Status> late;
  std::atomic<bool> answered{false};
  Thread other("connect", [&] {
    late = rank(1)->Connect(Addresses(ranks_), TestDeadline());
    answered = true;
  });
  const Deadline deadline = TestDeadline();
  while (!answered && !deadline.passed()) rank(0)->Progress();
  other.Join();
  EXPECT_THAT(late[0], StatusIs(Code::kDeadlineExceeded, HasSubstr("it turned us away: its process did not answer")));
}

// For want of descriptors, say.
TEST_F(ShmTransportTest, APeerThatClosesAConnectionInTheMiddleOfTheHandshakeIsTriedAgain) {
  CreateAlone(2);
  const ShmAddress address = {absl::StrCat("lockstep-test-", getpid()), 0, UserNamespace()};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd listener, ListenUnix(address.name));
  std::vector<absl::Status> found;
  Thread other("connect", [&] { found = rank(1)->Connect({address.ToString(), ""}, TestDeadline()); });
  for (int connection = 0; connection < 3; ++connection) {
    pollfd waiting = {listener.get(), POLLIN, 0};
    EXPECT_EQ(poll(&waiting, 1, TestDeadline().remaining_ms()), 1);
    const absl::StatusOr<UniqueFd> peer = AcceptUnix(listener.get());
    EXPECT_THAT(peer, IsOk());
    // Long enough that the rank sleeps.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  listener.reset();
  other.Join();
  EXPECT_THAT(found[0], StatusIs(Code::kUnavailable, HasSubstr("Connection refused")));
}

// Of every kind, beside a world that forms.
TEST_F(ShmTransportTest, UnauthenticatedPeersAreRefusedAndCounted) {
  for (const SecurityLevel level : {SecurityLevel::kNone, SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt}) {
    SCOPED_TRACE(Name(level));
    const Credentials credentials = TestCredentials(level);
    CreateAlone(2, [&](ShmTransportOptions* options) {
      options->credentials = credentials;
      options->handshake_timeout = std::chrono::seconds(4);
    });
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmAddress address, ShmAddress::Parse(rank(0)->address()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd silent, ConnectUnix(address.name));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd babbling, ConnectUnix(address.name));
    EXPECT_THAT(SendUnix(babbling.get(), "who is there?", {}), IsOkAndHolds(true));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd old, ConnectUnix(address.name));
    const ShmHello hello = {"test", 17, address.nonce, Rank(1), Rank(0), 1 << 20};
    EXPECT_THAT(SendUnix(old.get(), EncodeHello(hello), {silent.get(), silent.get()}), IsOkAndHolds(true));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd leaving, ConnectUnix(address.name));
    const std::string flight = Channel(Purpose::kLocal, Channel::Side::kConnects, credentials).Start();
    EXPECT_THAT(SendUnix(leaving.get(), flight.substr(0, kPreambleBytes - 1), {}), IsOkAndHolds(true));
    leaving.reset();
    std::vector<UniqueFd> crowd;
    for (int i = 0; i < 100; ++i) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd one, ConnectUnix(address.name));
      crowd.push_back(std::move(one));
    }
    for (const auto& found : ConnectAll(ranks_, Addresses(ranks_))) {
      for (const absl::Status& status : found) EXPECT_THAT(status, IsOk());
    }
    // Those who shake hands, and say behind it what they should not.
    ShmHello guess = hello;
    ++guess.nonce;
    std::string later = EncodeHello(hello);
    later[4] = static_cast<char>(later[4] + 1);  // its version
    const struct {
      std::string says;
      Refusal refusal;
      const char* answer;
    } cases[] = {{EncodeHello(guess), Refusal::kOtherWorld, "nonce"},
                 {later, Refusal::kOtherVersion, "version"},
                 {"what was it?", Refusal::kBroken, "no hello"}};
    UnixMessage message;
    for (const auto& c : cases) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd other, ConnectUnix(address.name));
      Channel channel(Purpose::kLocal, Channel::Side::kConnects, credentials);
      EXPECT_THAT(Introduce(other.get(), &channel), IsOk());
      EXPECT_THAT(SendUnix(other.get(), c.says, {}), IsOkAndHolds(true));
      ASSERT_TRUE(DriveAll([&] { return ReceiveUnix(other.get(), &message).value_or(false); }));
      EXPECT_THAT(DecodeAnswer(message.bytes).message(), HasSubstr(c.answer));
      EXPECT_EQ(rank(0)->refusals().count(c.refusal), 1) << c.answer;
    }
    if (level != SecurityLevel::kNone) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd other, ConnectUnix(address.name));
      Channel wrong(Purpose::kLocal, Channel::Side::kConnects, TestCredentials(level, 'o'));
      EXPECT_THAT(Introduce(other.get(), &wrong),
                  StatusIs(Code::kPermissionDenied, HasSubstr("the listener does not have the secret")));
      EXPECT_EQ(rank(0)->refusals().count(Refusal::kNoSecret), 1);
    }
    ASSERT_TRUE(DriveAll([&] { return rank(0)->refusals().count(Refusal::kSilent) == 101; }));
    EXPECT_THAT(ReceiveUnix(silent.get(), &message), StatusIs(Code::kUnavailable));
    EXPECT_EQ(rank(0)->refusals().count(Refusal::kNotOurs), 1);
    EXPECT_EQ(rank(0)->refusals().count(Refusal::kOldProtocol), 1);
    EXPECT_EQ(rank(0)->refusals().count(Refusal::kGaveUp), 1);
    ExpectExchange(0, 1);
    ExpectExchange(1, 0);
  }
}

// With other connections of its process in all places, of which it is the oldest.
TEST_F(ShmTransportTest, AHandshakeThatHasBegunWellDoesNotMakeWay) {
  const Credentials credentials = TestCredentials(SecurityLevel::kAuthenticate);
  CreateAlone(2, [&](ShmTransportOptions* options) {
    options->credentials = credentials;
    options->handshake_timeout = std::chrono::minutes(10);
  });
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmAddress address, ShmAddress::Parse(rank(0)->address()));
  std::vector<UniqueFd> crowd;
  const auto come = [&] {
    crowd.emplace_back();
    return DriveAll([&] {
      absl::StatusOr<UniqueFd> one = ConnectUnix(address.name);
      EXPECT_THAT(one, IsOk());
      if (one.ok()) crowd.back() = *std::move(one);
      return crowd.back().valid() || HasFailure();
    });
  };
  for (size_t i = 0; i < HalfOpen::MostForThisProcess() + 2; ++i) ASSERT_TRUE(come());
  for (int i = 0; i < 1000; ++i) rank(0)->Progress();
  EXPECT_EQ(rank(0)->refusals().total(), 0) << "there is a place for each rank besides";
  Channel channel(Purpose::kLocal, Channel::Side::kConnects, credentials);
  EXPECT_THAT(SendUnix(crowd[0].get(), channel.Start(), {}), IsOkAndHolds(true));
  UnixMessage message;
  ASSERT_TRUE(DriveAll([&] { return ReceiveUnix(crowd[0].get(), &message).value_or(false); }));
  ASSERT_TRUE(come());
  ASSERT_TRUE(DriveAll([&] { return rank(0)->refusals().count(Refusal::kCrowded) == 1; }));
  EXPECT_THAT(ReceiveUnix(crowd[0].get(), &message), IsOkAndHolds(false));
  EXPECT_THAT(ReceiveUnix(crowd[1].get(), &message), StatusIs(Code::kUnavailable));
}

TEST_F(ShmTransportTest, WhoCannotBeIdentifiedOrWatchedIsCounted) {
  const struct {
    RefusedCall call;
    Refusal refusal;
  } cases[] = {{{SYS_getsockopt, ENOTCONN, 2, SO_PEERCRED}, Refusal::kBroken},
               {{SYS_epoll_ctl, ENOSPC, 1, EPOLL_CTL_ADD}, Refusal::kCrowded}};
  for (const auto& c : cases) {
    CreateAlone(2);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmAddress address, ShmAddress::Parse(rank(0)->address()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd peer, ConnectUnix(address.name));
    absl::Status refused;
    Thread("refused", [&] {
      refused = Refuse(c.call);
      if (refused.ok()) DriveAll([&] { return rank(0)->refusals().total() > 0; });
    }).Join();
    if (!refused.ok()) GTEST_SKIP() << refused;
    EXPECT_EQ(rank(0)->refusals().count(c.refusal), 1) << rank(0)->refusals().Describe();
    UnixMessage message;
    EXPECT_THAT(ReceiveUnix(peer.get(), &message), StatusIs(Code::kUnavailable));
  }
}

TEST_F(ShmTransportTest, WhoHasNotShakenHandsMakesWayOrIsToldThatThereIsNoDescriptor) {
  Create(2);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmAddress address, ShmAddress::Parse(rank(0)->address()));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<UniqueFd> taken;
  const auto take_all = [&] {
    EXPECT_THAT(Limit(RLIMIT_NOFILE, 256), IsOk());
    for (int copy; (copy = dup(0)) >= 0;) taken.emplace_back(copy);
    EXPECT_EQ(errno, EMFILE);
  };
  UnixMessage message;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd alone, ConnectUnix(address.name));
  take_all();
  EXPECT_TRUE(DriveAll([&] { return ReceiveUnix(alone.get(), &message).value_or(false); }));
  EXPECT_EQ(message.bytes, NoDescriptorsPreamble(Purpose::kLocal));
  taken.clear();

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd silent, ConnectUnix(address.name));
  for (int i = 0; i < 1000; ++i) rank(0)->Progress();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd next, ConnectUnix(address.name));
  take_all();
  EXPECT_TRUE(DriveAll([&] { return absl::IsUnavailable(ReceiveUnix(silent.get(), &message).status()); }));
  taken.clear();
  EXPECT_THAT(Limit(RLIMIT_NOFILE, before.rlim_cur), IsOk());
  EXPECT_THAT(ReceiveUnix(next.get(), &message), IsOkAndHolds(false)) << "it still has its time";
  EXPECT_EQ(rank(0)->refusals().count(Refusal::kCrowded), 2);
  ExpectExchange(0, 1);
}

// Reading a notice of parked connections takes two descriptors, which another thread may have for a moment.
TEST_F(ShmTransportTest, ANoticeWaitsForDescriptorsAndCostsNoPeer) {
  Create(3);
  for (const auto& rank : ranks_) rank->Settled(/*parks=*/true);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  char byte = 0;
  TestOperation send, receive;
  rank(1)->Send(Rank(0), 0, TestEnvelope(1), "x", 1, &send);
  while (rank(1)->Progress()) continue;
  {
    EXPECT_THAT(Limit(RLIMIT_NOFILE, 256), IsOk());
    std::vector<UniqueFd> taken;
    for (int copy; (copy = dup(0)) >= 0;) taken.emplace_back(copy);
    for (int i = 0; i < 1000; ++i) rank(0)->Progress();
  }
  EXPECT_THAT(Limit(RLIMIT_NOFILE, before.rlim_cur), IsOk());
  rank(0)->Receive(Rank(1), 0, TestEnvelope(1), Sink{&byte, 1}, &receive);
  EXPECT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status, IsOk());
  ExpectExchange(0, 2);
}

TEST_F(ShmTransportTest, RanksWithOtherSecretsOrLevelsDoNotShareMemory) {
  struct Case {
    SecurityLevel levels[2];
    const char fills[2];
    const char* message;
  };
  for (const Case& c :
       {Case{{SecurityLevel::kAuthenticate, SecurityLevel::kAuthenticate}, {'a', 'b'}, "does not have the secret"},
        Case{{SecurityLevel::kNone, SecurityLevel::kAuthenticate}, {'a', 'a'}, "has another security level"}}) {
    CreateAlone(2, [&](ShmTransportOptions* options) {
      const int self = options->rank.value();
      options->credentials = TestCredentials(c.levels[self], c.fills[self]);
    });
    const auto found = ConnectAll(ranks_, Addresses(ranks_));
    EXPECT_THAT(found[0][1], StatusIs(Code::kPermissionDenied, HasSubstr(c.message)));
    EXPECT_THAT(found[1][0], StatusIs(Code::kPermissionDenied, HasSubstr(c.message)));
  }
}

TEST_F(ShmTransportTest, MemoryIsBoundedAndTheBoundIsNamed) {
  Create(2, [](ShmTransportOptions* options) { options->memory_bytes_max = MailboxGeometry().bytes() * 5 / 2; });
  std::deque<TestOperation> sends, receives;
  char byte = 0;
  for (int channel = 0; channel < 3; ++channel) {
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), "x", 1, &sends.emplace_back());
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), Sink{&byte, 1}, &receives.emplace_back());
  }
  ASSERT_TRUE(DriveAll([&] { return receives[2].done() && receives[1].done(); }));
  for (int channel : {0, 1}) {
    EXPECT_THAT(sends[channel].status, IsOk());
    EXPECT_THAT(receives[channel].status, IsOk());
  }
  EXPECT_THAT(sends[2].status, StatusIs(Code::kResourceExhausted, HasSubstr("at most 1361920 are allowed")));
  EXPECT_THAT(receives[2].status, StatusIs(Code::kUnavailable, HasSubstr("recv from rank 0")));
  // The others go on, and a channel that is given up makes room.
  TestOperation more;
  rank(0)->Send(Rank(1), 1, TestEnvelope(1), "z", 1, &more);
  EXPECT_THAT(more.status, IsOk());
  for (auto& rank : ranks_) rank->AbortChannel(0, absl::CancelledError("done with it"));
  TestOperation send, receive;
  rank(0)->Send(Rank(1), 7, TestEnvelope(1), "y", 1, &send);
  rank(1)->Receive(Rank(0), 7, TestEnvelope(1), Sink{&byte, 1}, &receive);
  ASSERT_TRUE(DriveAll([&] { return receive.done() && send.done(); }));
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_EQ(byte, 'y');
}

// A peer whose receive side gave up before this rank's first message on the channel.
TEST_F(ShmTransportTest, AMailboxForAChannelThatWasGivenUpIsRefused) {
  Create(2);
  rank(1)->AbortChannel(3, absl::AbortedError("never mind"));
  TestOperation large;
  rank(0)->Send(Rank(1), 3, TestEnvelope(1), LargePayload().data(), LargePayload().size(), &large);
  ASSERT_TRUE(DriveAll([&] { return large.done(); }));
  EXPECT_THAT(large.status, StatusIs(Code::kUnavailable, HasSubstr("send to rank 1 over shm pid")));
  ExpectExchange(0, 1);
}

// As a program does that makes and destroys communicators all day: what a channel took is given back on both sides.
TEST_F(ShmTransportTest, ChannelsMayComeAndGo) {
  Create(2, [](ShmTransportOptions* options) { options->memory_bytes_max = MailboxGeometry().bytes() * 2; });
  for (ChannelId channel = 0; channel < 50; ++channel) {
    TestOperation sends[2], receives[2];
    int values[2] = {};
    for (int i : {0, 1}) {
      rank(i)->Receive(Rank(1 - i), channel, TestEnvelope(1), Sink{&values[i], sizeof(int)}, &receives[i]);
      rank(i)->Send(Rank(1 - i), channel, TestEnvelope(1), &channel, sizeof(channel), &sends[i]);
    }
    ASSERT_TRUE(DriveAll([&] { return AllDone(receives); }));
    for (int i : {0, 1}) {
      ASSERT_THAT(receives[i].status, IsOk());
      EXPECT_EQ(values[i], channel);
      rank(i)->AbortChannel(channel, absl::CancelledError("done with it"));
    }
    TestOperation later;
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), &channel, sizeof(channel), &later);
    EXPECT_THAT(later.status, StatusIs(Code::kCancelled, "done with it"));
  }
}

// More channels than a socket's buffer holds notices, while the peer is not driven.
TEST_F(ShmTransportTest, ManyMailboxesMayBeMadeWhileThePeerSleeps) {
  Create(2, [](ShmTransportOptions* options) { options->mailbox = {8, 4096}; });
  constexpr int kChannels = 1000;
  std::deque<TestOperation> sends, receives;
  std::vector<int> received(kChannels, -1);
  for (int channel = 0; channel < kChannels; ++channel) {
    rank(0)->Send(Rank(1), channel, TestEnvelope(1), &channel, sizeof(channel), &sends.emplace_back());
    EXPECT_THAT(sends.back().status, IsOk());
  }
  for (int channel = 0; channel < kChannels; ++channel) {
    rank(1)->Receive(Rank(0), channel, TestEnvelope(1), Sink{&received[channel], sizeof(int)},
                     &receives.emplace_back());
  }
  ASSERT_TRUE(DriveAll([&] { return AllDone(receives); }));
  for (int channel = 0; channel < kChannels; ++channel) EXPECT_EQ(received[channel], channel);
}

TEST_F(ShmTransportTest, FailsInAForkedChildAndWorksInTheParent) {
  Create(2);
  rank(0)->WaitForEvent(Deadline::AfterMs(1));
  ExpectUselessAfterFork([&] {
    rank(0)->WaitForEvent(Deadline::AfterMs(1));
    rank(0)->Wake();
  });
}

}  // namespace
}  // namespace lockstep

// The control channel between ranks that do not all have the same secret or level, and through somebody who changes what they say. Ranks as
// threads. Unauthenticated peers at the coordinator's port: control_coordinator_test.cc.

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_store.h"
#include "transport/control/control_testing.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

using ControlChannels = std::vector<std::unique_ptr<ControlChannel>>;

constexpr milliseconds kPatient(20'000);
constexpr char kKey[] = "control/job";

// What is logged while it lives, from debug on.
class LogCapture {
 public:
  LogCapture() : level_(GetLogLevel()) {
    SetLogLevel(LogLevel::kDebug);
    SetLogSink([](void* self, LogLevel, const char* line) { static_cast<LogCapture*>(self)->Add(line); }, this);
  }
  ~LogCapture() {
    SetLogSink(nullptr, nullptr);
    SetLogLevel(level_);
  }
  std::string text() {
    MutexLock lock(&mu_);
    return text_;
  }

 private:
  void Add(const char* line) {
    MutexLock lock(&mu_);
    absl::StrAppend(&text_, line, "\n");
  }

  const LogLevel level_;
  Mutex mu_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

// Knows how often it was asked.
class CountingStore final : public MemoryStore {
 public:
  int calls() const { return calls_; }

 private:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override {
    absl::StatusOr<std::string> result = MemoryStore::Perform(call, deadline);
    ++calls_;
    return result;
  }

  std::atomic<int> calls_{0};
};

class ControlSecurityTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ControlChannel>> Create(int rank, int size, const Credentials& credentials,
                                                         Deadline deadline = Soon()) {
    ControlOptions options = OptionsOf(rank, size, kPatient, &logs_[rank]);
    options.credentials = credentials;
    return ControlChannel::Create(std::move(options), &store_, deadline);
  }
  absl::StatusOr<std::string> Read(const std::string& key) { return store_.Get(key, Soon()); }
  void JoinBoth(ControlChannel* zero, ControlChannel* one) {
    InParallel(2, [&](int rank) { EXPECT_THAT((rank == 0 ? zero : one)->Join(MemberOf(rank), {}, Soon()), IsOk()); });
  }

  CountingStore store_;
  std::array<FailureLog, 4> logs_;
};

TEST_F(ControlSecurityTest, AllRanksGetTheWorldsSecretWhichIsNotTheJobs) {
  for (const SecurityLevel level : {SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt}) {
    for (const char secret : {'s', '\0'}) {
      std::vector<std::string> seen;
      for (int world = 0; world < 2; ++world) {
        ControlChannels channels(4);
        InParallel(4, [&](int rank) {
          LOCKSTEP_ASSERT_OK_AND_ASSIGN(channels[rank], Create(rank, 4, Secured(secret, level)));
          EXPECT_THAT(channels[rank]->Join(MemberOf(rank), {}, Soon()), IsOk());
        });
        for (const auto& channel : channels) {
          EXPECT_EQ(channel->world_credentials().level, level);
          ASSERT_NE(channel->world_credentials().secret, nullptr);
          EXPECT_THAT(channel->world_credentials().source,
                      AllOf(StartsWith("the coordinator, rank 0 (host "), HasSubstr(absl::StrCat("pid ", getpid()))));
          EXPECT_EQ(channel->world_credentials().secret->Hex(), channels[0]->world_credentials().secret->Hex());
        }
        seen.push_back(channels[0]->world_credentials().secret->Hex());
      }
      EXPECT_NE(seen[0], seen[1]);
      EXPECT_NE(seen[0], SecretOf('s')->Hex());
    }
  }
  // At level none a secret is of no account.
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto open, Create(0, 1, Secured('s', SecurityLevel::kNone)));
  EXPECT_EQ(open->world_credentials().level, SecurityLevel::kNone);
  EXPECT_EQ(open->world_credentials().secret, nullptr);
}

// Only the caller holds it afterwards, and rank 0's coordinator, which goes on listening.
TEST_F(ControlSecurityTest, ARankDoesNotKeepTheJobsSecret) {
  const Credentials credentials = Secured('s');
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, credentials));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto one, Create(1, 2, credentials));
  JoinBoth(zero.get(), one.get());
  EXPECT_LE(credentials.secret.use_count(), 2);
  zero->Leave();
  EXPECT_EQ(credentials.secret.use_count(), 1);
}

// Where it was, there are zeros.
TEST_F(ControlSecurityTest, AForkedChildNeedsASecretOfItsOwn) {
  const Credentials credentials = Secured('s');
  EXPECT_EQ(
      RunInForkedChild([&] { return absl::IsFailedPrecondition(Create(0, 1, credentials).status()) ? 0 : 1; }, Soon()),
      0);
}

TEST_F(ControlSecurityTest, ADrawnSecretIsInTheStoreWhileTheWorldFormsAndNowhereElse) {
  LogCapture log;
  std::vector<std::string> secrets;
  {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, Secured()));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto record, control::DecodeCoordinatorRecord(*Read(kKey)));
    ASSERT_NE(record.secret, nullptr);
    secrets.push_back(record.secret->Hex());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto any, control::DecodeCoordinatorRecord(*Read(control::kAnyJobKey)));
    EXPECT_EQ(any.secret, nullptr);
    EXPECT_EQ(any.address, record.address);
    // Unauthenticated peers make it write lines.
    Credentials other = Secured('t');
    EXPECT_THAT(Create(1, 2, other, Deadline::AfterMs(50)), StatusIs(absl::StatusCode::kDeadlineExceeded));
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto one, Create(1, 2, Secured()));
    JoinBoth(zero.get(), one.get());
    secrets.push_back(one->world_credentials().secret->Hex());
  }
  for (const char* key : {kKey, control::kAnyJobKey}) {
    EXPECT_THAT(Read(key), StatusIs(absl::StatusCode::kNotFound));
  }
  EXPECT_EQ(CountOf(log.text(), "the job's secret stands in store memory: it is as safe as that store"), 1);
  EXPECT_THAT(log.text(), HasSubstr("does not have the secret"));
  for (const std::string& secret : secrets) EXPECT_THAT(log.text(), Not(HasSubstr(secret)));
}

TEST_F(ControlSecurityTest, AFixedSecretStaysOutOfTheStore) {
  LogCapture log;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, Secured('s')));
  EXPECT_EQ(control::DecodeCoordinatorRecord(*Read(kKey))->secret, nullptr);
  EXPECT_THAT(log.text(), Not(HasSubstr("as safe as that store")));
}

// All learn it, and nobody waits for a deadline.
TEST_F(ControlSecurityTest, DifferentLevelsAreEverybodysError) {
  const std::pair<Credentials, Credentials> cases[] = {{Credentials(), Secured('s')},
                                                       {Secured('s'), Credentials()},
                                                       {Credentials(), Secured()},
                                                       {Secured(), Credentials()}};
  for (const std::pair<Credentials, Credentials>& levels : cases) {
    LogCapture log;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, levels.first));
    std::array<absl::Status, 2> errors;
    InParallel(2, [&](int rank) {
      errors[rank] = rank == 0 ? zero->Join(MemberOf(0), {}, Soon()).status() : Create(1, 2, levels.second).status();
    });
    const auto names_both = StatusIs(absl::StatusCode::kPermissionDenied,
                                     AllOf(HasSubstr("has another security level"), HasSubstr("authenticate"),
                                           HasSubstr("none"), HasSubstr("LOCKSTEP_SECURITY")));
    for (const absl::Status& error : errors) EXPECT_THAT(error, names_both);
    EXPECT_THAT(std::string(errors[0].message()), StartsWith("rank 1 (host "));
    EXPECT_THAT(log.text(), ContainsRegex("coordinator 127.0.0.1:[0-9]+: turned away .*has another security level"));
  }
}

TEST_F(ControlSecurityTest, ARankWithAnotherSecretIsTurnedAwayAndSaysWhy) {
  LogCapture log;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, Secured('s')));
  const auto without_it = [&](const std::string& hint) {
    return StatusIs(absl::StatusCode::kDeadlineExceeded,
                    AllOf(HasSubstr("rank 0 has not appeared in store memory; the address there is of no use: "),
                          HasSubstr("the listener does not have the secret: ours is from "), HasSubstr(hint)));
  };
  EXPECT_THAT(Create(1, 2, Secured('t'), Deadline::AfterMs(200)), without_it("the test"));
  EXPECT_THAT(Create(1, 2, Secured(), Deadline::AfterMs(200)), without_it("LOCKSTEP_SECRET_FILE"));
  EXPECT_THAT(log.text(), ContainsRegex("coordinator 127.0.0.1:[0-9]+: turned away .*does not have the secret"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto one, Create(1, 2, Secured('s')));
  JoinBoth(zero.get(), one.get());
}

// It is alive, and of no use to anybody who does not know its secret.
TEST_F(ControlSecurityTest, ALeftOverCoordinatorWithAnotherSecretIsReplaced) {
  for (const std::pair<char, char>& secrets : {std::pair('t', 's'), std::pair('t', '\0'), std::pair('\0', 's')}) {
    const char old_secret = secrets.first, new_secret = secrets.second;
    const absl::Status removed = store_.Delete(kKey, Soon());
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto crashed, Create(0, 2, Secured(old_secret)));
    control::CoordinatorRecord record = *control::DecodeCoordinatorRecord(*Read(kKey));
    // As if the record were of another world than who has the port now.
    if (old_secret == '\0') record.secret = SecretOf('x');
    ASSERT_THAT(store_.Set(kKey, control::EncodeCoordinatorRecord(record), Soon()), IsOk());
    ControlChannels channels(2);
    std::atomic<bool> rank_one_started{false};
    InParallel(2, [&](int rank) {
      while (rank == 0 && !rank_one_started.load()) std::this_thread::yield();
      rank_one_started = true;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(channels[rank], Create(rank, 2, Secured(new_secret)));
      EXPECT_THAT(channels[rank]->Join(MemberOf(rank), {}, Soon()), IsOk());
    });
  }
}

// Another process may have the port of a rank 0 that has crashed. The next is about to come.
TEST_F(ControlSecurityTest, ALeftOverAddressWhereAnotherLevelAnswersIsNotBelievedAtOnce) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const UniqueFd listener, Listen(LoopbackAddress()));
  std::atomic<bool> ended{false};
  std::thread answering([&] {
    const std::string preamble = Channel(Purpose::kControl, Channel::Side::kConnects, Credentials()).Start();
    pollfd entry = {listener.get(), POLLIN, 0};
    while (!ended) {
      if (poll(&entry, 1, 10) != 1) continue;
      const UniqueFd socket = *Accept(listener.get(), nullptr);
      (void)send(socket.get(), preamble.data(), preamble.size(), MSG_NOSIGNAL);
      DiscardUnread(socket.get());
    }
  });
  control::CoordinatorRecord record;
  record.world = 7;
  record.host = "another";
  record.address = *LocalAddress(listener.get());
  const std::string text = control::EncodeCoordinatorRecord(record);
  ASSERT_THAT(store_.Set(kKey, text, Soon()), IsOk());
  EXPECT_THAT(Create(1, 2, Secured('s'), Deadline::AfterMs(300)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("none, not authenticate or encrypt")));
  EXPECT_EQ(*Read(kKey), text) << "it is left to rank 0";
  EXPECT_THAT(Create(1, 2, Secured('s')).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("none, not authenticate or encrypt")));
  EXPECT_NE(*Read(kKey), text) << "the others are told";
  ended = true;
  answering.join();
}

// Stands between rank 1 and the coordinator. What goes by in one of the directions it changes, or all of it it holds back, when told so.
class Relay {
 public:
  enum class Change { kFlip, kDrop, kRepeat, kReorder };

  explicit Relay(const SocketAddress& coordinator)
      : listener_(*Listen(LoopbackAddress())),
        address_(*LocalAddress(listener_.get())),
        thread_([this, coordinator] { Run(coordinator); }) {}
  ~Relay() {
    stopping_ = true;
    thread_.join();
  }

  const SocketAddress& address() const { return address_; }
  // The next bytes of that direction, and those behind them as they are.
  void Arm(bool to_coordinator, Change change) {
    change_ = change;
    armed_[to_coordinator ? 0 : 1] = true;
  }
  bool armed() const { return armed_[0] || armed_[1]; }
  void Hold(bool hold) { holds_ = hold; }
  bool connected() const { return connected_; }

 private:
  void Run(const SocketAddress& coordinator) {
    UniqueFd rank;
    while (!rank.valid() && !stopping_) {
      pollfd entry = {listener_.get(), POLLIN, 0};
      poll(&entry, 1, 10);
      rank = *Accept(listener_.get(), nullptr);
    }
    if (stopping_) return;
    const UniqueFd onward = *Connect(coordinator, Soon());
    connected_ = true;
    const int sockets[2] = {rank.get(), onward.get()};
    while (!stopping_) {
      pollfd entries[2] = {{sockets[0], POLLIN, 0}, {sockets[1], POLLIN, 0}};
      poll(entries, 2, 10);
      if (holds_) continue;
      for (int from = 0; from < 2; ++from) {
        if (entries[from].revents != 0 && !Pass(from, sockets)) return;
      }
    }
  }

  bool Pass(int from, const int* sockets) {
    char piece[1 << 14];
    const ssize_t bytes = recv(sockets[from], piece, sizeof(piece), MSG_DONTWAIT);
    if (bytes <= 0) return false;
    const bool changes = armed_[from].exchange(false);
    const auto send = [&](absl::string_view what) {
      return SendAll(sockets[1 - from], what.data(), what.size(), Soon()).ok();
    };
    const auto pass = [&] { return send(absl::string_view(piece, static_cast<size_t>(bytes))); };
    if (!changes) return pass() && send(std::exchange(held_back_[from], ""));
    switch (change_.load()) {
      case Change::kFlip:
        piece[bytes - 1] ^= 1;
        return pass();
      case Change::kDrop:
        return true;
      case Change::kRepeat:
        return pass() && pass();
      case Change::kReorder:
        held_back_[from].assign(piece, static_cast<size_t>(bytes));
        return true;
    }
    return false;
  }

  const UniqueFd listener_;
  const SocketAddress address_;
  std::atomic<Change> change_{Change::kFlip};
  std::array<std::atomic<bool>, 2> armed_ = {};  // from the rank, from the coordinator
  std::array<std::string, 2> held_back_;         // likewise; goes behind what comes next. The thread's
  std::atomic<bool> holds_{false};
  std::atomic<bool> connected_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// The coordinator counts rank 1 among those that it has told, and what stands in the store is changed, while the answer is on its way.
TEST_F(ControlSecurityTest, AnAnswerThatTheStoreOvertakesIsWaitedFor) {
  const Credentials credentials = Secured('s');
  const std::string told_others = control::EncodeFailureRecord(
      {std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()), 0, {2}, absl::InternalError("why")});
  for (const std::string& left : {std::string(), told_others}) {
    SCOPED_TRACE(left);
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 3, credentials));
    control::CoordinatorRecord record = *control::DecodeCoordinatorRecord(*Read(kKey));
    Relay relay(record.address);
    relay.Hold(true);
    record.address = relay.address();
    ASSERT_THAT(store_.Set(kKey, control::EncodeCoordinatorRecord(record), Soon()), IsOk());
    ASSERT_THAT(store_.Delete(control::kAnyJobKey, Soon()), IsOk());  // nor is it to be found there
    std::unique_ptr<ControlChannel> one;
    std::thread rank_one([&] { LOCKSTEP_ASSERT_OK_AND_ASSIGN(one, Create(1, 3, credentials)); });
    const Deadline deadline = Soon();
    while (!relay.connected() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_THAT(left.empty() ? store_.Delete(kKey, Soon()) : store_.Set(kKey, left, Soon()), IsOk());
    for (const int before = store_.calls(); store_.calls() == before && !deadline.passed();) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    relay.Hold(false);
    rank_one.join();
    EXPECT_NE(one, nullptr);
    EXPECT_FALSE(deadline.passed());
    zero->LeaveBecause(absl::InternalError("the end"));
    if (one != nullptr) {
      EXPECT_THAT(one->Join(MemberOf(1), {}, Soon()), StatusIs(absl::StatusCode::kInternal, HasSubstr("the end")));
    }
    one.reset();
    zero.reset();
    ASSERT_THAT(store_.Delete(kKey, Soon()), IsOk());
  }
}

class ControlRelayTest : public ControlSecurityTest,
                         public ::testing::WithParamInterface<std::tuple<bool, Relay::Change>> {};

TEST_P(ControlRelayTest, WhatIsChangedOnTheWayEndsTheConnectionAndIsCalledByItsName) {
  const auto [to_coordinator, change] = GetParam();
  const Credentials credentials = Secured('s');
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto zero, Create(0, 2, credentials));
  control::CoordinatorRecord record = *control::DecodeCoordinatorRecord(*Read(kKey));
  Relay relay(record.address);
  record.address = relay.address();
  ASSERT_THAT(store_.Set(kKey, control::EncodeCoordinatorRecord(record), Soon()), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto one, Create(1, 2, credentials));
  JoinBoth(zero.get(), one.get());

  relay.Arm(to_coordinator, change);
  const Deadline deadline = Soon();
  // Something that is changed, and something behind it.
  for (uint64_t topic = 1; !deadline.passed() && logs_[0].Await(1, Deadline::AfterMs(20)).empty(); ++topic) {
    one->PostMessage(7, topic, "x");
    (void)one->AwaitMessages(7, topic, 1, Deadline::AfterMs(20));
  }
  EXPECT_FALSE(relay.armed());
  const std::string tampered =
      " is cut off: its control connection was tampered with: what arrived there is not what was sent";
  const std::vector<Failure> at_zero = logs_[0].Await(1, Soon());
  ASSERT_THAT(at_zero, SizeIs(1));
  EXPECT_THAT(at_zero[0].status, StatusIs(absl::StatusCode::kAborted, "rank 1 (host h1, pid 1001)" + tampered));
  const std::vector<Failure> at_one = logs_[1].Await(1, Soon());
  ASSERT_THAT(at_one, SizeIs(1));
  EXPECT_THAT(at_one[0].status, StatusIs(absl::StatusCode::kAborted, "rank 0 (host h0, pid 1000)" + tampered));
}

INSTANTIATE_TEST_SUITE_P(Changes, ControlRelayTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(Relay::Change::kFlip, Relay::Change::kDrop,
                                                              Relay::Change::kRepeat, Relay::Change::kReorder)));

}  // namespace
}  // namespace lockstep

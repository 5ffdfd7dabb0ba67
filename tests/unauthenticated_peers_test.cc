// Unauthenticated peers at the listeners of a job, from outside. Method: three ranks are processes that train in a loop and check every
// result. This process knows what /proc tells, what was sent over the loopback interface, and secrets that do not belong there. It
// attacks each listener with each attack in each phase of a world: while it forms (the last rank is missing), trains, ends (one rank has
// left), and forms again at the same port. A phase goes on until all of these were made, and beyond, until the ranks are through. Ranks
// have few descriptors, fewer than the attackers' connections. A peer is admitted if a listener goes on with it beyond a handshake.

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attack_writer.h"
#include "tests/attacks.h"
#include "tests/fabric_attacks.h"
#include "tests/hindrances.h"
#include "tests/listening_sockets.h"
#include "tests/logged_refusals.h"
#include "tests/packet_capture.h"
#include "tests/processes.h"
#include "transport/control/control.h"
#include "transport/net/socket.h"
#include "transport/secure/channel.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/store/store_memory.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

constexpr int kRanks = 3;
constexpr int kLast = kRanks - 1;
constexpr size_t kCount = 20'000;
constexpr rlim_t kFewDescriptors = 64;

Deadline Soon() { return Deadline::AfterMs(60'000); }

// ---- The job

// Passes its rank on to the next one, in a message.
absl::Status PassOn(Communicator& self) {
  const int rank = self.rank().value();
  int heard = -1;
  ReceiveRequest receive;
  receive.source = Rank((rank + self.size() - 1) % self.size());
  receive.tag = 1;
  receive.data = &heard;
  receive.bytes = sizeof(heard);
  LOCKSTEP_ASSIGN_OR_RETURN(Work receiving, self.StartReceive(receive));
  SendRequest send;
  send.target = Rank((rank + 1) % self.size());
  send.tag = 1;
  send.data = &rank;
  send.bytes = sizeof(rank);
  LOCKSTEP_ASSIGN_OR_RETURN(Work sending, self.StartSend(send));
  LOCKSTEP_RETURN_IF_ERROR(sending.Wait(Soon()));
  LOCKSTEP_RETURN_IF_ERROR(receiving.Wait(Soon()));
  return heard == receive.source.value() ? absl::OkStatus() : absl::DataLossError(absl::StrCat("heard ", heard));
}

// A message, and the sum of ones, whose first element counts the ranks that want to stop.
absl::StatusOr<bool> Step(Communicator& self, bool stop) {
  LOCKSTEP_RETURN_IF_ERROR(PassOn(self));
  std::vector<float> data(kCount, 1.0f);
  data[0] = stop ? 1.0f : 0.0f;
  LOCKSTEP_RETURN_IF_ERROR(
      self.Run(MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data())));
  for (size_t i = 1; i < data.size(); ++i) {
    if (data[i] != self.size()) return absl::DataLossError(absl::StrCat("element ", i, " is ", data[i]));
  }
  return data[0] != 0;
}

absl::Status Train(RankProcess& self, Communicator& communicator) {
  for (bool stop = false;;) {
    if (!stop) stop = self.Receive(Deadline::Now()).ok();  // "stop", at one rank
    LOCKSTEP_ASSIGN_OR_RETURN(const bool stopped, Step(communicator, stop));
    if (stopped) return absl::OkStatus();
  }
}

absl::StatusOr<std::unique_ptr<World>> Form(const RankProcess& self, const std::string& store_url) {
  WorldOptions options;
  options.rank = options.local_rank = self.rank();
  options.size = options.local_size = self.size();
  options.store_url = store_url;
  options.setup_timeout = milliseconds(40'000);
  options.timeout = milliseconds(40'000);
  return World::Create(options);
}

// Commands, each answered with "ok" or a status as text:
//   form URL   makes a world; without a URL at the store that the environment names
//   train      steps until a rank is told to stop
//   step
//   close      destroys the world
//   end
LOCKSTEP_RANK_FUNCTION(TrainingRank) {
  // Argument: how many descriptors it may have, or 0.
  int descriptors = 0;
  if (!absl::SimpleAtoi(self.arguments()[0], &descriptors)) return absl::InvalidArgumentError(self.arguments()[0]);
  if (descriptors > 0) LOCKSTEP_RETURN_IF_ERROR(Limit(RLIMIT_NOFILE, static_cast<rlim_t>(descriptors)));
  std::unique_ptr<World> world;
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    absl::Status result;
    if (world == nullptr && (words[0] == "train" || words[0] == "step")) {
      result = absl::FailedPreconditionError("there is no world");
    } else if (words[0] == "form") {
      absl::StatusOr<std::unique_ptr<World>> formed = Form(self, words[1]);
      result = formed.status();
      if (formed.ok()) world = *std::move(formed);
    } else if (words[0] == "train") {
      result = Train(self, *world->communicator());
    } else if (words[0] == "step") {
      result = Step(*world->communicator(), false).status();
    } else if (words[0] == "close") {
      world.reset();
    } else if (words[0] == "end") {
      return absl::OkStatus();
    }
    if (words[0] == "stop") continue;  // came behind the last step
    LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ok() ? "ok" : result.ToString()));
  }
}

// Another user of this machine. Arguments: sockets as "type name". Sends "begun", and after 100 connections, or when it is
// told to stop, what came of them.
LOCKSTEP_RANK_FUNCTION(AnotherUser) {
  std::vector<AttackTarget> targets;
  for (const std::string& argument : self.arguments()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(argument, absl::MaxSplits(' ', 1));
    const int type = parts.first == "stream" ? SOCK_STREAM : SOCK_SEQPACKET;
    targets.push_back({{AF_UNIX, type, parts.second}, Purpose::kLocal, "local"});
  }
  constexpr uid_t kAnother = 12345;
  if (setresgid(kAnother, kAnother, kAnother) != 0 || setresuid(kAnother, kAnother, kAnother) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "become another user").message());
  }
  AttackOptions options;
  options.per_second = 100;
  options.patience = milliseconds(10'000);
  bool begun = false;
  const AttackResults results = RunAttacks([&] { return targets; }, options,
                                           [&](const AttackResults& so_far) {
                                             if (!std::exchange(begun, true)) (void)self.Send("begun");
                                             return so_far.connections >= 100 || self.Receive(Deadline::Now()).ok();
                                           });
  const bool all = results.connections > 0 && results.turned_away == results.connections;
  return self.Send(absl::StrCat(all ? "all" : "not all", " turned away, ", results.heard_bytes, " bytes heard, ",
                                results.admitted.size(), " admitted"));
}

// ---- What attackers know

// The own secret of a world of the same job that has ended.
absl::StatusOr<Credentials> SecretOfAnEndedWorld(const Credentials& job) {
  MemoryStore store;
  std::vector<absl::StatusOr<std::unique_ptr<ControlChannel>>> channels(2);
  const auto create = [&](int rank) {
    ControlOptions options;
    options.rank = Rank(rank);
    options.size = 2;
    options.credentials = job;
    options.coordinator_bind_address = *SocketAddress::Parse("127.0.0.1:0");
    channels[rank] = ControlChannel::Create(std::move(options), &store, Soon());
  };
  std::thread other(create, 1);
  create(0);
  other.join();
  for (const auto& channel : channels) LOCKSTEP_RETURN_IF_ERROR(channel.status());
  return (*channels[1])->world_credentials();
}

// What is missing of every attack at each of these listeners in this phase: "train, data, replay". `turned_away`: there the listener
// must have closed the connection, too.
std::vector<std::string> Missing(const AttackResults& results, const AttackWriter& writer, const std::string& phase,
                                 const std::map<std::string, Purpose>& listeners, bool turned_away) {
  std::vector<std::string> missing;
  for (const auto& [listener, purpose] : listeners) {
    for (size_t i = 0; i < kAttacks; ++i) {
      const auto attack = static_cast<Attack>(i);
      if (!writer.Applies(attack, purpose)) continue;
      const auto found = results.cases.find({phase, listener, attack});
      const AttackResults::Count count = found == results.cases.end() ? AttackResults::Count() : found->second;
      if ((turned_away ? count.turned_away : count.connections) > 0) continue;
      missing.push_back(absl::StrCat(phase, ", ", listener, ", ", Name(attack)));
    }
  }
  return missing;
}

// ---- The suite

struct Setting {
  friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

  const char* name;
  std::vector<std::pair<std::string, std::string>> environment;
  Purpose transport;
  rlim_t descriptors;
  bool launchers_store = false;  // as under lockstep-run: this process serves the store from the beginning to the end
};

class UnauthenticatedPeersTest : public ::testing::TestWithParam<Setting> {
 protected:
  UnauthenticatedPeersTest() : secret_path_(absl::StrCat(::testing::TempDir(), "/attacked_secret_", getpid())) {}
  ~UnauthenticatedPeersTest() override { unlink(secret_path_.c_str()); }

  void WriteSecret() {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(secret_, Secret::Draw());
    unlink(secret_path_.c_str());
    const UniqueFd file(open(secret_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string hex = secret_->Hex();
    ASSERT_EQ(write(file.get(), hex.data(), hex.size()), static_cast<ssize_t>(hex.size()));
  }

  void ServeStore() {
    TcpStoreServer::Options options;
    options.credentials = {SecurityLevel::kAuthenticate, secret_, "the job's file"};
    options.handshake_timeout = milliseconds(5'000);  // as at the other listeners: it is waited for
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(launchers_store_,
                                  TcpStoreServer::Create(*SocketAddress::Parse("127.0.0.1:0"), options));
    store_ = launchers_store_->address();
  }

  // Starts the ranks' processes. In a second call of a test they are other processes of the same job.
  void Start(std::vector<std::pair<std::string, std::string>> environment, Purpose transport, rlim_t descriptors) {
    if (secret_ != nullptr) environment.emplace_back("LOCKSTEP_SECRET_FILE", secret_path_);
    if (launchers_store_ != nullptr) {
      environment.emplace_back("LOCKSTEP_STORE", absl::StrCat("tcp://", store_.ToString()));
      environment.emplace_back("LOCKSTEP_STORE_SERVED", "1");
    }
    if (store_.length() == 0) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, FreeAddress());
    }
    targets_ = std::make_unique<AttackTargets>(transport, transport == Purpose::kFabric);
    ProcessGroup::Options options;
    options.size = kRanks;
    options.environment = std::move(environment);
    options.arguments = {absl::StrCat(descriptors)};
    if (group_ != nullptr) earlier_logs_ = Logs();
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("TrainingRank", options));
  }

  // That listen.
  std::vector<pid_t> Processes() const {
    std::vector<pid_t> processes;
    if (launchers_store_ != nullptr) processes.push_back(getpid());
    for (int rank = 0; rank < kRanks; ++rank) processes.push_back(group_->pid(rank));
    return processes;
  }

  std::string FormCommand() const {
    return launchers_store_ != nullptr ? "form " : absl::StrCat("form tcp://", store_.ToString());
  }

  void Tell(int rank, const std::string& command) { ASSERT_THAT(group_->Send(rank, command), IsOk()); }
  void TellAll(const std::string& command) {
    for (int rank = 0; rank < kRanks; ++rank) Tell(rank, command);
  }
  std::vector<std::string> Answers() {
    std::vector<std::string> answers;
    for (int rank = 0; rank < kRanks; ++rank) {
      const absl::StatusOr<std::string> answer = group_->Receive(rank, Soon());
      answers.push_back(answer.ok() ? *answer : answer.status().ToString());
    }
    return answers;
  }
  std::vector<std::string> Ask(const std::string& command) {
    TellAll(command);
    return Answers();
  }

  // Attacks until `done` is true, or a deadline has passed. `patience`: of AttackOptions.
  void AttackUntil(const std::string& phase, milliseconds patience,
                   const std::function<bool(const AttackResults&)>& done) {
    ++options_.seed;
    options_.phase = [phase] { return phase; };
    options_.patience = patience;
    const Deadline deadline = Soon();
    const AttackResults results =
        RunAttacks([&] { return targets_->Find(Processes()); }, options_,
                   [&](const AttackResults& so_far) { return deadline.passed() || done(so_far); });
    std::printf("%s: %d connections, %d turned away, %d left, %d unreachable, %d bytes heard, seed %u\n", phase.c_str(),
                static_cast<int>(results.connections), static_cast<int>(results.turned_away),
                static_cast<int>(results.left), static_cast<int>(results.unreachable),
                static_cast<int>(results.heard_bytes), options_.seed);
    results_.Add(results);
  }

  // Attacks until each attack was made at each of these listeners, then calls `go_on`, and attacks further until `through` is true, which
  // is asked often. Fails the test for attacks that were not made.
  void AttackThrough(const std::string& phase, const std::map<std::string, Purpose>& listeners,
                     const std::function<void()>& go_on, const std::function<bool()>& through) {
    const AttackWriter writer(options_.knowledge, options_.seed);
    bool all_made = false;
    AttackUntil(phase, milliseconds(0), [&](const AttackResults& so_far) {
      if (!all_made && Missing(so_far, writer, phase, listeners, false).empty()) {
        all_made = true;
        go_on();
      }
      return all_made && through();
    });
    EXPECT_THAT(Missing(results_, writer, phase, listeners, false), IsEmpty());
    EXPECT_TRUE(all_made && through()) << phase;
  }

  // Takes what ranks up to this one answer. True once all have.
  bool PollAnswers(int last, std::map<int, std::string>* answers) {
    for (int rank = 0; rank <= last; ++rank) {
      if (answers->count(rank) > 0) continue;
      const absl::StatusOr<std::string> answer = group_->Receive(rank, Deadline::Now());
      if (absl::IsDeadlineExceeded(answer.status())) continue;
      (*answers)[rank] = answer.ok() ? *answer : answer.status().ToString();
    }
    return static_cast<int>(answers->size()) == last + 1;
  }

  // The last rank is missing until all attacks were made. `fabric`: there are attacks on the handshake over libfabric, too.
  void FormUnderAttack(const std::string& phase, const std::map<std::string, Purpose>& listeners, bool fabric) {
    for (int rank = 0; rank < kLast; ++rank) Tell(rank, FormCommand());
    std::map<int, std::string> answers;
    AttackThrough(
        phase, listeners,
        [&] {
          if (fabric) BeginFabricAttacks();
          Tell(kLast, FormCommand());
        },
        [&] {
          (void)PollFabricAttacks();
          return PollAnswers(kLast, &answers);
        });
    ASSERT_THAT(answers, Each(Pair(_, "ok")));
    if (!fabric) return;
    // What has come while ranks were forming may have to wait until they use libfabric again.
    TellAll("train");
    const Deadline deadline = Soon();
    while (!PollFabricAttacks() && !deadline.passed()) usleep(1'000);
    EndFabricAttacks(phase);
    Tell(0, "stop");
    ASSERT_THAT(Answers(), Each("ok"));
  }

  // Waits until the listeners have turned away all attackers, those too that are silent. Ranks then go on under further attacks.
  void TrainUnderAttack(const std::string& phase, const std::map<std::string, Purpose>& listeners) {
    TellAll("train");
    BeginFabricAttacks();
    const AttackWriter writer(options_.knowledge, options_.seed);
    AttackUntil(phase, milliseconds(8'000), [&](const AttackResults& so_far) {
      return PollFabricAttacks() && Missing(so_far, writer, phase, listeners, false).empty();
    });
    EXPECT_THAT(Missing(results_, writer, phase, listeners, true), IsEmpty());
    EndFabricAttacks(phase);
    std::map<int, std::string> answers;
    AttackThrough(
        phase, listeners, [&] { Tell(0, "stop"); }, [&] { return PollAnswers(kLast, &answers); });
    ASSERT_THAT(answers, Each(Pair(_, "ok")));
  }

  // The last rank has closed its world, the others have yet to.
  void CloseUnderAttack(const std::string& phase, const std::map<std::string, Purpose>& listeners) {
    Tell(kLast, "close");
    EXPECT_THAT(group_->Receive(kLast, Soon()), IsOkAndHolds("ok"));
    const auto close = [&] {
      for (int rank = 0; rank < kLast; ++rank) Tell(rank, "close");
    };
    std::map<int, std::string> answers;
    AttackThrough(phase, listeners, close, [&] { return PollAnswers(kLast - 1, &answers); });
    ASSERT_THAT(answers, Each(Pair(_, "ok")));
  }

  // The last rank's process has ended, the others have yet to.
  void EndUnderAttack(const std::string& phase, const std::map<std::string, Purpose>& listeners) {
    Tell(kLast, "end");
    EXPECT_THAT(group_->Wait(kLast, Soon()), IsOk());
    const auto end = [&] {
      for (int rank = 0; rank < kLast; ++rank) Tell(rank, "end");
    };
    std::vector<absl::Status> ends;
    AttackThrough(phase, listeners, end, [&] {
      ends = group_->WaitAll(Deadline::Now());
      return std::none_of(ends.begin(), ends.end(), &absl::IsDeadlineExceeded);
    });
    EXPECT_THAT(ends, Each(IsOk()));
  }

  // Where ranks speak over libfabric: in notices, at all ranks whose endpoint is there.
  void BeginFabricAttacks() {
    for (const AttackTarget& target : targets_->Find(Processes())) {
      if (target.listener != "libfabric's port") continue;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto attacks, FabricAttacks::Begin(*SocketAddress::Parse(target.socket.name),
                                                                       options_.knowledge, ++options_.seed));
      fabric_attacks_.push_back(std::move(attacks));
    }
  }
  bool PollFabricAttacks() {
    bool all = true;
    for (const auto& attacks : fabric_attacks_) all = attacks->Poll() && all;
    return all;
  }
  void EndFabricAttacks(const std::string& phase) {
    if (fabric_attacks_.empty()) return;
    EXPECT_TRUE(PollFabricAttacks()) << phase;
    for (const auto& attacks : fabric_attacks_) attacks->AddTo(phase, &results_);
    fabric_attacks_.clear();
    const AttackWriter writer(options_.knowledge, options_.seed);
    EXPECT_THAT(Missing(results_, writer, phase, {{"fabric", Purpose::kFabric}}, false), IsEmpty());
  }

  // Whatever group it was.
  std::string Logs() const {
    std::string logs = earlier_logs_;
    for (int rank = 0; rank < kRanks; ++rank) absl::StrAppend(&logs, group_->Output(rank));
    return logs;
  }
  // The lines of listeners whose names have this.
  std::string LogsOf(absl::string_view listener) const {
    std::string logs;
    for (const absl::string_view line : absl::StrSplit(Logs(), '\n')) {
      if (absl::StrContains(line, listener)) absl::StrAppend(&logs, line, "\n");
    }
    return logs;
  }

  const std::string secret_path_;
  std::shared_ptr<const Secret> secret_;             // the job's, if it is in the file
  std::unique_ptr<TcpStoreServer> launchers_store_;  // if ranks do not serve it
  SocketAddress store_;
  std::unique_ptr<ProcessGroup> group_;
  std::string earlier_logs_;  // of groups before this one
  std::unique_ptr<AttackTargets> targets_;
  AttackOptions options_;
  AttackResults results_;
  std::vector<std::unique_ptr<FabricAttacks>> fabric_attacks_;  // end before the ranks
};

TEST_P(UnauthenticatedPeersTest, AreTurnedAwayByEveryListenerInEveryPhase) {
  const Setting& setting = GetParam();
  absl::StatusOr<PacketCapture> capture = PacketCapture::Start();
  ASSERT_NO_FATAL_FAILURE(WriteSecret());
  if (setting.launchers_store) {
    ASSERT_NO_FATAL_FAILURE(ServeStore());
  }
  ASSERT_NO_FATAL_FAILURE(Start(setting.environment, setting.transport, setting.descriptors));

  // In quiet, so that what is captured is of ranks alone.
  std::vector<std::string> formed = Ask(FormCommand());
  if (absl::StrContains(formed[0], "UNAVAILABLE: libfabric")) GTEST_SKIP() << formed[0];
  ASSERT_THAT(formed, Each("ok"));
  ASSERT_THAT(Ask("step"), Each("ok"));

  const bool fabric = setting.transport == Purpose::kFabric;
  // Whoever has the job's secret has no data connection by that: a world has a secret of its own, and another one each time.
  AttackKnowledge& knowledge = options_.knowledge;
  knowledge.jobs_secret = {SecurityLevel::kAuthenticate, secret_, "the job's file"};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(knowledge.ended_worlds_secret, SecretOfAnEndedWorld(knowledge.jobs_secret));
  ASSERT_NE(knowledge.ended_worlds_secret.secret, nullptr);
  if (capture.ok()) {
    std::set<uint16_t> ports = PortsOf(ListeningSocketsOf(Processes()));
    ports.insert(store_.port());
    std::set<Purpose> captured;
    for (std::string& stream : capture->Take(ports)) {
      // Of libfabric's own bytes only the flights in them: the others are not ours to protect, and end connections where they are
      // replayed (docs/security.md).
      std::vector<std::string> flights = FabricFlightsIn(stream);
      if (absl::StartsWith(stream, "LKSP")) flights.push_back(std::move(stream));
      for (std::string& flight : flights) {
        captured.insert(static_cast<Purpose>(flight[6]));
        knowledge.streams.push_back(std::move(flight));
      }
    }
    std::set<Purpose> expected = {Purpose::kStore, Purpose::kControl};
    if (setting.transport == Purpose::kData) expected.insert(Purpose::kData);
    captured.erase(Purpose::kFabric);  // found in most runs, not in all
    EXPECT_EQ(captured, expected);
  }

  const std::map<std::string, Purpose> in_set_up = [&] {
    std::map<std::string, Purpose> listeners = {{"store", Purpose::kStore}, {"control", Purpose::kControl}};
    listeners[fabric ? "libfabric's port" : Name(setting.transport)] = setting.transport;
    return listeners;
  }();
  std::map<std::string, Purpose> afterwards = in_set_up;
  if (!setting.launchers_store) afterwards.erase("store");  // ends when the world has formed
  afterwards.erase(Name(Purpose::kLocal));                  // as these do, if all ranks share memory
  std::map<std::string, Purpose> answering = afterwards;
  answering.erase("libfabric's port");  // may keep connections as long as it likes

  options_.at_once = 160;
  ASSERT_NO_FATAL_FAILURE(TrainUnderAttack("train", answering));
  options_.per_second = 500;
  ASSERT_NO_FATAL_FAILURE(CloseUnderAttack("close", afterwards));
  ASSERT_NO_FATAL_FAILURE(FormUnderAttack("form again", in_set_up, fabric));
  ASSERT_NO_FATAL_FAILURE(TrainUnderAttack("train again", answering));
  EndUnderAttack("end", afterwards);
  // Other processes of the same job. Those that have just loaded libfabric have other sockets of it too for a while, and from outside
  // nothing tells which one is the rank's.
  ASSERT_NO_FATAL_FAILURE(Start(setting.environment, setting.transport, setting.descriptors));
  ASSERT_NO_FATAL_FAILURE(FormUnderAttack("form", in_set_up, false));
  ASSERT_THAT(Ask("step"), Each("ok"));
  EndUnderAttack("end of another", afterwards);

  EXPECT_THAT(results_.admitted, IsEmpty());
  EXPECT_GE(results_.connections, 400);
  const char* const of_transport = fabric                                ? "ofi transport"
                                   : setting.transport == Purpose::kData ? "tcp listener"
                                                                         : "unix socket";
  std::vector<const char*> refusing = {"coordinator", of_transport};
  if (!setting.launchers_store) refusing.push_back("store server");  // else its log is this process's
  for (const char* listener : refusing) EXPECT_THAT(LoggedRefusals(LogsOf(listener)), Not(IsEmpty())) << listener;
  if (setting.launchers_store) {
    int64_t turned_away = 0;
    for (const auto& [attack_case, count] : results_.cases) {
      if (std::get<1>(attack_case) == "store") turned_away += count.turned_away;
    }
    EXPECT_GE(launchers_store_->refusals().total(), turned_away);
  }
  // Not of each listener: with few descriptors some connections make way before their bytes are read.
  std::vector<Refusal> expected = {Refusal::kNotOurs,      Refusal::kOldProtocol, Refusal::kOtherVersion,
                                   Refusal::kOtherPurpose, Refusal::kOtherLevel,  Refusal::kNoSecret,
                                   Refusal::kBroken,       Refusal::kTooLong,     Refusal::kSilent};
  if (setting.descriptors > 0) expected.push_back(Refusal::kCrowded);
  const std::map<Refusal, int64_t> refusals = LoggedRefusals(Logs());
  for (const Refusal kind : expected) EXPECT_THAT(refusals, Contains(Key(kind))) << Text(kind);
  // Nobody got as far as to be asked for a place in the world.
  EXPECT_THAT(refusals, Not(Contains(Key(Refusal::kOtherWorld))));
  EXPECT_THAT(Logs(), Not(HasSubstr("a connection was turned away")));
  EXPECT_THAT(Logs(), ContainsRegex("turned away 127\\.0\\.0\\.[1-4]:[0-9]+: it does not have the secret"));
  if (!capture.ok()) GTEST_SKIP() << "no replays of what ranks have sent: " << capture.status();
}

INSTANTIATE_TEST_SUITE_P(
    Over, UnauthenticatedPeersTest,
    ::testing::Values(
        Setting{"Tcp", {{"LOCKSTEP_TRANSPORT", "tcp"}}, Purpose::kData, kFewDescriptors},
        Setting{"TcpEncrypted",
                {{"LOCKSTEP_TRANSPORT", "tcp"}, {"LOCKSTEP_SECURITY", "encrypt"}},
                Purpose::kData,
                kFewDescriptors},
        Setting{"TcpAndTheLaunchersStore", {{"LOCKSTEP_TRANSPORT", "tcp"}}, Purpose::kData, kFewDescriptors, true},
        Setting{"SharedMemory", {{"LOCKSTEP_TRANSPORT", "shm"}}, Purpose::kLocal, kFewDescriptors},
        // The provider's own sockets are not ours to bound.
        Setting{"Libfabric", {{"LOCKSTEP_TRANSPORT", "ofi"}, {"LOCKSTEP_OFI_PROVIDER", "tcp"}}, Purpose::kFabric, 0}),
    [](const ::testing::TestParamInfo<Setting>& info) { return info.param.name; });

using UnauthenticatedPeersAtOneSettingTest = UnauthenticatedPeersTest;

// What the others rest on: that the suite sees it when somebody is admitted.
TEST_F(UnauthenticatedPeersAtOneSettingTest, AreSeenToBeAdmittedWhereSecurityIsNone) {
  ASSERT_NO_FATAL_FAILURE(Start({{"LOCKSTEP_TRANSPORT", "tcp"}, {"LOCKSTEP_SECURITY", "none"}}, Purpose::kData, 0));
  ASSERT_THAT(Ask(FormCommand()), Each("ok"));
  TellAll("train");
  AttackUntil("train", milliseconds(0), [](const AttackResults& so_far) { return so_far.connections >= 200; });
  EXPECT_THAT(results_.admitted, Contains(HasSubstr("admitted level none")));
}

// The sockets that share memory and those that hand out a secret believe the kernel about who is there.
TEST_F(UnauthenticatedPeersAtOneSettingTest, OfAnotherUserHearNothing) {
  ASSERT_NO_FATAL_FAILURE(Start({{"LOCKSTEP_TRANSPORT", "shm"}}, Purpose::kLocal, 0));
  // With the last rank missing, the store still hands out its secret.
  for (int rank = 0; rank < kRanks - 1; ++rank) Tell(rank, FormCommand());
  std::vector<std::string> arguments;
  // Those of which the name has that, as arguments. Listeners of shared memory are not looked after while their rank waits for others.
  const auto find_sockets = [&](absl::string_view part) {
    arguments.clear();
    for (const ListeningSocket& socket : ListeningSocketsOf(Processes())) {
      if (socket.family != AF_UNIX || !absl::StrContains(socket.name, part)) continue;
      arguments.push_back(absl::StrCat(socket.type == SOCK_STREAM ? "stream " : "seqpacket ", socket.name));
    }
    return !arguments.empty();
  };
  const Deadline deadline = Soon();
  while (!find_sockets("secret") && !deadline.passed()) usleep(10'000);
  ASSERT_FALSE(deadline.passed()) << "nobody hands out a secret";

  const auto attack_as_another_user = [&](const std::function<void(ProcessGroup & another)>& meanwhile) {
    ProcessGroup::Options options;
    options.arguments = arguments;
    auto another = ProcessGroup::Start("AnotherUser", options);
    if (!another.ok()) return another.status().ToString();
    if ((*another)->Receive(0, Soon()).ok()) meanwhile(**another);
    const absl::StatusOr<std::string> told = (*another)->Receive(0, Soon());
    const absl::Status end = (*another)->Wait(0, Soon());
    return told.ok() ? *told : end.ToString();
  };
  std::string told = attack_as_another_user([](ProcessGroup&) {});
  if (absl::StartsWith(told, "UNAVAILABLE")) GTEST_SKIP() << told;
  EXPECT_THAT(told, ContainsRegex("^all turned away, 0 bytes heard, 0 admitted"));

  (void)find_sockets("lockstep-");
  ASSERT_GE(arguments.size(), kRanks - 1);  // the listeners of shared memory, which close when the world has formed
  told = attack_as_another_user([&](ProcessGroup& another) {
    Tell(kRanks - 1, FormCommand());
    EXPECT_THAT(Answers(), Each("ok"));
    EXPECT_THAT(another.Send(0, "stop"), IsOk());
  });
  EXPECT_THAT(told, ContainsRegex("^all turned away, 0 bytes heard, 0 admitted"));
  (void)find_sockets("lockstep-");
  EXPECT_THAT(arguments, IsEmpty());
  TellAll("end");
  EXPECT_THAT(group_->WaitAll(Soon()), Each(IsOk()));
  EXPECT_THAT(LoggedRefusals(Logs()), Contains(Key(Refusal::kOtherUser)));
}

}  // namespace
}  // namespace lockstep

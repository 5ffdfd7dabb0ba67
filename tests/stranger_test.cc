// Strangers at the listeners of a job, from outside. Method: three ranks are processes that train in a loop and check every result,
// while this process, which knows nothing but what /proc tells, visits all their ports with all attacks: when they have formed, when the
// last of them has yet to come, when they form again at the same port, when they end. Ranks have few descriptors, fewer than strangers
// take. A stranger is in if a listener goes on with it beyond a handshake.

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/processes.h"
#include "tests/stranger.h"
#include "tests/stranger_captures.h"
#include "transport/control/control.h"
#include "transport/net/socket.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr size_t kCount = 20'000;
constexpr rlim_t kFewDescriptors = 64;

Deadline Soon() { return Deadline::AfterMs(60'000); }

// ---- The job

// Adds up ones; the first element counts the ranks that want to stop.
absl::StatusOr<bool> Step(Communicator& self, bool stop) {
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
//   form URL   makes a world
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
    if (words[0] == "form") {
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

// Another user of this machine. Arguments: doors as "type name". Sends what it has done there.
LOCKSTEP_RANK_FUNCTION(AnotherUser) {
  std::vector<Door> doors;
  for (const std::string& argument : self.arguments()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(argument, absl::MaxSplits(' ', 1));
    doors.push_back({AF_UNIX, parts.first == "stream" ? SOCK_STREAM : SOCK_SEQPACKET, parts.second});
  }
  constexpr uid_t kAnother = 12345;
  if (setresgid(kAnother, kAnother, kAnother) != 0 || setresuid(kAnother, kAnother, kAnother) != 0) {
    return absl::UnavailableError(ErrnoStatus(errno, "become another user").message());
  }
  RaidOptions options;
  options.per_second = 100;
  options.patience = milliseconds(3'000);
  const Tally tally = Raid([&] { return doors; }, 100, options);
  return self.Send(absl::StrCat(tally.total(), " visits, ", tally.turned_away, " turned away, ", tally.heard_bytes,
                                " bytes heard, ", tally.admitted.size(), " admitted"));
}

// ---- What strangers have

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

std::set<uint16_t> PortsOf(const std::vector<Door>& doors) {
  std::set<uint16_t> ports;
  for (const Door& door : doors) {
    if (door.family != AF_UNIX) ports.insert(SocketAddress::Parse(door.name)->port());
  }
  return ports;
}

// ---- The suite

struct Setting {
  friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

  const char* name;
  std::vector<std::pair<std::string, std::string>> environment;
  bool secret_file;  // else a secret is handed out
  rlim_t descriptors;
};

class StrangerTest : public ::testing::TestWithParam<Setting> {
 protected:
  StrangerTest() : secret_path_(absl::StrCat(::testing::TempDir(), "/stranger_secret_", getpid())) {}
  ~StrangerTest() override { unlink(secret_path_.c_str()); }

  void WriteSecret() {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(secret_, Secret::Draw());
    unlink(secret_path_.c_str());
    const UniqueFd file(open(secret_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string hex = secret_->Hex();
    ASSERT_EQ(write(file.get(), hex.data(), hex.size()), static_cast<ssize_t>(hex.size()));
  }

  void Start(std::vector<std::pair<std::string, std::string>> environment, bool secret_file, rlim_t descriptors) {
    if (secret_file) {
      WriteSecret();
      environment.emplace_back("LOCKSTEP_SECRET_FILE", secret_path_);
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(store_, FreeAddress());
    ProcessGroup::Options options;
    options.size = kRanks;
    options.environment = std::move(environment);
    options.arguments = {absl::StrCat(descriptors)};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("TrainingRank", options));
  }

  std::vector<Door> Doors() const {
    std::vector<pid_t> processes;
    for (int rank = 0; rank < kRanks; ++rank) processes.push_back(group_->pid(rank));
    return DoorsOf(processes);
  }

  std::string FormCommand() const { return absl::StrCat("form tcp://", store_.ToString()); }

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

  // Lets strangers in front of the doors.
  void RaidDoors(
      int64_t visits, const RaidOptions& options, const std::function<bool()>& stop = [] { return false; }) {
    const Tally tally = Raid([this] { return Doors(); }, visits, options, stop);
    std::printf("%d visits, %d turned away, %d left, %d unreachable, %d bytes heard\n", static_cast<int>(tally.total()),
                static_cast<int>(tally.turned_away), static_cast<int>(tally.left), static_cast<int>(tally.unreachable),
                static_cast<int>(tally.heard_bytes));
    tally_.Add(tally);
  }

  // The same until all ranks have answered.
  std::vector<std::string> AnswersUnderRaid(const RaidOptions& options) {
    std::vector<absl::optional<std::string>> answers(kRanks);
    const Deadline deadline = Soon();
    RaidDoors(1'000'000, options, [&] {
      bool all = true;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (answers[rank].has_value()) continue;
        const absl::StatusOr<std::string> answer = group_->Receive(rank, Deadline::Now());
        if (answer.ok()) {
          answers[rank] = *answer;
        } else if (!absl::IsDeadlineExceeded(answer.status()) || deadline.passed()) {
          answers[rank] = answer.status().ToString();
        }
        all = all && answers[rank].has_value();
      }
      return all;
    });
    std::vector<std::string> texts;
    for (const auto& answer : answers) texts.push_back(answer.value_or("no answer"));
    return texts;
  }

  std::string Logs() const {
    std::string logs;
    for (int rank = 0; rank < kRanks; ++rank) absl::StrAppend(&logs, group_->Output(rank));
    return logs;
  }

  const std::string secret_path_;
  std::shared_ptr<const Secret> secret_;  // the job's, if it is in the file
  SocketAddress store_;
  std::unique_ptr<ProcessGroup> group_;
  Tally tally_;
};

TEST_P(StrangerTest, AreTurnedAwayWhileRanksFormTrainAndFormAgain) {
  const Setting& setting = GetParam();
  absl::StatusOr<Wiretap> tap = Wiretap::Start();
  ASSERT_NO_FATAL_FAILURE(Start(setting.environment, setting.secret_file, setting.descriptors));

  // A quiet world, so that captures are of ranks alone.
  std::vector<std::string> formed = Ask(FormCommand());
  if (absl::StrContains(formed[0], "UNAVAILABLE: libfabric")) {
    GTEST_SKIP() << formed[0];
  }
  ASSERT_THAT(formed, Each("ok"));
  ASSERT_THAT(Ask("step"), Each("ok"));

  RaidOptions options;
  options.at_once = 40;
  options.loot.keys = {KeyOfAnotherJob()};
  if (secret_ != nullptr) {
    // Whoever has the job's secret has no data connection by that: a world has a secret of its own, and another one each time.
    const Credentials job = {SecurityLevel::kAuthenticate, secret_, "the job's file"};
    options.loot.keys.push_back({job, {Purpose::kData, Purpose::kLocal, Purpose::kFabric}});
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Credentials ended, SecretOfAnEndedWorld(job));
    ASSERT_NE(ended.secret, nullptr);
    options.loot.keys.push_back({std::move(ended), KeyOfAnotherJob().purposes});
  }
  if (tap.ok()) {
    std::set<uint16_t> ports = PortsOf(Doors());
    ports.insert(store_.port());
    options.loot.captures = tap->Take(ports);
    if (absl::string_view(setting.name) == "Libfabric") {
      // What libfabric says at its own door is not ours to protect: replayed there, it ends connections (docs/security.md).
      options.loot.captures.erase(
          std::remove_if(options.loot.captures.begin(), options.loot.captures.end(),
                         [](const std::string& capture) { return !absl::StartsWith(capture, "LKSP"); }),
          options.loot.captures.end());
    }
    EXPECT_GE(options.loot.captures.size(), 2 * kRanks);  // of the store and of the control channel
    EXPECT_THAT(options.loot.captures, Contains(StartsWith("LKSP")));
  }

  // Training. Then those wait that are to be turned away for their silence.
  TellAll("train");
  options.patience = milliseconds(8'000);
  RaidDoors(250, options);
  options.patience = milliseconds(0);
  Tell(0, "stop");
  ASSERT_THAT(Answers(), Each("ok"));

  // The same ranks form again at the same port, the last of them when strangers sit before the others.
  options.per_second = 200;
  TellAll("close");
  ASSERT_THAT(AnswersUnderRaid(options), Each("ok"));
  for (int rank = 0; rank < kRanks - 1; ++rank) Tell(rank, FormCommand());
  RaidDoors(150, options);
  Tell(kRanks - 1, FormCommand());
  ASSERT_THAT(AnswersUnderRaid(options), Each("ok"));
  TellAll("train");
  RaidDoors(100, options);
  Tell(0, "stop");
  ASSERT_THAT(AnswersUnderRaid(options), Each("ok"));

  TellAll("end");
  const Deadline deadline = Soon();
  std::vector<absl::Status> ends;
  RaidDoors(1'000'000, options, [&] {
    ends = group_->WaitAll(Deadline::Now());
    bool ended = true;
    for (const absl::Status& end : ends) ended = ended && !absl::IsDeadlineExceeded(end);
    return ended || deadline.passed();
  });
  EXPECT_THAT(ends, Each(IsOk()));

  EXPECT_THAT(tally_.admitted, IsEmpty());
  EXPECT_GE(tally_.total(), 400);
  const std::map<Refusal, int64_t> refusals = RefusalsIn(Logs());
  std::vector<Refusal> expected = {Refusal::kNotOurs,      Refusal::kOldProtocol, Refusal::kOtherVersion,
                                   Refusal::kOtherPurpose, Refusal::kOtherLevel,  Refusal::kNoSecret,
                                   Refusal::kBroken,       Refusal::kTooLong,     Refusal::kSilent};
  if (setting.descriptors > 0) expected.push_back(Refusal::kCrowded);
  for (const Refusal kind : expected) EXPECT_THAT(refusals, Contains(Key(kind))) << Text(kind);
  EXPECT_THAT(Logs(), ContainsRegex("turned away 127\\.0\\.0\\.[1-4]:[0-9]+: it does not have the secret"));
}

INSTANTIATE_TEST_SUITE_P(Over, StrangerTest,
                         ::testing::Values(Setting{"Tcp", {{"LOCKSTEP_TRANSPORT", "tcp"}}, true, kFewDescriptors},
                                           Setting{"TcpEncrypted",
                                                   {{"LOCKSTEP_TRANSPORT", "tcp"}, {"LOCKSTEP_SECURITY", "encrypt"}},
                                                   true,
                                                   kFewDescriptors},
                                           Setting{
                                               "SharedMemory", {{"LOCKSTEP_TRANSPORT", "shm"}}, false, kFewDescriptors},
                                           // The provider's own sockets are not ours to bound.
                                           Setting{"Libfabric", {{"LOCKSTEP_TRANSPORT", "ofi"}}, true, 0}),
                         [](const ::testing::TestParamInfo<Setting>& info) { return info.param.name; });

using StrangerAtOneSettingTest = StrangerTest;

// What the others rest on: that the suite sees it when somebody is let in.
TEST_F(StrangerAtOneSettingTest, IsSeenToBeLetInWhereSecurityIsNone) {
  ASSERT_NO_FATAL_FAILURE(
      Start({{"LOCKSTEP_TRANSPORT", "tcp"}, {"LOCKSTEP_SECURITY", "none"}}, /*secret_file=*/false, 0));
  ASSERT_THAT(Ask(FormCommand()), Each("ok"));
  TellAll("train");
  RaidOptions options;
  options.per_second = 200;
  RaidDoors(200, options);
  EXPECT_THAT(tally_.admitted, Contains(HasSubstr("let level none in")));
}

// The sockets that share memory and those that hand out a secret believe the kernel about who is there.
TEST_F(StrangerAtOneSettingTest, OfAnotherUserHearsNothing) {
  ASSERT_NO_FATAL_FAILURE(Start({{"LOCKSTEP_TRANSPORT", "shm"}}, /*secret_file=*/false, 0));
  // With the last rank missing, the store still hands out its secret.
  for (int rank = 0; rank < kRanks - 1; ++rank) Tell(rank, FormCommand());
  std::vector<std::string> arguments;
  // Those of which the name has that, as arguments. Listeners of shared memory are not looked after while their rank waits for others.
  const auto find_doors = [&](absl::string_view part) {
    arguments.clear();
    for (const Door& door : Doors()) {
      if (door.family != AF_UNIX || !absl::StrContains(door.name, part)) continue;
      arguments.push_back(absl::StrCat(door.type == SOCK_STREAM ? "stream " : "seqpacket ", door.name));
    }
    return !arguments.empty();
  };
  const Deadline deadline = Soon();
  while (!find_doors("secret") && !deadline.passed()) usleep(10'000);
  ASSERT_FALSE(deadline.passed()) << "nobody hands out a secret";

  const auto visit_as_another_user = [&] {
    ProcessGroup::Options options;
    options.arguments = arguments;
    auto another = ProcessGroup::Start("AnotherUser", options);
    if (!another.ok()) return another.status().ToString();
    const absl::StatusOr<std::string> told = (*another)->Receive(0, Soon());
    const absl::Status end = (*another)->Wait(0, Soon());
    return told.ok() ? *told : end.ToString();
  };
  std::string told = visit_as_another_user();
  if (absl::StartsWith(told, "UNAVAILABLE")) GTEST_SKIP() << told;
  EXPECT_THAT(told, ContainsRegex("^100 visits, 100 turned away, 0 bytes heard, 0 admitted"));

  Tell(kRanks - 1, FormCommand());
  ASSERT_THAT(Answers(), Each("ok"));
  (void)find_doors("lockstep-");
  ASSERT_GE(arguments.size(), kRanks);  // the listeners of shared memory
  TellAll("train");
  EXPECT_THAT(visit_as_another_user(), ContainsRegex("^100 visits, 100 turned away, 0 bytes heard, 0 admitted"));
  Tell(0, "stop");
  ASSERT_THAT(Answers(), Each("ok"));
  TellAll("end");
  EXPECT_THAT(group_->WaitAll(Soon()), Each(IsOk()));
  EXPECT_THAT(RefusalsIn(Logs()), Contains(Key(Refusal::kOtherUser)));
}

}  // namespace
}  // namespace lockstep

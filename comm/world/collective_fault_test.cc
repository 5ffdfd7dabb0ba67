// Ranks as processes, one of which dies, stops or closes its communicator while a collective is under way: every collective and
// messages, over every transport, in memory of the communicator's allocator, and between hosts. Method: four ranks lose one in the
// middle of its own call, at a random moment of it; the three survivors must all be told its name, make a new world in the same
// processes and get the same collective right in it. They then lose another one, which never enters the collective that they are
// in, and the last two go on.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <random>
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
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_testing.h"
#include "tests/processes.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 4;
// What the ranks share: one transport for all; "symmetric": shared memory in which the vectors lie, too; "two_hosts": two of them
// share memory, and so do the others, with TCP between.
constexpr char kTcp[] = "tcp", kShm[] = "shm", kSymmetric[] = "symmetric", kTwoHosts[] = "two_hosts";
constexpr char kKill[] = "kill", kStop[] = "stop", kClose[] = "close";

// Only a stopped rank is found by its silence; the others must be found long before it would be.
constexpr milliseconds kPatience(60'000);
constexpr milliseconds kPeerTimeout(2000);  // longer than a busy machine holds a healthy rank up
constexpr milliseconds kOperationTimeout(120'000);
Deadline Soon() { return Deadline::AfterMs(45'000); }

// ---- In the processes

constexpr size_t kMessageBytes = size_t{2} << 20;  // four times what a mailbox holds
constexpr size_t kBlockCount = 150'000, kWholeCount = 500'000;
constexpr char kUnwritten = 0x5a;

CollectiveCase CaseOf(const std::string& name) {
  CollectiveCase c;
  c.collective = Collective::kBarrier;
  for (const Collective collective : kAllCollectives) {
    if (Name(collective) == name) c.collective = collective;
  }
  c.count = IsByRank(c.collective) ? kBlockCount : kWholeCount;
  return c;
}

// The operation that a fault interrupts: one collective, or a message from each rank to the next. It may be repeated, and each result is
// checked. Used by one thread.
class FaultOperation {
 public:
  static constexpr char kMessages[] = "messages";

  // Bytes of a symmetric buffer with room for any operation of a world of at most `size` ranks.
  static size_t SymmetricBytes(int size);

  // `name` is a collective's or kMessages. Its vectors are ordinary memory; those of a collective may lie in `symmetric`. Borrows
  // communicator and buffer.
  FaultOperation(const std::string& name, Communicator* self, SymmetricBuffer* symmetric = nullptr);

  // Executes it and checks the result. DATA_LOSS if the result is wrong.
  absl::Status Run();

  // REQUIRES  the last one is done
  absl::StatusOr<Work> Start();

 private:
  SendRequest Outgoing() const;
  ReceiveRequest Incoming();
  absl::Status Exchange();
  absl::Status RunCollective();
  std::string FindWrong();

  Communicator& self_;
  const bool is_collective_;
  const CaseReference reference_;
  CaseRun run_;
  CollectiveRequest request_;  // of run_, or the same in symmetric memory
  std::vector<char> sent_, received_;
};

size_t FaultOperation::SymmetricBytes(int size) {
  return 2 * sizeof(float) * std::max(kWholeCount, size * kBlockCount);
}

FaultOperation::FaultOperation(const std::string& name, Communicator* self, SymmetricBuffer* symmetric)
    : self_(*self),
      is_collective_(name != kMessages),
      reference_(CaseOf(name), self->size()),
      run_(reference_, self->rank()),
      request_(run_.request()) {
  if (!is_collective_) {
    sent_.assign(kMessageBytes, static_cast<char>('a' + self->rank().value()));
    received_.resize(kMessageBytes);
  } else if (symmetric != nullptr) {
    LOCKSTEP_CHECK(symmetric->bytes() >= SymmetricBytes(self->size()));
    const std::vector<char>& input = reference_.input(self->rank().value());
    std::copy(input.begin(), input.end(), symmetric->data());
    if (request_.input != nullptr) request_.input = symmetric->data();
    if (request_.output != nullptr) request_.output = symmetric->data() + symmetric->bytes() / 2;
  }
}

absl::Status FaultOperation::Run() {
  LOCKSTEP_RETURN_IF_ERROR(is_collective_ ? RunCollective() : Exchange());
  const std::string wrong = FindWrong();
  return wrong.empty() ? absl::OkStatus() : absl::DataLossError(wrong);
}

absl::StatusOr<Work> FaultOperation::Start() {
  if (is_collective_) return self_.Start(request_);
  LOCKSTEP_RETURN_IF_ERROR(self_.StartGroup());
  LOCKSTEP_RETURN_IF_ERROR(self_.StartReceive(Incoming()).status());
  LOCKSTEP_RETURN_IF_ERROR(self_.StartSend(Outgoing()).status());
  return self_.EndGroup();
}

SendRequest FaultOperation::Outgoing() const {
  SendRequest request;
  request.target = Rank((self_.rank().value() + 1) % self_.size());
  request.data = sent_.data();
  request.bytes = sent_.size();
  return request;
}

ReceiveRequest FaultOperation::Incoming() {
  ReceiveRequest request;
  request.source = Rank((self_.rank().value() + self_.size() - 1) % self_.size());
  request.data = received_.data();
  request.bytes = received_.size();
  return request;
}

absl::Status FaultOperation::Exchange() {
  LOCKSTEP_ASSIGN_OR_RETURN(Work receive, self_.StartReceive(Incoming()));
  absl::Status status = self_.Send(Outgoing());
  status.Update(receive.Wait(Deadline::Infinite()));
  return status;
}

absl::Status FaultOperation::RunCollective() {
  if (request_.output == run_.request().output) return self_.Run(request_);
  // What is checked lies in ordinary memory.
  const size_t bytes = reference_.expected(self_.rank().value()).size();
  auto* const output = static_cast<char*>(request_.output);
  std::fill_n(output, bytes, kUnwritten);
  LOCKSTEP_RETURN_IF_ERROR(self_.Run(request_));
  std::copy_n(output, bytes, static_cast<char*>(run_.request().output));
  return absl::OkStatus();
}

std::string FaultOperation::FindWrong() {
  if (is_collective_) return run_.Check();
  const std::vector<char> expected(kMessageBytes, static_cast<char>('a' + Incoming().source.value()));
  return received_ == expected ? "" : "another message arrived";
}

// A world, and with kSymmetric memory of its allocator.
struct Place {
  std::unique_ptr<World> world;
  std::unique_ptr<SymmetricBuffer> symmetric;  // goes before the world

  Communicator* communicator() const { return world->communicator(); }
  FaultOperation Operation(const std::string& name) const { return {name, communicator(), symmetric.get()}; }
};

// Arguments: the store, what the ranks share, the peer timeout in milliseconds.
absl::StatusOr<Place> Meet(const RankProcess& self, int rank, int size, const std::string& job) {
  const std::vector<std::string>& arguments = self.arguments();
  const std::string& shared = arguments[1];
  int peer_timeout_ms = 0;
  if (!absl::SimpleAtoi(arguments[2], &peer_timeout_ms)) return absl::InvalidArgumentError(arguments[2]);
  WorldOptions options;
  options.rank = rank;
  options.size = size;
  options.job_id = job;
  options.store_url = arguments[0];
  options.transport = shared == kSymmetric ? "shm" : shared == kTwoHosts ? "auto" : shared;
  if (shared == kTwoHosts) {
    options.host_id = self.rank() < self.size() / 2 ? "left" : "right";
  } else {
    options.local_rank = rank;
    options.local_size = size;
  }
  options.setup_timeout = milliseconds(40'000);
  options.timeout = kOperationTimeout;
  options.peer_timeout = milliseconds(peer_timeout_ms);
  Place place;
  LOCKSTEP_ASSIGN_OR_RETURN(place.world, World::Create(options));
  if (shared == kTwoHosts && size == self.size()) {
    const std::string routes = place.communicator()->Describe();
    const bool both = absl::StrContains(routes, " over shm") && absl::StrContains(routes, " over tcp ");
    if (!both) return absl::InternalError(absl::StrCat("not over both:\n", routes));
  }
  if (shared == kSymmetric) {
    LOCKSTEP_ASSIGN_OR_RETURN(place.symmetric, place.communicator()->Allocate(FaultOperation::SymmetricBytes(size)));
    if (!place.symmetric->shared()) return absl::InternalError("the memory is not shared");
  }
  return place;
}

// Does it to this process. Returns when it has closed its world, or was stopped and is awake again.
void Commit(const std::string& fault, Place* place) {
  if (fault == kClose) {
    *place = Place();
  } else {
    (void)kill(getpid(), fault == kKill ? SIGKILL : SIGSTOP);
  }
}

// Runs the operation until it fails.
absl::Status RunOn(FaultOperation* operation) {
  const Deadline deadline = Soon();
  while (!deadline.passed()) LOCKSTEP_RETURN_IF_ERROR(operation->Run());
  return absl::OkStatus();
}

// Commits the fault while the operation is under way here; returns how that ended.
absl::Status FaultWithin(const std::string& name, const std::string& fault, int seed, Place* place) {
  FaultOperation operation = place->Operation(name);
  const auto begin = Deadline::Clock::now();
  LOCKSTEP_RETURN_IF_ERROR(operation.Run());
  const std::chrono::nanoseconds whole = Deadline::Clock::now() - begin;
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> moment(0, whole.count());
  if (fault != kClose) {
    // Wherever this process is by then: waiting, copying, in a system call.
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::nanoseconds(moment(random)));
      Commit(fault, place);
    });
    const absl::Status status = RunOn(&operation);
    other.join();
    return status;
  }
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(Work work, operation.Start());
    (void)work.Wait(Deadline::After(std::chrono::nanoseconds(moment(random))));
    if (work.done()) continue;
    Commit(fault, place);
    return work.Wait(Deadline::Now());
  }
}

// Commands, each answered with "ok" or a status as text:
//   world RANK SIZE JOB    makes a world, and only then lets go of the one before
//   once OPERATION         one of it
//   until OPERATION        says "entering", then repeats it until it fails
//   within OPERATION FAULT SEED    commits the fault while it is in the operation
//   outside FAULT          commits the fault
//   end
LOCKSTEP_RANK_FUNCTION(FaultyRank) {
  Place place;
  for (;;) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string command, self.Receive(Soon()));
    const std::vector<std::string> words = absl::StrSplit(command, ' ');
    absl::Status result;
    int first = 0, second = 0;
    if (words[0] == "world" && absl::SimpleAtoi(words[1], &first) && absl::SimpleAtoi(words[2], &second)) {
      absl::StatusOr<Place> made = Meet(self, first, second, words[3]);
      result = made.status();
      if (made.ok()) place = *std::move(made);
    } else if (words[0] == "once") {
      result = place.Operation(words[1]).Run();
      if (place.symmetric != nullptr && !absl::StrContains(place.communicator()->FlightRecords(), "direct")) {
        result.Update(absl::InternalError("not carried out in shared memory"));
      }
    } else if (words[0] == "until") {
      FaultOperation operation = place.Operation(words[1]);
      LOCKSTEP_RETURN_IF_ERROR(self.Send("entering"));
      result = RunOn(&operation);
    } else if (words[0] == "within" && absl::SimpleAtoi(words[3], &first)) {
      result = FaultWithin(words[1], words[2], first, &place);
    } else if (words[0] == "outside") {
      Commit(words[1], &place);
      if (place.world != nullptr) {  // it was stopped, and finds out what was said about it
        FaultOperation barrier = place.Operation(Name(Collective::kBarrier));
        result = RunOn(&barrier);
      }
    } else {
      return absl::OkStatus();
    }
    LOCKSTEP_RETURN_IF_ERROR(self.Send(result.ok() ? "ok" : result.ToString()));
  }
}

// ---- In the test

// Operation, what the ranks share, fault.
using FaultCase = std::tuple<std::string, std::string, std::string>;

class CollectiveFaultTest : public ::testing::TestWithParam<FaultCase> {
 protected:
  CollectiveFaultTest() : path_(absl::StrCat(::testing::TempDir(), "/collective_fault_", getpid())) {}
  ~CollectiveFaultTest() override { unlink(path_.c_str()); }

  const std::string& operation() const { return std::get<0>(GetParam()); }
  const std::string& fault() const { return std::get<2>(GetParam()); }

  void Start() {
    ProcessGroup::Options options;
    options.size = kRanks;
    const milliseconds peer_timeout = fault() == kStop ? kPeerTimeout : kPatience;
    options.arguments = {absl::StrCat("file://", path_), std::get<1>(GetParam()), absl::StrCat(peer_timeout.count())};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(group_, ProcessGroup::Start("FaultyRank", options));
    for (int process = 0; process < kRanks; ++process) members_.push_back(process);
    FormWorld();
  }

  void Tell(int process, const std::string& command) { ASSERT_THAT(group_->Send(process, command), IsOk()); }
  void TellAll(const std::string& command) {
    for (const int process : members_) Tell(process, command);
  }
  std::string Answer(int process) {
    const absl::StatusOr<std::string> answer = group_->Receive(process, Soon());
    return answer.ok() ? *answer : absl::StrCat("no answer: ", answer.status().ToString());
  }
  std::vector<std::string> Answers() {
    std::vector<std::string> answers;
    for (const int process : members_) answers.push_back(Answer(process));
    return answers;
  }

  // Of the members, in their order, which then get the operation right.
  void FormWorld() {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      Tell(members_[rank], absl::StrCat("world ", rank, " ", members_.size(), " of-", members_.size()));
    }
    EXPECT_THAT(Answers(), Each("ok"));
    ExpectUsable();
  }
  void ExpectUsable() {
    TellAll(absl::StrCat("once ", operation()));
    EXPECT_THAT(Answers(), Each("ok"));
  }

  // From the rank's name on, without what is attached.
  static std::string CauseIn(const std::string& error, int rank) {
    const size_t begin = error.rfind(absl::StrCat("rank ", rank, " (host "));
    return begin == std::string::npos ? error : error.substr(begin, error.find(" [lockstep=", begin) - begin);
  }

  // Rank `victim` faults, in its call with this seed or without entering one. The others are told so, and go on.
  void Lose(int victim, absl::optional<int> seed) {
    const int lost = members_[victim];
    members_.erase(members_.begin() + victim);
    TellAll(absl::StrCat("until ", operation()));
    if (seed.has_value()) Tell(lost, absl::StrCat("within ", operation(), " ", fault(), " ", *seed));
    EXPECT_THAT(Answers(), Each("entering"));
    if (!seed.has_value()) Tell(lost, absl::StrCat("outside ", fault()));

    const std::vector<std::string> errors = Answers();
    const char* const what = fault() == kKill   ? "died"
                             : fault() == kStop ? "is unresponsive: no heartbeat for 2 s"
                                                : "has closed its communicator";
    EXPECT_THAT(errors, Each(AllOf(StartsWith("ABORTED: "), HasSubstr(absl::StrCat("rank ", victim, " (host ")),
                                   HasSubstr(absl::StrCat("pid ", group_->pid(lost), ") ", what)))));
    // Which call it was, and how far it had come; or that it came too late to be started.
    const std::string call = operation() == FaultOperation::kMessages ? "(send|receive)" : operation();
    EXPECT_THAT(errors, Each(ContainsRegex(absl::StrCat(
                            "^ABORTED: ", call,
                            "( #[0-9]+.* B, (not begun|sent [0-9]+ B, received [0-9]+ B)|.* with any tag|.* with tag "
                            "[0-9]+|.*: the communicator has ended)"))));
    EXPECT_THAT(errors, Each(ContainsRegex(absl::StrCat("collective=", call))));
    // When rank 0 disconnects, nobody is left to tell all ranks the same.
    if (victim != 0 || fault() != kClose) {
      std::vector<std::string> causes;
      for (const std::string& error : errors) causes.push_back(CauseIn(error, victim));
      EXPECT_THAT(causes, Each(causes[0]));
      EXPECT_THAT(errors, Each(HasSubstr(absl::StrCat("failed_rank=", victim))));
    }
    FormWorld();
    ExpectPeacefulEnd(lost);
    ExpectUsable();
  }

  // Of the one that was lost, in the presence of the new world.
  void ExpectPeacefulEnd(int lost) {
    if (fault() == kKill) {
      EXPECT_THAT(group_->Wait(lost, Soon()), StatusIs(absl::StatusCode::kUnknown, HasSubstr("SIGKILL")));
      return;
    }
    if (fault() == kStop) {
      // It wakes up, learns what was said about it or finds itself alone.
      ASSERT_THAT(group_->Signal(lost, SIGCONT), IsOk());
      EXPECT_THAT(Answer(lost), StartsWith("ABORTED: "));
    } else {
      EXPECT_THAT(Answer(lost), AnyOf("ok", StartsWith("CANCELLED: ")));
    }
    Tell(lost, "end");
    EXPECT_THAT(group_->Wait(lost, Soon()), IsOk());
  }

  const std::string path_;
  std::unique_ptr<ProcessGroup> group_;
  std::vector<int> members_;  // processes, by rank of the world there is
};

TEST_P(CollectiveFaultTest, IsToldByNameAndTheSurvivorsGoOn) {
  const int seed = static_cast<int>(std::random_device()() % 1'000'000);
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  ASSERT_NO_FATAL_FAILURE(Start());
  // Rank 0 is the root, and hosts what watches the others: it is the first to go, or the second.
  const bool root_first = seed % 2 == 0;
  ASSERT_NO_FATAL_FAILURE(Lose(root_first ? 0 : kRanks - 1, seed));
  ASSERT_NO_FATAL_FAILURE(Lose(root_first ? 1 : 0, absl::nullopt));
  TellAll("end");
  for (const int process : members_) EXPECT_THAT(group_->Wait(process, Soon()), IsOk());
}

std::vector<std::string> Operations() {
  std::vector<std::string> names = {FaultOperation::kMessages};
  for (const Collective collective : kAllCollectives) names.push_back(Name(collective));
  return names;
}

std::string CaseName(const ::testing::TestParamInfo<FaultCase>& info) {
  return absl::StrCat(std::get<0>(info.param), "_over_", std::get<1>(info.param), "_", std::get<2>(info.param));
}

constexpr char kChosen[] = "LOCKSTEP_TRANSPORT";

// The one of the environment, or those that every machine has.
std::vector<std::string> Transports() {
  if (const auto chosen = GetEnv(kChosen); chosen.has_value()) return {*chosen};
  return {kTcp, kShm, kTwoHosts};
}

// Symmetric memory is not what a transport makes.
std::vector<std::string> InSharedMemory() {
  if (GetEnv(kChosen).has_value()) return {};
  return {kSymmetric};
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveFaultTest,
                         ::testing::Combine(::testing::ValuesIn(Operations()), ::testing::ValuesIn(Transports()),
                                            ::testing::Values(kKill, kStop, kClose)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(
    InSharedMemory, CollectiveFaultTest,
    ::testing::Combine(::testing::Values("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
                       ::testing::ValuesIn(InSharedMemory()), ::testing::Values(kKill, kStop, kClose)),
    CaseName);

}  // namespace
}  // namespace lockstep

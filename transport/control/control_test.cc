// Ranks as threads. Processes that die or stop: control_fault_test.cc. The coordinator's decisions one by one:
// control_world_test.cc.

#include "transport/control/control.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_store.h"
#include "transport/control/control_testing.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/store/store.h"
#include "transport/store/store_file.h"
#include "transport/store/store_memory.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Channel = std::unique_ptr<ControlChannel>;
using Members = std::vector<Member>;

constexpr milliseconds kPatient(20'000);
constexpr char kKey[] = "control/job";

struct Security {
  const char* name;
  SecurityLevel level;
  char secret;  // 0: none, or one that rank 0 draws
};

// Ranks that meet in one store.
class ControlChannelTest : public ::testing::TestWithParam<Security> {
 protected:
  static Credentials credentials() { return Secured(GetParam().secret, GetParam().level); }
  static ControlOptions Options(int rank, int size) {
    ControlOptions options = OptionsOf(rank, size, kPatient, nullptr);
    options.credentials = credentials();
    return options;
  }
  absl::StatusOr<Channel> Create(const ControlOptions& options, Deadline deadline = Soon()) {
    return ControlChannel::Create(options, store_.get(), deadline);
  }
  absl::StatusOr<Channel> CreateRank(int rank, int size, Deadline deadline = Soon()) {
    return Create(Options(rank, size), deadline);
  }
  // All ranks create their channels, rank 0 before the others, and join.
  void Form(int size) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Channel zero, CreateRank(0, size));
    InParallel(size, [&](int rank) {
      if (rank == 0) {
        EXPECT_THAT(zero->Join(MemberOf(0), {}, Soon()), IsOk());
      } else {
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Channel channel, CreateRank(rank, size));
        EXPECT_THAT(channel->Join(MemberOf(rank), {}, Soon()), IsOk());
      }
    });
  }
  std::string Record() { return store_->Get(kKey, Soon()).value(); }
  void SetRecord(const std::string& record) { ASSERT_THAT(store_->Set(kKey, record, Soon()), IsOk()); }
  void ExpectNoRecord() { EXPECT_THAT(store_->Get(kKey, Soon()), StatusIs(absl::StatusCode::kNotFound)); }

  std::unique_ptr<Store> store_ = std::make_unique<MemoryStore>();
};

// An address where nobody listens.
control::CoordinatorRecord RefusedRecord() {
  control::CoordinatorRecord record;
  record.address = *LocalAddress(Listen(LoopbackAddress())->get());
  return record;
}

class World {
 public:
  World(int size, const Credentials& credentials) : logs_(size), progress_(size), channels_(size) {
    InParallel(size, [&](int rank) {
      ControlOptions options = OptionsOf(rank, size, kPatient, &logs_[rank]);
      options.credentials = credentials;
      options.progress = [this, rank] {
        MutexLock lock(&mu_);
        return progress_[rank];
      };
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(channels_[rank], ControlChannel::Create(std::move(options), &store_, Soon()));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Members members, channels_[rank]->Join(MemberOf(rank), {}, Soon()));
      ASSERT_THAT(members, SizeIs(size));
      for (int other = 0; other < size; ++other) {
        EXPECT_EQ(Describe(members[other]), Describe(MemberOf(other)));
        EXPECT_EQ(members[other].data_address, MemberOf(other).data_address);
      }
    });
  }

  ControlChannel& operator[](int rank) { return *channels_[rank]; }
  FailureLog& log(int rank) { return logs_[rank]; }
  Store& store() { return store_; }
  void SetProgress(int rank, ChannelId channel, uint64_t started, uint64_t completed) {
    MutexLock lock(&mu_);
    progress_[rank] = {{channel, {started, completed}}};
  }
  // All ranks were told the same, and nothing else.
  void ExpectFailureEverywhere(ChannelId channel, const absl::Status& status) {
    for (FailureLog& log : logs_) {
      const std::vector<Failure> failures = log.Await(1, Soon());
      ASSERT_THAT(failures, SizeIs(1));
      EXPECT_EQ(failures[0].channel, channel);
      EXPECT_EQ(failures[0].status, status);
    }
  }

 private:
  MemoryStore store_;
  std::vector<FailureLog> logs_;
  Mutex mu_;
  std::vector<std::vector<std::pair<ChannelId, Progress>>> progress_ ABSL_GUARDED_BY(mu_);
  std::vector<Channel> channels_;
};

TEST_P(ControlChannelTest, WorldOfOneForms) {
  World world(1, credentials());
  EXPECT_NE(world[0].world_id(), 0u);
  EXPECT_EQ(world[0].local_address(), LoopbackAddress());
}

TEST_P(ControlChannelTest, SixtyFourRanksFormAndAgree) {
  World world(64, credentials());
  for (int rank = 1; rank < 64; ++rank) EXPECT_EQ(world[rank].world_id(), world[0].world_id());
  world[63].Report(9, absl::InternalError("x"));
  world.ExpectFailureEverywhere(9, absl::InternalError("x"));
}

TEST_P(ControlChannelTest, LeavesNothingInTheStoreAndMayBeUsedAgain) {
  std::vector<uint64_t> ids;
  for (int round = 0; round < 2; ++round) {
    InParallel(2, [&](int rank) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(rank, 2));
      EXPECT_THAT(channel->Join(MemberOf(rank), {}, Soon()), IsOk());
      if (rank == 0) ids.push_back(channel->world_id());
    });
    ExpectNoRecord();
  }
  EXPECT_NE(ids[0], ids[1]);
}

TEST_P(ControlChannelTest, ARankThatIsBackBeforeRankZeroWaitsForTheNextWorld) {
  Channel first[2];
  std::string record;
  InParallel(2, [&](int rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(first[rank], CreateRank(rank, 2));
    if (rank == 0) record = Record();
    EXPECT_THAT(first[rank]->Join(MemberOf(rank), {}, Soon()), IsOk());
  });
  // As if rank 0 had not come to take the address back.
  SetRecord(record);
  first[1].reset();
  InParallel(2, [&](int rank) {
    if (rank == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      first[0].reset();
    }
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Channel next, CreateRank(rank, 2));
    EXPECT_THAT(next->Join(MemberOf(rank), {}, Soon()), IsOk());
  });
}

TEST_P(ControlChannelTest, ArgumentsThatMakeNoSenseAreRefused) {
  const std::pair<const char*, void (*)(ControlOptions*)> cases[] = {
      {"no rank 1", [](ControlOptions* o) { o->rank = Rank(1); }},
      {"coordinator_bind_address",
       [](ControlOptions* o) { o->coordinator_bind_address = *SocketAddress::Parse("0.0.0.0:0"); }},
      {"peer_timeout", [](ControlOptions* o) { o->peer_timeout = milliseconds(0); }},
      {"job id has 513 bytes", [](ControlOptions* o) { o->job_id.assign(513, 'x'); }},
  };
  for (const auto& [message, change] : cases) {
    ControlOptions options = Options(0, 1);
    change(&options);
    EXPECT_THAT(Create(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(0, 1));
  EXPECT_THAT(channel->Join(MemberOf(1), {}, Soon()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(channel->Join(MemberOf(0), {{"big", std::string(2 << 20, 'x')}}, Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("too long")));
  EXPECT_THAT(channel->Join(MemberOf(0), {}, Soon()), IsOk());
  EXPECT_THAT(channel->Join(MemberOf(0), {}, Soon()), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_P(ControlChannelTest, WithoutRankZeroTheOthersSaySo) {
  EXPECT_THAT(CreateRank(1, 2, Deadline::AfterMs(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "rank 0 has not appeared in store memory"));
}

TEST_P(ControlChannelTest, MissingRanksAreListedTheSameEverywhere) {
  std::vector<absl::Status> errors(3);
  std::atomic<int> joining{0};
  InParallel(3, [&](int i) {
    const int rank = std::vector<int>{0, 1, 4}[i];
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(rank, 6));
    if (rank != 0) ++joining;
    const Deadline patience = Soon();
    while (rank == 0 && joining < 2 && !patience.passed()) std::this_thread::yield();
    // Rank 0's deadline is the shortest, and rules.
    errors[i] = channel->Join(MemberOf(rank), {}, rank == 0 ? Deadline::AfterMs(2500) : Soon()).status();
  });
  for (const absl::Status& error : errors) {
    EXPECT_THAT(error, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                "the world did not form in time: ranks 2-3, 5 of 6 have not joined"));
    EXPECT_EQ(GetErrorInfo(error).failed_rank, 2);
  }
  // Those who are missing find it in the store, each once, and then it is gone.
  for (const int rank : {2, 3, 5}) {
    EXPECT_THAT(
        CreateRank(rank, 6),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 AllOf(StartsWith("rank 0 (host "),
                       HasSubstr("could not set up the world: the world did not form in time: ranks 2-3, 5 of 6"))));
  }
  ExpectNoRecord();
}

// All at once: nobody waits for a deadline.
TEST_P(ControlChannelTest, RankZeroThatFailsBeforeItHasACoordinatorTellsWhoeverWaitsForIt) {
  std::vector<absl::Status> errors(4);
  InParallel(4, [&](int rank) {
    ControlOptions options = Options(rank, 4);
    // No machine has it.
    if (rank == 0) options.coordinator_bind_address = *SocketAddress::Parse("192.0.2.1:0");
    errors[rank] = Create(options).status();
  });
  EXPECT_THAT(errors[0], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("listen on 192.0.2.1:0")));
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_THAT(errors[rank],
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(StartsWith("rank 0 (host "), HasSubstr(absl::StrCat("pid ", getpid())),
                               HasSubstr("could not set up the world: "), HasSubstr(errors[0].message()))));
    EXPECT_EQ(GetErrorInfo(errors[rank]).failed_rank, 0);
  }
  ExpectNoRecord();
}

TEST_P(ControlChannelTest, ASetUpThatIsTriedAgainHeedsNoEarlierFailure) {
  ControlChannel::Refuse(Options(0, 3), store_.get(), absl::InternalError("first attempt"), Soon());
  EXPECT_THAT(CreateRank(1, 3), StatusIs(absl::StatusCode::kInternal, HasSubstr("first attempt")));
  // Rank 1 has read the failure. Rank 2 comes when rank 0 has begun again. Both take part in the next attempt.
  Form(3);
  // One of long ago is none either.
  SetRecord(control::EncodeFailureRecord({1'700'000'000, 0, {1}, absl::InternalError("long ago")}));
  EXPECT_THAT(CreateRank(1, 2, Deadline::AfterMs(1000)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 has not appeared")));
}

TEST_P(ControlChannelTest, AFailureIsOfTheAttemptThatItEnded) {
  const auto create = [&](int rank, int attempt, bool only_leaves) {
    ControlOptions options = Options(rank, 3);
    options.attempt = attempt;
    options.only_leaves = only_leaves;
    return Create(std::move(options), rank == 0 ? Soon() : Deadline::AfterMs(1000));
  };
  ControlOptions first = Options(0, 3);
  first.attempt = 1;
  ControlChannel::Refuse(first, store_.get(), absl::InternalError("attempt 1"), Soon());
  // Rank 1 is in a later one, and takes itself off; rank 2 has it to heed.
  EXPECT_THAT(create(1, 2, false), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 has not appeared")));
  EXPECT_THAT(create(2, 1, false), StatusIs(absl::StatusCode::kInternal, HasSubstr("attempt 1")));
  ExpectNoRecord();

  // What ended rank 1's first attempt does not end rank 0's second, neither by the coordinator nor by the store.
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, create(0, 1, false));
  EXPECT_THAT(create(1, 0, true), StatusIs(absl::StatusCode::kCancelled));
  control::TellFailure(store_.get(), kKey, Rank(1), 3, 0, 0, absl::InternalError("attempt 0"), Soon());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel one, create(1, 1, false));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel two, create(2, 0, false));
  InParallel(3, [&](int rank) {
    ControlChannel& self = *(rank == 0 ? zero : rank == 1 ? one : two);
    EXPECT_THAT(self.Join(MemberOf(rank), {}, Soon()), IsOk());
  });
}

TEST_P(ControlChannelTest, WhyARankLeavesBeforeItJoinsIsEverybodysError) {
  for (const int failing : {0, 1}) {
    store_ = std::make_unique<MemoryStore>();
    std::vector<absl::Status> errors(3);
    std::atomic<int> created{0};
    const absl::Status why = absl::ResourceExhaustedError("no descriptor is left");
    InParallel(2, [&](int rank) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(rank, 3));
      const Deadline patience = Soon();
      for (++created; created < 2 && !patience.passed();) std::this_thread::yield();
      if (rank == failing) {
        channel->LeaveBecause(why);
      } else {
        errors[rank] = channel->Join(MemberOf(rank), {}, Soon()).status();
      }
    });
    const auto told = StatusIs(why.code(), AllOf(StartsWith(absl::StrCat("rank ", failing, " (host ")),
                                                 HasSubstr(absl::StrCat("pid ", getpid())),
                                                 EndsWith("could not set up the world: no descriptor is left")));
    EXPECT_THAT(errors[1 - failing], told);
    // Rank 2 was not there.
    EXPECT_THAT(CreateRank(2, 3), StatusIs(why.code(), HasSubstr(errors[1 - failing].message())));
  }
}

// A rank that cannot even connect to the coordinator says so in the store, where rank 0 looks while it waits.
TEST_P(ControlChannelTest, ARankThatFailsBeforeItHasReachedTheCoordinatorTellsRankZero) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 3));
  control::TellFailure(store_.get(), kKey, Rank(1), 3, 0, 0,
                       absl::ResourceExhaustedError("rank 1: socket: Too many open files"), Soon());
  EXPECT_THAT(zero->Join(MemberOf(0), {}, Soon()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank 1: socket: Too many open files")));
  EXPECT_THAT(CreateRank(2, 3),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank 1: socket: Too many open files")));
  ExpectNoRecord();
}

TEST_P(ControlChannelTest, WhatHindersRankZeroIsEverybodysError) {
  const absl::Status why = absl::ResourceExhaustedError("the store lets nobody in");
  ControlOptions options = Options(0, 3);
  options.hindrance = [&] { return why; };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, Create(options));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel one, CreateRank(1, 3));
  InParallel(2, [&](int rank) { EXPECT_EQ((rank == 0 ? zero : one)->Join(MemberOf(rank), {}, Soon()).status(), why); });
}

// With its interface down rank 0 may have had nothing else.
TEST_P(ControlChannelTest, ACoordinatorOnLoopbackOfAnotherHostIsAnErrorOnBoth) {
  ControlOptions options = Options(0, 2);
  options.why_loopback = "rank 0 found no other address: eth0 10.0.0.1: is down";
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, Create(options));
  // As it looks from the other host, where nobody has that port.
  control::CoordinatorRecord record = *control::DecodeCoordinatorRecord(Record());
  record.host = "elsewhere";
  record.address = *LocalAddress(Listen(LoopbackAddress())->get());
  const std::string theirs = control::EncodeCoordinatorRecord(record);
  SetRecord(theirs);
  std::vector<absl::Status> errors(2);
  InParallel(2, [&](int rank) {
    errors[rank] = rank == 1 ? CreateRank(1, 2).status() : zero->Join(MemberOf(0), {}, Soon()).status();
  });
  const std::string what = absl::StrCat("rank 0 (host elsewhere, pid ", getpid(), ") listens on loopback (127.0.0.1:");
  for (const absl::Status& error : errors) {
    EXPECT_THAT(error, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what)));
  }
  EXPECT_THAT(errors[0].message(), AllOf(HasSubstr("rank 1 (host "), HasSubstr("eth0 10.0.0.1: is down")));
}

// Ranks whose job ids differ wait for each other in vain. Neither learns the other's.
TEST_P(ControlChannelTest, AnotherJobAtTheSameStoreIsNamedWhereARankIsMissing) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 2));
  ControlOptions options = Options(1, 2);
  options.job_id = "typo";
  const std::string pid = absl::StrCat("pid ", getpid());
  // A secret that rank 0 has drawn is another job's: rank 1 cannot ask.
  const bool asks = GetParam().level == SecurityLevel::kNone || GetParam().secret != '\0';
  EXPECT_THAT(
      Create(options, Deadline::AfterMs(50)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(StartsWith("rank 0 has not appeared in store memory; "),
                     HasSubstr(asks ? "another job is here, that of rank 0 (host " : "there is a rank 0 (host "),
                     HasSubstr(pid))));
  EXPECT_THAT(
      zero->Join(MemberOf(0), {}, Deadline::AfterMs(100)),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr(asks ? "rank 1 of 2 has not joined; rank 1 (host " : "rank 1 of 2 has not joined"),
                     HasSubstr(asks ? "came with another job id" : ""), Not(HasSubstr("typo")))));
}

TEST_P(ControlChannelTest, ALateRankLearnsWhyThereIsNoWorld) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 2));
  const std::string record = Record();
  EXPECT_THAT(zero->Join(MemberOf(0), {}, Deadline::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not joined")));
  // It had read the address before rank 0 took it back.
  SetRecord(record);
  EXPECT_THAT(CreateRank(1, 2), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not joined")));
}

TEST_P(ControlChannelTest, DifferentOptionsAreNamedEverywhere) {
  std::vector<absl::Status> errors(4);
  InParallel(4, [&](int rank) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(rank, 4));
    std::vector<AgreedOption> options = {{"chunk_bytes", rank == 3 ? "65536" : "262144"}, {"same", "1"}};
    if (rank == 1) options.push_back({"algorithm", "ring"});
    errors[rank] = channel->Join(MemberOf(rank), options, Soon()).status();
  });
  for (const absl::Status& error : errors) {
    EXPECT_THAT(error, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "options differ between ranks: algorithm: not set on ranks 0, 2-3, ring on rank 1; "
                                "chunk_bytes: 262144 on ranks 0-2, 65536 on rank 3"));
    EXPECT_EQ(GetErrorInfo(error).failed_rank, 1);
  }
}

TEST_P(ControlChannelTest, ARankThatGoesBeforeJoiningFailsTheOthersAtOnce) {
  for (const int leaver : {0, 1}) {
    store_ = std::make_unique<MemoryStore>();
    Channel channels[2];
    for (int rank = 0; rank < 2; ++rank) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(channels[rank], CreateRank(rank, 3));
    }
    channels[leaver].reset();
    EXPECT_THAT(channels[1 - leaver]->Join(MemberOf(1 - leaver), {}, Soon()),
                StatusIs(absl::StatusCode::kAborted, AllOf(StartsWith(absl::StrCat("rank ", leaver, " (host ")),
                                                           HasSubstr(absl::StrCat("pid ", getpid())),
                                                           HasSubstr("left before the world had formed"))));
  }
}

TEST_P(ControlChannelTest, ASecondProcessOfARankIsTurnedAway) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 2));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel one, CreateRank(1, 2));
  const std::string pid = absl::StrCat("pid ", getpid());
  EXPECT_THAT(CreateRank(1, 2),
              StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("rank 1 (host "), HasSubstr(pid))));
  // Those who were first are none the worse for it.
  InParallel(2, [&](int rank) { EXPECT_THAT((rank == 0 ? zero : one)->Join(MemberOf(rank), {}, Soon()), IsOk()); });
}

// Each would wait for ranks that find the other. Rank 1 learns it as well, whether it has reached the coordinator or comes later.
TEST_P(ControlChannelTest, TwoRankZerosThatMeetInASetUpBothFail) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 3));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel one, CreateRank(1, 3));
  const auto twice =
      StatusIs(absl::StatusCode::kAlreadyExists,
               ContainsRegex(absl::StrCat("two processes take part as rank 0: rank 0 \\(host .*, pid ", getpid(),
                                          "\\) and rank 0 \\(host .*, pid ", getpid(), "\\)")));
  EXPECT_THAT(CreateRank(0, 3), twice);
  absl::Status late;
  InParallel(3, [&](int rank) {
    if (rank == 2) late = CreateRank(2, 3).status();
    if (rank < 2) {
      EXPECT_THAT((rank == 0 ? zero : one)->Join(MemberOf(rank), {}, Soon()), twice);
    }
  });
  EXPECT_THAT(late, twice);
}

// It is rejected if the store still has the address, as one that the running world's rank 0 could not remove.
TEST_P(ControlChannelTest, ASecondRankZeroThatComesAfterTheSetUpDisturbsNobody) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 2));
  const std::string record = Record();
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel one, CreateRank(1, 2));
  InParallel(2, [&](int rank) { EXPECT_THAT((rank == 0 ? zero : one)->Join(MemberOf(rank), {}, Soon()), IsOk()); });
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel second, CreateRank(0, 2));
  EXPECT_THAT(second->Join(MemberOf(0), {}, Deadline::AfterMs(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not joined")));
  second.reset();
  SetRecord(record);
  EXPECT_THAT(CreateRank(0, 2),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("another process takes part already as rank 0 (host h0, pid 1000)")));
  zero->PostMessage(7, 1, "still here");
  EXPECT_THAT(one->AwaitMessages(7, 1, 1, Soon()), IsOk());
}

// A store that does not answer, as one whose file a stopped process has locked, notes until when it was asked.
class SilentStore : public Store {
 public:
  std::string Describe() const override { return "silent store"; }
  void Silence(int after = 0) { answers_ = after; }
  Deadline::Clock::time_point latest() {
    MutexLock lock(&mu_);
    return latest_;
  }

 protected:
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override {
    MutexLock lock(&mu_);
    if (answers_-- > 0) {
      LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<std::string> result, map_.Perform(call));
      return result.value_or("");
    }
    latest_ = std::max(latest_, deadline.time());
    return absl::DeadlineExceededError("no answer");
  }

 private:
  std::atomic<int> answers_{1 << 30};
  Mutex mu_;
  StoreMap map_ ABSL_GUARDED_BY(mu_){~size_t{0}};
  Deadline::Clock::time_point latest_ ABSL_GUARDED_BY(mu_) = Deadline::Clock::time_point::min();
};

TEST_P(ControlChannelTest, AStoreThatDoesNotAnswerHoldsUpNoSetUp) {
  SilentStore store;
  const Deadline deadline = Deadline::AfterMs(1500);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, ControlChannel::Create(Options(0, 2), &store, deadline));
  store.Silence();
  EXPECT_THAT(zero->Join(MemberOf(0), {}, deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not joined")));
  EXPECT_GT(store.latest(), Deadline::Clock::time_point::min());
  EXPECT_LE(store.latest(), control::WithGrace(deadline).time());
  EXPECT_THAT(ControlChannel::Create(Options(1, 2), &store, deadline),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 has not appeared in silent store")));
  EXPECT_LE(store.latest(), control::WithGrace(deadline).time());
}

// As where rank 0 is stopped before it has published its address.
TEST_P(ControlChannelTest, AStoreThatDoesNotAnswerIsNamedBeforeTheDeadline) {
  SilentStore store;
  store.Silence();
  ControlOptions options = Options(1, 2);
  EXPECT_THAT(ControlChannel::Create(options, &store, Soon()),
              StatusIs(absl::StatusCode::kAborted, "the store is unresponsive: no heartbeat for 20 s: no answer"));
  options.rank_zero_serves = true;
  EXPECT_THAT(ControlChannel::Create(options, &store, Soon()),
              StatusIs(absl::StatusCode::kAborted, StartsWith("rank 0, which serves the store, is unresponsive: ")));
}

// As where rank 0, which serves the store, is stopped once its address is read.
TEST_P(ControlChannelTest, ASilentRankZeroIsNamedThoughTheStoreIsSilentToo) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd silent, Listen(LoopbackAddress()));
  control::CoordinatorRecord record = RefusedRecord();
  record.address = *LocalAddress(silent.get());
  SilentStore store;
  LOCKSTEP_ASSERT_OK(store.Set(kKey, control::EncodeCoordinatorRecord(record), Soon()));
  store.Silence(/*after=*/1);
  ControlOptions options = Options(1, 2);
  options.peer_timeout = milliseconds(100);
  const Deadline deadline = Soon();
  EXPECT_THAT(ControlChannel::Create(options, &store, deadline),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("is unresponsive: no heartbeat for 100 ms before")));
  EXPECT_LT(store.latest(), deadline.time());
}

TEST_P(ControlChannelTest, AnotherWorldSizeIsEverybodysError) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel zero, CreateRank(0, 2));
  const std::string who = absl::StrCat(", pid ", getpid(), ")");
  const auto differ = StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("the world has 2 ranks according to rank 0 (host "),
                                     HasSubstr(who + ", 3 according to rank 1 (host ")));
  for (const absl::Status& error : {CreateRank(1, 3).status(), zero->Join(MemberOf(0), {}, Soon()).status()}) {
    EXPECT_THAT(error, differ);
    EXPECT_EQ(GetErrorInfo(error).failed_rank, 1);
  }
}

// What a crashed world may have left in the store: an address where nobody listens, one where another world's coordinator is
// now, one where somebody else listens and says nothing, and nonsense.
TEST_P(ControlChannelTest, LeftOverAddressesDoNotDefeatANewWorld) {
  const auto other_store = std::move(store_);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel other_world, ControlChannel::Create(Options(0, 2), other_store.get(), Soon()));
  control::CoordinatorRecord reused = *control::DecodeCoordinatorRecord(*other_store->Get(kKey, Soon()));
  reused.world ^= 1;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(UniqueFd silent, Listen(LoopbackAddress()));
  control::CoordinatorRecord mute = reused;
  mute.address = *LocalAddress(silent.get());
  for (const std::string& left_over :
       {control::EncodeCoordinatorRecord(RefusedRecord()), control::EncodeCoordinatorRecord(reused),
        control::EncodeCoordinatorRecord(mute), std::string("nonsense")}) {
    SCOPED_TRACE(left_over);
    store_ = std::make_unique<MemoryStore>();
    SetRecord(left_over);
    std::atomic<bool> rank_one_started{false};
    InParallel(2, [&](int rank) {
      // Rank 1 finds the left-over first.
      if (rank == 0) {
        while (!rank_one_started.load()) std::this_thread::yield();
      }
      rank_one_started = true;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel channel, CreateRank(rank, 2));
      EXPECT_THAT(channel->Join(MemberOf(rank), {}, Soon()), IsOk());
    });
  }
}

// As an embedder's may be.
class PoorStore final : public MemoryStore {
  absl::StatusOr<std::string> Perform(const StoreCall& call, Deadline deadline) override {
    if (call.op == StoreOp::kCompareAndSet || call.op == StoreOp::kDelete)
      return absl::UnimplementedError("never heard");
    return MemoryStore::Perform(call, deadline);
  }
};

TEST_P(ControlChannelTest, AStoreThatKnowsOnlySetAndGetIsEnough) {
  store_ = std::make_unique<PoorStore>();
  for (int round = 0; round < 2; ++round) Form(2);
}

TEST_P(ControlChannelTest, AFileDoesNotGrowWithTheWorldsThatUseIt) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/control_test_", getpid());
  struct stat status = {};
  for (int round = 0; round < 100; ++round) {
    InParallel(2, [&](int rank) {
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, FileStore::Open(path, Soon()));
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const Channel channel,
                                    ControlChannel::Create(Options(rank, 2), store.get(), Soon()));
      EXPECT_THAT(channel->Join(MemberOf(rank), {}, Soon()), IsOk());
    });
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    ASSERT_LT(status.st_size, 32 << 10) << round;
  }
}

TEST_P(ControlChannelTest, ALeftOverAddressIsNamedWhenRankZeroNeverComes) {
  SetRecord(control::EncodeCoordinatorRecord(RefusedRecord()));
  EXPECT_THAT(CreateRank(1, 2, Deadline::AfterMs(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 0 has not appeared in store memory"), HasSubstr("Connection refused"))));
}

// Rank 0 may have waited for others for as long as their set-up timeout before it died.
TEST_P(ControlChannelTest, ADeadRankZeroIsNamedForAsLongAsASetUpMayTake) {
  control::CoordinatorRecord dead = RefusedRecord();
  ControlOptions options = Options(1, 2);
  options.peer_timeout = milliseconds(100);
  dead.host = control::ThisProcess(Rank(0)).host;
  dead.host_id = control::HostWord(options.host_id);
  dead.world = 5;
  dead.seconds = control::NowSeconds() - 100;
  SetRecord(control::EncodeCoordinatorRecord(dead));
  EXPECT_THAT(Create(options, Deadline::AfterMs(300'000)),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("died: no process listens at 127.0.0.1:")));
}

TEST_P(ControlChannelTest, AReportReachesAllRanksOnceAndTheFirstWins) {
  World world(4, credentials());
  const absl::Status first = absl::InternalError("allreduce #3: out of memory");
  world[2].Report(7, first);
  world.ExpectFailureEverywhere(7, first);
  world[1].Report(7, absl::InternalError("later"));
  world[1].Report(8, absl::UnknownError("another channel"));
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<Failure> failures = world.log(rank).Await(2, Soon());
    ASSERT_THAT(failures, SizeIs(2));
    EXPECT_EQ(failures[1].channel, 8u);
    EXPECT_THAT(world[rank].AwaitFailure(7, absl::CancelledError(), Soon()),
                StatusIs(first.code(), std::string(first.message())));
  }
}

TEST_P(ControlChannelTest, AnOkReportIsNone) {
  World world(1, credentials());
  world[0].Report(7, absl::OkStatus());
  EXPECT_THAT(world[0].AwaitFailure(7, absl::CancelledError("fallback"), Deadline::AfterMs(50)),
              StatusIs(absl::StatusCode::kCancelled, "fallback"));
}

TEST_P(ControlChannelTest, AFailureOfAllChannelsAnswersForEachAndIsTheLast) {
  World world(2, credentials());
  world[1].Report(7, absl::InternalError("seven"));
  world.ExpectFailureEverywhere(7, absl::InternalError("seven"));
  world[0].Report(kAllChannels, absl::AbortedError("all"));
  EXPECT_THAT(world[1].AwaitFailure(9, absl::CancelledError(), Soon()), StatusIs(absl::StatusCode::kAborted, "all"));
  EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError(), Soon()), StatusIs(absl::StatusCode::kInternal, "seven"));
  world[0].Report(9, absl::InternalError("too late"));
  EXPECT_THAT(world.log(1).Await(2, Soon()), SizeIs(2));
  EXPECT_THAT(world.log(1).Await(3, Deadline::AfterMs(50)), SizeIs(2));
}

TEST_P(ControlChannelTest, AReportAgainstARankThatLeftSaysSo) {
  World world(3, credentials());
  world[2].Leave();
  world[1].Report(7, absl::UnavailableError("recv from rank 2: closed"), Rank(2));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(world[rank].AwaitFailure(7, absl::CancelledError(), Soon()),
                StatusIs(absl::StatusCode::kAborted, "rank 2 (host h2, pid 1002) has closed its communicator"));
  }
  EXPECT_THAT(world.log(2).Await(1, Deadline::Now()), IsEmpty());  // no callback after Leave
}

TEST_P(ControlChannelTest, ALateOperationNamesTheRankBehind) {
  World world(3, credentials());
  world.SetProgress(0, 7, 17, 16);
  world.SetProgress(1, 7, 17, 16);
  world.SetProgress(2, 7, 16, 16);
  world[0].ReportLate(7, 17, "allreduce #17 (25 MiB f32 sum)");
  world.ExpectFailureEverywhere(
      7, WithFailedRank(absl::DeadlineExceededError(
                            "allreduce #17 (25 MiB f32 sum) did not finish in time: rank 2 (host h2, pid 1002) has not "
                            "called it (it last completed #16); ranks 0-1 have called it and wait"),
                        2));
}

TEST_P(ControlChannelTest, LeavingIsNoFailureForTheOthers) {
  World world(3, credentials());
  world[1].Leave();
  world[1].Leave();
  world[2].Report(7, absl::InternalError("end of test"));
  const std::vector<Failure> failures = world.log(0).Await(1, Soon());
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_EQ(failures[0].channel, 7u);
  EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError("fallback"), Soon()),
              StatusIs(absl::StatusCode::kCancelled, "fallback"));
}

TEST_P(ControlChannelTest, WhenTheCoordinatorHasLeftThereIsNothingToWaitFor) {
  World world(2, credentials());
  world[0].Leave();
  // Ends when the disconnect arrives, long before the deadline.
  EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError("fallback"), Deadline::Infinite()),
              StatusIs(absl::StatusCode::kCancelled, "fallback"));
  world[1].PostMessage(7, 1, "x");
  EXPECT_THAT(world[1].AwaitMessages(7, 1, 1, Deadline::Infinite()),
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h0, pid 1000) has closed its communicator"));
  EXPECT_THAT(world.log(1).Await(1, Deadline::AfterMs(20)), IsEmpty());
}

// Nobody is left to announce it to the others; this rank at least need not wait for that.
TEST_P(ControlChannelTest, WhenTheCoordinatorHasLeftARankGetsItsOwnReport) {
  World world(3, credentials());
  world[0].Leave();
  EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError("fallback"), Deadline::Infinite()),
              StatusIs(absl::StatusCode::kCancelled, "fallback"));
  world[1].Report(7, absl::UnavailableError("recv from rank 2: closed"), Rank(2));
  world[1].Report(7, absl::InternalError("and more"));
  world[1].Report(8, absl::UnavailableError("recv from rank 0: closed"), Rank(0));
  world[1].ReportLate(9, 1, "barrier #1");
  const std::vector<Failure> failures = world.log(1).Await(3, Soon());
  ASSERT_THAT(failures, SizeIs(3));
  const auto failure_of = [&](ChannelId channel) { return world[1].AwaitFailure(channel, absl::OkStatus(), Soon()); };
  EXPECT_THAT(failure_of(7),
              StatusIs(absl::StatusCode::kUnavailable,
                       "recv from rank 2: closed; rank 0 (host h0, pid 1000) has closed its communicator"));
  EXPECT_THAT(failure_of(8),
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h0, pid 1000) has closed its communicator"));
  EXPECT_THAT(failure_of(9),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("barrier #1 did not finish in time")));
  EXPECT_THAT(world.log(2).Await(1, Deadline::AfterMs(20)), IsEmpty());
}

TEST_P(ControlChannelTest, TheCoordinatorsLastAnnouncementPrecedesItsDisconnect) {
  World world(2, credentials());
  const absl::Status broken = absl::UnavailableError("recv from rank 0: closed");
  world[1].Report(7, broken, Rank(0));
  world[1].PostMessage(7, 1, "behind the report");
  ASSERT_THAT(world[0].AwaitMessages(7, 1, 1, Soon()), IsOk());  // so the coordinator has the report
  world[0].Leave();
  EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError(), Soon()),
              StatusIs(absl::StatusCode::kAborted, "rank 0 (host h0, pid 1000) has closed its communicator"));
}

TEST_P(ControlChannelTest, WhatRankZeroReportsAsItLeavesIsAnnounced) {
  for (int i = 0; i < 20; ++i) {
    World world(2, credentials());
    world[0].Report(7, absl::AbortedError("rank 0 destroyed it"));
    world[0].Leave();
    EXPECT_THAT(world[1].AwaitFailure(7, absl::CancelledError(), Soon()),
                StatusIs(absl::StatusCode::kAborted, "rank 0 destroyed it"));
  }
}

TEST_P(ControlChannelTest, MessagesComeInRankOrderOnceThereAreEnough) {
  World world(3, credentials());
  world[2].PostMessage(7, 100, "gradient 5 missing");
  InParallel(3, [&](int rank) {
    if (rank == 1) world[1].PostMessage(7, 100, std::string(70'000, 'x'));
    const auto messages = world[rank].AwaitMessages(7, 100, 2, Soon());
    ASSERT_THAT(messages, IsOk());
    ASSERT_THAT(*messages, SizeIs(2));
    EXPECT_EQ((*messages)[0], std::make_pair(Rank(1), std::string(control::kPostedBytesMax, 'x')));
    EXPECT_EQ((*messages)[1], std::make_pair(Rank(2), std::string("gradient 5 missing")));
  });
  EXPECT_THAT(world[0].AwaitMessages(7, 100, 0, Soon()), IsOkAndHolds(SizeIs(2)));
}

TEST_P(ControlChannelTest, MessagesThatDoNotComeEndAtTheDeadlineOrTheFailure) {
  World world(2, credentials());
  world[0].PostMessage(7, 100, "x");
  EXPECT_THAT(
      world[1].AwaitMessages(7, 100, 2, Deadline::AfterMs(30)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("fewer than 2 messages on topic 100 of channel 7")));
  world[0].Report(7, absl::InternalError("why"));
  EXPECT_THAT(world[1].AwaitMessages(7, 101, 1, Soon()), StatusIs(absl::StatusCode::kInternal, "why"));
  // A failure with the deadline's code is no deadline of this call.
  world[0].Report(8, absl::DeadlineExceededError("late"));
  EXPECT_THAT(world[1].AwaitMessages(8, 101, 1, Soon()), StatusIs(absl::StatusCode::kDeadlineExceeded, "late"));
}

// As over a distance at which every answer comes after the wait for it has ended.
TEST_P(ControlChannelTest, WaitsThatAreTooShortForAnAnswerGetItInTheEnd) {
  World world(2, credentials());
  world[0].PostMessage(7, 1, "zero");
  for (const Deadline soon = Soon(); !soon.passed();) {
    const auto messages = world[1].AwaitMessages(7, 1, 1, Deadline::Now());
    if (absl::IsDeadlineExceeded(messages.status())) continue;
    EXPECT_THAT(messages, IsOkAndHolds(ElementsAre(Pair(Rank(0), "zero"))));
    return;
  }
  FAIL() << "every wait was begun anew";
}

TEST_P(ControlChannelTest, AHandlerMayCallTheChannel) {
  std::atomic<ControlChannel*> channel{nullptr};
  FailureLog log;
  ControlOptions options = Options(0, 1);
  options.on_failure = [&](const Failure& failure) {
    if (failure.channel == 7) channel.load()->Report(8, absl::InternalError("from the handler"));
    log.Add(failure);
  };
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(Channel created, Create(options));
  channel = created.get();
  ASSERT_THAT(created->Join(MemberOf(0), {}, Soon()), IsOk());
  created->Report(7, absl::InternalError("x"));
  const std::vector<Failure> failures = log.Await(2, Soon());
  ASSERT_THAT(failures, SizeIs(2));
  EXPECT_EQ(failures[1].status.message(), "from the handler");
}

TEST_P(ControlChannelTest, AForkedChildCannotDisturbIt) {
  World world(2, credentials());
  EXPECT_EQ(
      RunInForkedChild(
          [&] {
            world[1].Report(7, absl::InternalError("from the child"));
            world[1].Leave();
            return world[1].AwaitMessages(7, 1, 1, Soon()).status().code() == absl::StatusCode::kFailedPrecondition ? 0
                                                                                                                    : 1;
          },
          Soon()),
      0);
  world[0].Report(7, absl::InternalError("from the parent"));
  world.ExpectFailureEverywhere(7, absl::InternalError("from the parent"));
}

INSTANTIATE_TEST_SUITE_P(Levels, ControlChannelTest,
                         ::testing::Values(Security{"None", SecurityLevel::kNone, '\0'},
                                           Security{"Secret", SecurityLevel::kAuthenticate, 's'},
                                           Security{"SecretInTheStore", SecurityLevel::kEncrypt, '\0'}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep

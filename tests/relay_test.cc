// An attacker between rank 1 and rank 0, where it can drop, repeat, reorder, change and cut what they say. Method: both are processes with
// one secret; rank 1 is told that the store, or the coordinator, is where the relay is. A world must not come about. Rank 1 says what was
// wrong with the connection; rank 0 says that rank 1 is missing, and logs what its listener turned away. All faults at one place are tried
// at once, each on a world of its own.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/listening_sockets.h"
#include "tests/processes.h"
#include "tests/relay.h"
#include "transport/net/socket.h"
#include "transport/secure/secret.h"
#include "transport/store/store_file.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr milliseconds kSetupTime(3'000);
constexpr char kKey[] = "control/relayed";
Deadline Soon() { return Deadline::AfterMs(40'000); }

// Told a store, makes a world there and uses it.
LOCKSTEP_RANK_FUNCTION(RelayedRank) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string store_url, self.Receive(Soon()));
  WorldOptions options;
  options.rank = options.local_rank = self.rank();
  options.size = options.local_size = self.size();
  options.store_url = store_url;
  options.job_id = "relayed";
  options.setup_timeout = kSetupTime;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(options));
  std::vector<float> ones(1000, 1.0f);
  return world->communicator()->Run(
      MakeRequest(Collective::kAllReduce, DType::kF32, ones.size(), ones.data(), ones.data()));
}

int worlds_made = 0;

// Two ranks and who is between them.
class RelayedWorld {
 public:
  explicit RelayedWorld(const Relay::Options& relay)
      : options_(relay), path_(absl::StrCat(::testing::TempDir(), "/relayed_", getpid(), "_", ++worlds_made)) {}
  ~RelayedWorld() {
    for (const char* end : {"", ".0", ".1"}) unlink(absl::StrCat(path_, end).c_str());
  }

  // Rank 1's store is the relay, in front of rank 0's.
  absl::Status FormThroughStore() {
    LOCKSTEP_RETURN_IF_ERROR(Start());
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress store, FreeAddress());
    LOCKSTEP_ASSIGN_OR_RETURN(relay_, Relay::Create(store, options_));
    LOCKSTEP_RETURN_IF_ERROR(group_->Send(0, absl::StrCat("tcp://", store.ToString())));
    return group_->Send(1, absl::StrCat("tcp://", relay_->address().ToString()));
  }

  // Rank 1 has a store of its own, where the attacker has written what rank 0 says in another one, with the relay's address.
  absl::Status FormThroughControlChannel() {
    LOCKSTEP_RETURN_IF_ERROR(Start());
    LOCKSTEP_ASSIGN_OR_RETURN(const auto of_rank_0, FileStore::Open(path_ + ".0", Soon()));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto of_rank_1, FileStore::Open(path_ + ".1", Soon()));
    LOCKSTEP_RETURN_IF_ERROR(group_->Send(0, absl::StrCat("file://", path_, ".0")));
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string record, of_rank_0->Wait(kKey, Soon()));
    // lockstep-control version address ...
    std::vector<std::string> words = absl::StrSplit(record, ' ');
    if (words.size() < 3) return absl::InternalError(record);
    LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress coordinator, SocketAddress::Parse(words[2]));
    LOCKSTEP_ASSIGN_OR_RETURN(relay_, Relay::Create(coordinator, options_));
    words[2] = relay_->address().ToString();
    LOCKSTEP_RETURN_IF_ERROR(of_rank_1->Set(kKey, absl::StrJoin(words, " "), Soon()));
    return group_->Send(1, absl::StrCat("file://", path_, ".1"));
  }

  std::vector<absl::Status> Ends() { return group_->WaitAll(Soon()); }
  std::string LogOfRankZero() const { return group_->Output(0); }
  int faults() const { return relay_->faults(); }

 private:
  absl::Status Start() {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto secret, Secret::Draw());
    const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const std::string hex = secret->Hex();
    if (write(file.get(), hex.data(), hex.size()) != static_cast<ssize_t>(hex.size()))
      return absl::InternalError(path_);
    ProcessGroup::Options options;
    options.size = 2;
    options.environment = {{"LOCKSTEP_SECRET_FILE", path_}};
    LOCKSTEP_ASSIGN_OR_RETURN(group_, ProcessGroup::Start("RelayedRank", options));
    return absl::OkStatus();
  }

  const Relay::Options options_;
  const std::string path_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<ProcessGroup> group_;  // ends before the relay
};

using Form = absl::Status (RelayedWorld::*)();

TEST(Relay, ThatPassesOnEverythingIsNotNoticed) {
  for (const Form form : {&RelayedWorld::FormThroughStore, &RelayedWorld::FormThroughControlChannel}) {
    RelayedWorld world({RelayFault::kNone, true, 0});
    ASSERT_THAT((world.*form)(), IsOk());
    EXPECT_THAT(world.Ends(), Each(IsOk()));
  }
}

// What comes of a fault. Records of a client: 0 its preamble, 1 its first flight, 2 the rest of its handshake, 3 what it says first. Of a
// server: 0 its preamble, 1 to 3 its flight.
struct Outcome {
  RelayFault fault;
  // Of rank 1, where its store is relayed.
  Code store_code;
  const char* store_text;
  // The same where its control connection is. It tries again until the deadline, with this as the last cause.
  const char* control_text;
  // Why rank 0 logs that it has turned away the relay; null where it sees no more than a connection that ends, or waits.
  const char* logged;
};

struct Place {
  friend void PrintTo(const Place& place, std::ostream* out) {
    *out << (place.from_client ? "there " : "back ") << place.record;
  }

  bool from_client;
  int record;
  std::vector<Outcome> outcomes;
};

constexpr char kNobody[] = "no server could be reached by the deadline";
constexpr char kClosed[] = "connection closed during the hello";
constexpr char kNotOurs[] = "does not speak Lockstep's protocol";
constexpr char kBroken[] = "broke the handshake's protocol";
constexpr char kOtherVersion[] = "speaks another version of Lockstep's protocol";
constexpr char kNoSecret[] = "does not have the secret";
constexpr char kAltered[] = "a record was altered, repeated, lost or out of order, or is not from the peer";

std::vector<Place> Places() {
  return {
      {true,
       0,
       {{RelayFault::kDrop, Code::kDeadlineExceeded, kNobody, kClosed, kNotOurs},
        {RelayFault::kRepeat, Code::kDeadlineExceeded, kNobody, kClosed, kBroken},
        {RelayFault::kReorder, Code::kDeadlineExceeded, kNobody, kClosed, kNotOurs},
        {RelayFault::kFlip, Code::kDeadlineExceeded, kNobody, kClosed, kOtherVersion},
        {RelayFault::kCut, Code::kDeadlineExceeded, kNobody, kClosed, nullptr}}},
      {false,
       0,
       {{RelayFault::kDrop, Code::kPermissionDenied, kNotOurs, kNotOurs, nullptr},
        {RelayFault::kRepeat, Code::kPermissionDenied, kBroken, kBroken, nullptr},
        {RelayFault::kReorder, Code::kPermissionDenied, kNotOurs, kNotOurs, nullptr},
        {RelayFault::kFlip, Code::kPermissionDenied, kOtherVersion, kOtherVersion, nullptr},
        {RelayFault::kCut, Code::kDeadlineExceeded, kNobody, kClosed, nullptr}}},
      {true,
       1,
       {{RelayFault::kDrop, Code::kDeadlineExceeded, kNobody, kClosed, nullptr},
        {RelayFault::kRepeat, Code::kDataLoss, kAltered, kClosed, kBroken},
        {RelayFault::kReorder, Code::kDeadlineExceeded, kNobody, kClosed, nullptr},
        {RelayFault::kFlip, Code::kPermissionDenied, kNoSecret, kNoSecret, kBroken},
        {RelayFault::kCut, Code::kDeadlineExceeded, kNobody, kClosed, nullptr}}},
      {false,
       1,
       {{RelayFault::kDrop, Code::kPermissionDenied, kBroken, kBroken, nullptr},
        {RelayFault::kRepeat, Code::kPermissionDenied, kBroken, kBroken, kNoSecret},
        {RelayFault::kReorder, Code::kPermissionDenied, kBroken, kBroken, nullptr},
        {RelayFault::kFlip, Code::kPermissionDenied, kBroken, kBroken, kNoSecret},
        {RelayFault::kCut, Code::kDeadlineExceeded, kNobody, kClosed, nullptr}}},
      {true,
       3,
       {{RelayFault::kDrop, Code::kDeadlineExceeded, "rank 0 has not appeared", kClosed, nullptr},
        {RelayFault::kRepeat, Code::kDataLoss, kAltered, kClosed, nullptr},
        {RelayFault::kReorder, Code::kDeadlineExceeded, "rank 0 has not appeared", kClosed, nullptr},
        {RelayFault::kFlip, Code::kDataLoss, kAltered, kAltered, kBroken},
        {RelayFault::kCut, Code::kUnavailable, "the server closed the connection", kClosed, nullptr}}},
      {false,
       3,
       {{RelayFault::kDrop, Code::kDeadlineExceeded, kNobody, kClosed, nullptr},
        {RelayFault::kRepeat, Code::kDataLoss, kAltered, kAltered, nullptr},
        {RelayFault::kReorder, Code::kDeadlineExceeded, kNobody, kClosed, nullptr},
        {RelayFault::kFlip, Code::kPermissionDenied, kBroken, kBroken, nullptr},
        {RelayFault::kCut, Code::kDeadlineExceeded, kNobody, kClosed, nullptr}}},
  };
}

class RelayTest : public ::testing::TestWithParam<Place> {};

TEST_P(RelayTest, EndsTheSetUpByEachFaultAndRanksSayWhy) {
  const Place& place = GetParam();
  std::vector<std::unique_ptr<RelayedWorld>> worlds;  // of each outcome first the one with a relayed store
  for (const Outcome& outcome : place.outcomes) {
    for (const Form form : {&RelayedWorld::FormThroughStore, &RelayedWorld::FormThroughControlChannel}) {
      worlds.push_back(std::make_unique<RelayedWorld>(Relay::Options{outcome.fault, place.from_client, place.record}));
      ASSERT_THAT((worlds.back().get()->*form)(), IsOk());
    }
  }
  for (size_t i = 0; i < worlds.size(); ++i) {
    const Outcome& outcome = place.outcomes[i / 2];
    const bool store = i % 2 == 0;
    SCOPED_TRACE(absl::StrCat(Name(outcome.fault), store ? " at the store" : " at the coordinator"));
    const std::vector<absl::Status> ends = worlds[i]->Ends();
    EXPECT_GT(worlds[i]->faults(), 0);
    // The hello that was repeated has made rank 1 a rank; the world ends when the repetition arrives.
    const bool joined = !store && outcome.fault == RelayFault::kRepeat && place.from_client && place.record == 3;
    EXPECT_THAT(ends[0], joined ? StatusIs(Code::kAborted, HasSubstr("its control connection was tampered with"))
                                : StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1 of 2 has not joined")));
    const auto told_by_store = StatusIs(outcome.store_code, HasSubstr(outcome.store_text));
    if (store && outcome.store_code == Code::kDataLoss && place.from_client) {
      // It closes the connection behind an alert, which may be lost by that.
      EXPECT_THAT(ends[1], AnyOf(told_by_store, StatusIs(Code::kUnavailable, HasSubstr("key 'control/relayed'"))));
    } else if (store) {
      EXPECT_THAT(ends[1], told_by_store);
    } else {
      EXPECT_THAT(ends[1],
                  StatusIs(Code::kDeadlineExceeded, HasSubstr("the address there is of no use: coordinator at")));
      // The deadline may end the last try before its cause is seen. What the coordinator says of it may be lost as the connection closes,
      // or come when rank 1 takes its handshake for done.
      EXPECT_THAT(std::string(ends[1].message()), AnyOf(HasSubstr(outcome.control_text), EndsWith(": no answer"),
                                                        HasSubstr(kClosed), HasSubstr(kAltered)));
    }
    if (outcome.logged == nullptr) continue;
    EXPECT_THAT(worlds[i]->LogOfRankZero(),
                ContainsRegex(absl::StrCat("turned away 127.0.0.1:[0-9]+: it ", outcome.logged)));
  }
}

INSTANTIATE_TEST_SUITE_P(At, RelayTest, ::testing::ValuesIn(Places()), [](const ::testing::TestParamInfo<Place>& info) {
  return absl::StrCat(info.param.from_client ? "There" : "Back", info.param.record);
});

}  // namespace
}  // namespace lockstep

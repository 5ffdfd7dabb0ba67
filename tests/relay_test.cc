// A stranger in the way between rank 1 and rank 0, where it can drop, repeat, reorder, change and cut what they say. Method: both are
// processes with one secret; rank 1 is told that the store, or the coordinator, is where the relay is. A world must not come about, and
// both ranks are told why. All faults at one place are tried at once, each on a world of its own.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
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
using ::testing::Each;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr milliseconds kSetupTime(3'000);
constexpr char kKey[] = "control/relayed";
constexpr RelayFault kFaults[] = {RelayFault::kDrop, RelayFault::kRepeat, RelayFault::kReorder, RelayFault::kFlip,
                                  RelayFault::kCut};

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

// Two ranks and who is between them.
class RelayedWorld {
 public:
  explicit RelayedWorld(const Relay::Options& relay)
      : options_(relay),
        path_(absl::StrCat(::testing::TempDir(), "/in_the_way_", getpid(), "_", static_cast<int>(relay.fault))) {}
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

  // Rank 1 has a store of its own, where the stranger has written what rank 0 says in another one, with the relay's address.
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
  std::string Logs() const { return absl::StrCat(group_->Output(0), group_->Output(1)); }
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

TEST(StrangerInTheWay, WhoDoesNothingIsNotNoticed) {
  for (const Form form : {&RelayedWorld::FormThroughStore, &RelayedWorld::FormThroughControlChannel}) {
    RelayedWorld world({RelayFault::kNone, true, 0});
    ASSERT_THAT((world.*form)(), IsOk());
    EXPECT_THAT(world.Ends(), Each(IsOk()));
  }
}

// Record 0 is the preamble, 1 belongs to the handshake, 3 to what is said then.
struct Place {
  friend void PrintTo(const Place& place, std::ostream* out) {
    *out << (place.from_client ? "there " : "back ") << place.record;
  }

  bool from_client;
  int record;
};

class StrangerInTheWayTest : public ::testing::TestWithParam<Place> {
 protected:
  void ExpectReasons(Form form) {
    std::vector<std::unique_ptr<RelayedWorld>> worlds;
    for (const RelayFault fault : kFaults) {
      worlds.push_back(
          std::make_unique<RelayedWorld>(Relay::Options{fault, GetParam().from_client, GetParam().record}));
      ASSERT_THAT((worlds.back().get()->*form)(), IsOk());
    }
    for (size_t i = 0; i < worlds.size(); ++i) {
      SCOPED_TRACE(Name(kFaults[i]));
      const std::vector<absl::Status> ends = worlds[i]->Ends();
      EXPECT_GT(worlds[i]->faults(), 0);
      for (size_t rank = 0; rank < ends.size(); ++rank) {
        std::printf("%s, rank %zu: %s\n", Name(kFaults[i]), rank, ends[rank].ToString().c_str());
        EXPECT_THAT(ends[rank],
                    AnyOf(StatusIs(Code::kDeadlineExceeded), StatusIs(Code::kPermissionDenied),
                          StatusIs(Code::kDataLoss), StatusIs(Code::kUnavailable), StatusIs(Code::kAborted)));
      }
      // The listener says so, and to the peer too, who may have tried again since.
      const bool said = GetParam().from_client && GetParam().record == 3;
      if (said && (kFaults[i] == RelayFault::kFlip || kFaults[i] == RelayFault::kRepeat)) {
        const std::string told = absl::StrCat(ends[0].ToString(), "\n", ends[1].ToString(), "\n", worlds[i]->Logs());
        EXPECT_THAT(told, AnyOf(HasSubstr("a record was altered, repeated, lost"), HasSubstr("was tampered with"),
                                HasSubstr("turned away 127.0.0.1:")));
      }
    }
  }
};

TEST_P(StrangerInTheWayTest, OfTheStoreEndsTheSetUp) { ExpectReasons(&RelayedWorld::FormThroughStore); }
TEST_P(StrangerInTheWayTest, OfTheControlChannelEndsTheSetUp) {
  ExpectReasons(&RelayedWorld::FormThroughControlChannel);
}

INSTANTIATE_TEST_SUITE_P(At, StrangerInTheWayTest,
                         ::testing::Values(Place{true, 0}, Place{false, 0}, Place{true, 1}, Place{false, 1},
                                           Place{true, 3}, Place{false, 3}),
                         [](const ::testing::TestParamInfo<Place>& info) {
                           return absl::StrCat(info.param.from_client ? "There" : "Back", info.param.record);
                         });

}  // namespace
}  // namespace lockstep

// LOCKSTEP_PORTS: every socket at which a world listens is in the range, over each transport.

#include <stdlib.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/listening_sockets.h"
#include "tests/process_worlds.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/net/socket.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using Code = absl::StatusCode;

constexpr int kRanks = 3;
constexpr char kVariable[] = "LOCKSTEP_PORTS";

class WorldPorts : public ::testing::Test {
 protected:
  // A range that begins with a port that was free a moment ago. The others may be taken.
  void UseRange(int ports) {
    first_ = FreeAddress()->port();
    if (first_ + ports > 65536) first_ = 65536 - ports;
    last_ = first_ + ports - 1;
    setenv(kVariable, absl::StrCat(first_, "-", last_).c_str(), 1);
  }
  void TearDown() override { unsetenv(kVariable); }

  int first_ = 0;
  int last_ = 0;
};

TEST_F(WorldPorts, OfAllListenersAreInTheRange) {
  const struct {
    const char* transport;
    size_t listeners;  // the coordinator, and one for each rank
  } cases[] = {{"tcp", 1 + kRanks}, {"auto", 1}, {"ofi", 1 + kRanks}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.transport);
    UseRange(40);
    MemoryStore store;
    const std::vector<WorldOrError> worlds =
        CreateWorlds(&store, kRanks, [&](int, WorldOptions* options) { options->transport = c.transport; });
    if (std::string(c.transport) == "ofi" && absl::IsUnavailable(worlds[0].status())) continue;
    for (const WorldOrError& world : worlds) LOCKSTEP_ASSERT_OK(world);
    testing::RunRanks(kRanks,
                      [&](int rank) { EXPECT_THAT(RunAllCollectives((*worlds[rank])->communicator()), IsOk()); });
    const std::set<uint16_t> ports = PortsOf(ListeningSocketsOf({getpid()}));
    EXPECT_EQ(ports.size(), c.listeners);
    EXPECT_THAT(ports, Each(AllOf(Ge(first_), Le(last_))));
  }
}

TEST_F(WorldPorts, ThatAreAllTakenFailEveryRankWithHowManyAreNeeded) {
  UseRange(kRanks);  // the coordinator takes one of them
  MemoryStore store;
  const std::vector<WorldOrError> worlds =
      CreateWorlds(&store, kRanks, [](int, WorldOptions* options) { options->transport = "tcp"; });
  for (const WorldOrError& world : worlds) {
    EXPECT_THAT(world.status(),
                StatusIs(Code::kResourceExhausted, AllOf(HasSubstr(absl::StrCat("no port of LOCKSTEP_PORTS=", first_)),
                                                         HasSubstr("1 port for each rank of the host"))));
  }
}

TEST_F(WorldPorts, WithoutMeaningAreRefusedByName) {
  setenv(kVariable, "8080", 1);
  MemoryStore store;
  for (const WorldOrError& world : CreateWorlds(&store, 2)) {
    EXPECT_THAT(world.status(), StatusIs(Code::kInvalidArgument, HasSubstr("LOCKSTEP_PORTS=\"8080\"")));
  }
}

}  // namespace
}  // namespace lockstep

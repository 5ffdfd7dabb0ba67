// How many connections a large world makes: none before the first call, and then those of the pairs that exchange messages in the
// schedule, not one for every pair of ranks. Method: the ranks are threads of this process, and the kernel's table of TCP sockets
// tells how many connections end at their listeners.

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/poll.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

constexpr int kRanks = 64;
constexpr rlim_t kDescriptors = 4096;  // twice what the ranks and their connections take

// The ports in " over tcp 127.0.0.1:4411" of a communicator's description: where others listen.
void AddPorts(const std::string& description, std::set<int>* ports) {
  for (const absl::string_view line : absl::StrSplit(description, '\n')) {
    const std::vector<absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" over tcp ", 1));
    if (halves.size() < 2) continue;
    const absl::string_view address = halves[1].substr(0, halves[1].find(' '));
    int port = 0;
    if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) ports->insert(port);
  }
}

// Established connections of this process to these ports of this host. Connections that others make from a port of that number are
// in the kernel's table too.
int ConnectionsTo(const std::set<int>& ports) {
  std::set<std::string> own;  // "socket:[inode]"
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    own.insert(std::filesystem::read_symlink(entry.path(), closed).string());
  }
  // number: local address:port remote address:port state queues timer retransmissions user timeout inode ..., in hexadecimal
  constexpr absl::string_view kEstablished = "01";
  std::ifstream table("/proc/self/net/tcp");
  int connections = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, skipped, inode;
    uint32_t port = 0;
    words >> number >> local >> remote >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> inode;
    if (state != kEstablished || own.count(absl::StrCat("socket:[", inode, "]")) == 0) continue;
    if (absl::SimpleHexAtoi(local.substr(local.find(':') + 1), &port))
      connections += ports.count(static_cast<int>(port));
  }
  return connections;
}

// Pairs of ranks that exchange messages.
int PairsOf(Collective collective, Algorithm algorithm) {
  std::set<std::pair<int, int>> pairs;
  for (int rank = 0; rank < kRanks; ++rank) {
    const absl::StatusOr<Schedule> schedule = BuildSchedule(collective, algorithm, Rank(rank), kRanks, Rank(0));
    EXPECT_THAT(schedule, IsOk());
    for (const Step& step : schedule->steps) {
      if (step.kind == Step::Kind::kSend) pairs.insert(std::minmax(rank, step.peer.value()));
    }
  }
  return static_cast<int>(pairs.size());
}

struct Call {
  Collective collective;
  Algorithm algorithm;
  int pairs_max;
};

class WorldConnectionsTest : public ::testing::TestWithParam<Call> {};

TEST_P(WorldConnectionsTest, AreThoseOfTheScheduleAndNotMadeBefore) {
  ASSERT_THAT(Limit(RLIMIT_NOFILE, RLIM_INFINITY), IsOk());
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur < kDescriptors) GTEST_SKIP() << "RLIMIT_NOFILE allows " << limit.rlim_cur;

  MemoryStore store;
  std::vector<WorldOrError> worlds =
      CreateWorlds(&store, kRanks, [](int, WorldOptions* options) { options->transport = "tcp"; });
  std::set<int> ports;
  for (const WorldOrError& world : worlds) {
    LOCKSTEP_ASSERT_OK(world.status());
    AddPorts((*world)->communicator()->Describe(), &ports);
  }
  ASSERT_EQ(ports.size(), kRanks);
  EXPECT_EQ(ConnectionsTo(ports), 0);

  testing::RunRanks(kRanks, [&](int rank) {
    int32_t value = rank == 0 ? 7 : 0;
    CollectiveRequest request;
    request.collective = GetParam().collective;
    request.algorithm = GetParam().algorithm;
    request.dtype = DType::kI32;
    request.count = request.collective == Collective::kBarrier ? 0 : 1;
    request.input = request.output = &value;
    EXPECT_THAT((*worlds[rank])->communicator()->Run(request), IsOk());
  });
  const int pairs = PairsOf(GetParam().collective, GetParam().algorithm);
  EXPECT_LE(pairs, GetParam().pairs_max);
  // Where both ranks of a pair began to connect, the attempt that does not count may still be closing.
  EXPECT_TRUE(PollUntil(Deadline::AfterMs(20000), [&] { return ConnectionsTo(ports) == pairs; }))
      << ConnectionsTo(ports) << " connections for " << pairs << " pairs";
}

INSTANTIATE_TEST_SUITE_P(Of, WorldConnectionsTest,
                         ::testing::Values(Call{Collective::kBroadcast, Algorithm::kBinomial, kRanks - 1},
                                           Call{Collective::kBarrier, Algorithm::kDissemination, kRanks * 6}),
                         [](const auto& info) { return Name(info.param.algorithm); });

}  // namespace
}  // namespace lockstep

// Worlds whose ranks measure their links, over real shared memory and TCP: all have the same numbers, and choose by
// them.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/select/selector.h"
#include "comm/topology/link_costs.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "tests/worlds.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

constexpr char kMeasured[] = "links measured: ";

void Measure(int, WorldOptions* options) { options->measure_links = true; }

// The line that tells what was measured, the same on all ranks; "" where nothing was.
std::string CommonLine(const std::vector<WorldOrError>& worlds) {
  std::vector<std::string> lines(worlds.size());
  for (size_t rank = 0; rank < worlds.size(); ++rank) {
    EXPECT_THAT(worlds[rank], IsOk());
    for (const absl::string_view line : absl::StrSplit((*worlds[rank])->communicator()->Describe(), '\n')) {
      if (absl::StartsWith(line, kMeasured)) lines[rank] = std::string(line);
    }
  }
  EXPECT_THAT(lines, Each(Eq(lines[0])));
  return lines[0];
}
// The numbers behind `name`: latency, time for a byte, time for a message.
LinkCosts LinkIn(const std::string& line, const std::string& name) {
  LinkCosts link;
  const size_t at = line.find(absl::StrCat(" ", name, " "));
  if (at == std::string::npos) return link;
  EXPECT_EQ(std::sscanf(line.c_str() + at + 1 + name.size(), "%lf ns + %lf ns/B + %lf ns a message", &link.latency_ns,
                        &link.byte_ns, &link.message_ns),
            3)
      << line;
  return link;
}

// The network that the line describes, of ranks on one host.
Network NetworkIn(const std::string& line) {
  Network network = MakeNetwork(LinkIn(line, "local"), kTcpBetweenHosts, /*ranks_per_host=*/1000);
  const std::vector<std::string> parts = absl::StrSplit(line, "; ");
  EXPECT_GE(parts.size(), 3) << line;
  EXPECT_EQ(std::sscanf(parts[parts.size() - 2].c_str(), "%lf ns/B reduced, %lf ns/B copied", &network.reduced_byte_ns,
                        &network.copied_byte_ns),
            2)
      << line;
  return network;
}

// The algorithm by which the latest all-reduce was carried out: "all_reduce #1 (100 f32 sum, ring) ...".
std::string LatestAlgorithm(Communicator& communicator) {
  const std::vector<std::string> records = absl::StrSplit(communicator.FlightRecords(), '\n', absl::SkipEmpty());
  if (records.empty()) return "none";
  const std::string before = records.back().substr(0, records.back().find(')'));
  return before.substr(before.rfind(' ') + 1);
}

void AllReduce(const std::vector<WorldOrError>& worlds, int64_t count) {
  RunRanks(static_cast<int>(worlds.size()), [&](int rank) {
    std::vector<float> data(count, 1.0f);
    CollectiveRequest request = MakeRequest(Collective::kAllReduce, DType::kF32, data.size(), data.data(), data.data());
    EXPECT_THAT((*worlds[rank])->communicator()->Run(request), IsOk());
    EXPECT_EQ(data, std::vector<float>(count, static_cast<float>(worlds.size())));
  });
}

TEST(MeasuredLinks, AreNotMeasuredUnlessAskedFor) {
  MemoryStore store;
  EXPECT_EQ(CommonLine(CreateWorlds(&store, 2)), "");
}

// What the selector takes by the numbers in the text is what the communicator does.
TEST(MeasuredLinks, AreEqualOnAllRanksWhichChooseByThem) {
  for (const int size : {2, 4, 5}) {
    SCOPED_TRACE(size);
    MemoryStore store;
    const std::vector<WorldOrError> worlds = CreateWorlds(&store, size, Measure);
    const std::string line = CommonLine(worlds);
    EXPECT_THAT(line, AllOf(HasSubstr("; not built in"), Not(HasSubstr("remote"))));
    const Network network = NetworkIn(line);
    for (const double cost : {network.local.latency_ns, network.local.byte_ns, network.local.message_ns,
                              network.reduced_byte_ns, network.copied_byte_ns}) {
      EXPECT_GT(cost, 0) << line;
    }
    // A few bytes go in shared memory where ranks share it.
    AllReduce(worlds, 2);
    const bool share_memory = LatestAlgorithm(*(*worlds[0])->communicator()) == Name(Algorithm::kInline);
    Algorithms candidates;
    for (const Algorithm algorithm : AlgorithmsFor(Collective::kAllReduce)) {
      if (!UsesSharedMemory(algorithm) || (share_memory && IsStaged(algorithm))) candidates.push_back(algorithm);
    }
    CostModel costs(size, network);
    for (int64_t count = 64; count <= 1 << 20; count *= 4) {
      AllReduce(worlds, count);
      const Algorithm expected = Cheapest(candidates, Collective::kAllReduce, count * SizeOf(DType::kF32), &costs);
      EXPECT_EQ(LatestAlgorithm(*(*worlds[0])->communicator()), Name(expected)) << count << " elements, " << line;
    }
  }
}

// Ranks 0 and 1 on one host, 2 and 3 on another, as they say.
TEST(MeasuredLinks, BothClassesAreMeasured) {
  if (std::getenv("LOCKSTEP_TRANSPORT") != nullptr) GTEST_SKIP() << "one class of links alone is told apart by hosts";
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 4, [](int rank, WorldOptions* options) {
    options->measure_links = true;
    options->host_id = rank < 2 ? "a" : "b";
    options->local_size = options->local_rank = 0;
  });
  const std::string line = CommonLine(worlds);
  for (const char* name : {"local", "remote"}) {
    const LinkCosts link = LinkIn(line, name);
    EXPECT_GT(link.latency_ns, 0) << line;
    EXPECT_GT(link.byte_ns, 0) << line;
    EXPECT_GT(link.message_ns, 0) << line;
  }
  AllReduce(worlds, 1000);
}

// An override is not asked what it costs.
TEST(MeasuredLinks, AnAlgorithmThatWasAskedForIsTaken) {
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 4, [](int, WorldOptions* options) {
    options->measure_links = true;
    options->algorithm = "all_reduce:chain";
  });
  for (const WorldOrError& world : worlds) ASSERT_THAT(world, IsOk());
  AllReduce(worlds, 1000);
  EXPECT_EQ(LatestAlgorithm(*(*worlds[2])->communicator()), "chain");
}

TEST(MeasuredLinks, AreAskedForInTheEnvironmentToo) {
  setenv("LOCKSTEP_MEASURE_LINKS", "1", 1);
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 2);
  setenv("LOCKSTEP_MEASURE_LINKS", "perhaps", 1);
  EXPECT_THAT(World::Create(TestWorldOptions(&store, 0, 2)),
              StatusIs(Code::kInvalidArgument, HasSubstr("LOCKSTEP_MEASURE_LINKS=\"perhaps\"")));
  unsetenv("LOCKSTEP_MEASURE_LINKS");
  EXPECT_THAT(CommonLine(worlds), HasSubstr(kMeasured));
}

// Three times as many ranks as a small machine has cores: whoever measures is done all the same.
TEST(MeasuredLinks, AreMeasuredWhereRanksOutnumberCores) {
  MemoryStore store;
  const std::vector<WorldOrError> worlds = CreateWorlds(&store, 12, Measure);
  EXPECT_THAT(CommonLine(worlds), HasSubstr(kMeasured));
  AllReduce(worlds, 1000);
}

}  // namespace
}  // namespace lockstep

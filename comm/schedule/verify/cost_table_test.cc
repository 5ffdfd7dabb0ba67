#include "comm/schedule/verify/cost_table.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "comm/schedule/schedule.h"
#include "comm/select/selector.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CostTableOptions Options(int ranks, int ranks_per_host) {
  CostTableOptions options;
  options.ranks = ranks;
  options.network =
      MakeNetwork(kSharedMemory, {/*latency_ns=*/20'000, /*byte_ns=*/0.32, /*message_ns=*/2000}, ranks_per_host);
  options.collectives = {Collective::kAllReduce};
  options.sizes = {8, 1 << 20};
  return options;
}

size_t Count(bool in_shared_memory) {
  const Algorithms known = AlgorithmsFor(Collective::kAllReduce);
  return std::count_if(known.begin(), known.end(),
                       [&](Algorithm algorithm) { return UsesSharedMemory(algorithm) == in_shared_memory; });
}

// The line of an algorithm, as words; empty where there is none.
std::vector<std::string> LineOf(Algorithm algorithm, absl::string_view text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty() && words[0] == Name(algorithm)) return words;
  }
  return {};
}

TEST(CostTable, HasALineForEachAlgorithmAndOneMarkForEachSize) {
  const CostTableOptions options = Options(4096, 8);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string text, FormatCostTables(options));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ASSERT_EQ(lines.size(), 3 + Count(/*in_shared_memory=*/false));
  EXPECT_EQ(lines.front(), "all_reduce, 4096 ranks, 8 on each of 512 hosts, us");
  EXPECT_EQ(lines[1], "algorithm                     8 B         1 MiB ");
  EXPECT_EQ(lines.back(), "");
  int marks = 0;
  for (char c : text) marks += c == '*' ? 1 : 0;
  EXPECT_EQ(marks, 2);
}

TEST(CostTable, MarksWhatTheSelectorChooses) {
  const CostTableOptions options = Options(64, 1);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string text, FormatCostTables(options));
  const Algorithm chosen = Select(Collective::kAllReduce, 64, 8, {}, options.network);
  const std::vector<std::string> words = LineOf(chosen, text);
  ASSERT_FALSE(words.empty()) << "no line of " << Name(chosen) << " in\n" << text;
  EXPECT_EQ(words[1].back(), '*') << text;
}

// Ordinary buffers can share a few bytes, or go over a stage; only those of the allocator can be worked on in one pass.
TEST(CostTable, HasTheAlgorithmsByMemoryOfOneHostThatSharesIt) {
  CostTableOptions options = Options(4, 4);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string apart, FormatCostTables(options));
  EXPECT_THAT(LineOf(Algorithm::kDirect, apart), ElementsAre());
  options.share_memory = true;
  for (bool step_by_step : {false, true}) {
    options.step_by_step = step_by_step;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string text, FormatCostTables(options));
    EXPECT_THAT(LineOf(Algorithm::kInline, text), ElementsAre("inline", "0.1*", "-"));
    EXPECT_THAT(LineOf(Algorithm::kDirect, text), ElementsAre("direct", "0.3", HasSubstr("+")));
    EXPECT_THAT(LineOf(Algorithm::kStagedTwoShot, text), ElementsAre("staged_two_shot", "0.3", HasSubstr("*")));
  }
  options = Options(8, 4);
  options.share_memory = true;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string two_hosts, FormatCostTables(options));
  EXPECT_THAT(LineOf(Algorithm::kInline, two_hosts), ElementsAre());
}

TEST(CostTable, IsTheSameStepByStep) {
  CostTableOptions options = Options(16, 4);
  options.collectives = {Collective::kReduce};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::string by_model, FormatCostTables(options));
  options.step_by_step = true;
  EXPECT_THAT(FormatCostTables(options), IsOkAndHolds(by_model));
}

TEST(CostTable, OfABarrierHasOneColumn) {
  CostTableOptions options = Options(4, 4);
  options.collectives = {Collective::kBarrier};
  EXPECT_THAT(FormatCostTables(options), IsOkAndHolds("barrier, 4 ranks, 4 on one host, us\n"
                                                      "algorithm                     0 B \n"
                                                      "dissemination                 0.4*\n"));
}

TEST(CostTable, RefusesWhatHasNoCost) {
  CostTableOptions options = Options(0, 1);
  EXPECT_THAT(FormatCostTables(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 ranks")));
  options = Options(4096, 8);
  options.step_by_step = true;
  EXPECT_THAT(FormatCostTables(options),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("4096 ranks"), HasSubstr("step by step"))));
  options = Options(4, 4);
  options.sizes = {-1};
  EXPECT_THAT(FormatCostTables(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 bytes")));
}

TEST(CostTableText, OfBandwidthsIsNanosecondsForAByte) {
  EXPECT_THAT(ParseBandwidth("25gbit"), IsOkAndHolds(0.32));
  EXPECT_THAT(ParseBandwidth(" 1 "), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kbit, mbit, gbit")));
  EXPECT_THAT(ParseBandwidth("800Mbit"), IsOkAndHolds(10));
  EXPECT_THAT(ParseBandwidth("0gbit"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("moves nothing")));
  for (const char* text : {"", "gbit", "fast", "-1gbit", "1.2.3gbit", "25 gbyte"}) {
    EXPECT_THAT(ParseBandwidth(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is no bandwidth")))
        << text;
  }
}

TEST(CostTableText, OfLatenciesIsNanoseconds) {
  EXPECT_THAT(ParseLatency("20us"), IsOkAndHolds(20'000));
  EXPECT_THAT(ParseLatency("0.5ms"), IsOkAndHolds(500'000));
  EXPECT_THAT(ParseLatency("750ns"), IsOkAndHolds(750));
  EXPECT_THAT(ParseLatency("20"), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("'20' is no latency"), HasSubstr("ns, us, ms, s"))));
}

TEST(CostTableText, OfSizesHasBinaryUnits) {
  EXPECT_THAT(ParseSizeList("0,8,1K, 25m ,1G"), IsOkAndHolds(ElementsAre(0, 8, 1 << 10, 25 << 20, 1 << 30)));
  for (const char* text : {"", "8,", "1.5", "1kb", "2000000G"}) {
    EXPECT_FALSE(ParseSizeList(text).ok()) << text;
  }
  EXPECT_THAT(ParseSizeList("1.5K"), IsOkAndHolds(ElementsAre(1536)));
}

TEST(CostTableText, OfCollectivesListsTheKnownOnes) {
  EXPECT_THAT(ParseCollectiveList("barrier, reduce"),
              IsOkAndHolds(ElementsAre(Collective::kBarrier, Collective::kReduce)));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<Collective> all, ParseCollectiveList("all"));
  EXPECT_EQ(all.size(), kCollectiveCount);
  EXPECT_THAT(ParseCollectiveList("allreduce"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("no collective 'allreduce'"), HasSubstr("all, all_reduce, broadcast"))));
}

TEST(CostTableText, OfLocalLinksAreTheBuiltInClasses) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const LinkCosts tcp, ParseLocalLink("tcp"));
  EXPECT_EQ(tcp.latency_ns, kTcpOnOneHost.latency_ns);
  EXPECT_THAT(ParseLocalLink("shm"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("'shm'"), HasSubstr("tcp, libfabric, shared_memory, loopback"))));
}

}  // namespace
}  // namespace lockstep

#include "bench/compare_table.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/compare_result.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Three rounds; the second peer was dropped after the first size.
ContestResult Contest() {
  ContestResult contest;
  contest.transport = "shm";
  contest.sizes = {8, 1 << 20};
  const auto add = [&contest](const std::string& name, ContenderKind kind, std::vector<double> small,
                              std::vector<double> large) {
    ContenderResult result;
    result.name = name;
    result.kind = kind;
    result.about = "about " + name;
    result.trials = {{10, std::move(small)}, {1, std::move(large)}};
    contest.contenders.push_back(result);
  };
  add("lockstep", ContenderKind::kLockstep, {2e-7, 2e-7, 2e-7}, {0.02, 0.02, 0.02});
  add("direct", ContenderKind::kLimit, {1e-7, 2e-7, 4e-7}, {0.02, 0.01, 0.005});
  add("peer a", ContenderKind::kPeer, {1e-6, 1e-6, 1e-6}, {0.04, 0.04, 0.04});
  add("peer b", ContenderKind::kPeer, {5e-7, 5e-7, 5e-7}, {});
  contest.contenders[2].congestion_control = "bbr";
  contest.contenders[3].dropped = "at 1M: it died";
  return contest;
}

std::vector<std::vector<std::string>> Rows(const std::string& table) {
  std::vector<std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    if (line[0] != '#') rows.push_back(absl::StrSplit(line, ' ', absl::SkipEmpty()));
  }
  return rows;
}

TEST(ContestTable, HasMediansAndThenRatiosWithQuartiles) {
  EXPECT_THAT(
      Rows(ContestTable(Contest())),
      ElementsAre(ElementsAre("8", "0.20", "0.20", "1.00", "0.50"), ElementsAre("1M", "20000", "10000", "40000", "-"),
                  ElementsAre("8", "1.00", "[0.75-1.50]", "0.20", "[0.20-0.20]", "0.40", "[0.40-0.40]*"),
                  ElementsAre("1M", "2.00", "[1.50-3.00]", "0.50", "[0.50-0.50]*", "-")));
}

TEST(ContestTable, SaysWhoTookPartAndWhoWasDropped) {
  const std::vector<std::string> lines = absl::StrSplit(ContestTable(Contest()), '\n');
  EXPECT_THAT(lines, Contains(HasSubstr("shared memory, 2 ranks")));
  EXPECT_THAT(lines, Contains(HasSubstr("median of 3 rounds")));
  EXPECT_THAT(lines, Contains("#   lockstep       about lockstep"));
  EXPECT_THAT(lines, Contains("#   direct         limit: about direct"));
  EXPECT_THAT(lines, Contains("#   peer a         peer: about peer a; its connections used bbr"));
  EXPECT_THAT(lines, Contains("# dropped: peer b at 1M: it died"));
}

TEST(ContestTable, EachOfLockstepsContendersHasRatios) {
  ContestResult contest = Contest();
  EXPECT_THAT(ContestTable(contest), Not(HasSubstr("time of direct /")));
  contest.contenders[1].kind = ContenderKind::kLockstep;
  EXPECT_THAT(ContestTable(contest), HasSubstr("time of direct / time of the other"));
  EXPECT_EQ(Rows(ContestTable(contest)).size(), 6);
}

TEST(ContestTable, WithoutTimesThereAreNoRatios) {
  ContestResult contest = Contest();
  contest.contenders[0].trials = {{0, {}}, {0, {}}};
  contest.contenders[0].dropped = "at its start: no such transport";
  EXPECT_THAT(Rows(ContestTable(contest)), ElementsAre(ElementsAre("8", "-", "0.20", "1.00", "0.50"),
                                                       ElementsAre("1M", "-", "10000", "40000", "-")));
}

TEST(ComparisonFactsText, IsALineForEachFact) {
  EXPECT_EQ(ComparisonFactsText({{"cpu", "fast"}, {"ranks", "2"}}), "# cpu: fast\n# ranks: 2\n");
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

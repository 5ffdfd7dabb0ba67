#include "bench/compare_plot.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/compare_result.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ContestResult Contest(const std::string& transport) {
  ContestResult contest;
  contest.transport = transport;
  contest.sizes = {1000, 1'000'000};
  contest.contenders.resize(3);
  contest.contenders[0].name = "limit <&>";
  contest.contenders[0].kind = ContenderKind::kLimit;
  contest.contenders[0].trials = {{1, {1e-6}}, {1, {1e-3}}};  // 1 GB/s at both sizes
  contest.contenders[1].name = "lockstep";
  contest.contenders[1].kind = ContenderKind::kLockstep;
  contest.contenders[1].trials = {{1, {1e-5}}, {1, {1e-4}}};  // 0.1 and 10 GB/s
  contest.contenders[2].name = "gone";
  contest.contenders[2].dropped = "at its start";
  contest.contenders[2].trials.resize(2);
  return contest;
}

int Count(const std::string& text, const std::string& what) {
  return static_cast<int>(std::vector<std::string>(absl::StrSplit(text, what)).size()) - 1;
}

// The axes run from x = 70 to 690, and from y = 380 (0.1 GB/s) to 40 (10 GB/s), in powers.
TEST(ComparisonPlot, LinesGoThroughTheMedians) {
  const std::string svg = ComparisonPlot({Contest("tcp")});
  EXPECT_THAT(svg, HasSubstr("points=\"70.0,210.0 690.0,210.0\""));
  EXPECT_THAT(svg, HasSubstr("points=\"70.0,380.0 690.0,40.0\""));
  EXPECT_EQ(Count(svg, "<polyline"), 2);
}

TEST(ComparisonPlot, IsAWholeDocumentWithAPanelForEachContest) {
  const std::string svg = ComparisonPlot({Contest("shm"), Contest("tcp")});
  EXPECT_THAT(svg, AllOf(StartsWith("<svg xmlns="), EndsWith("</svg>\n"), HasSubstr("height=\"860\"")));
  EXPECT_THAT(svg,
              AllOf(HasSubstr("all-reduce over shared memory, 2 ranks"), HasSubstr("all-reduce over TCP, 2 ranks")));
  EXPECT_EQ(Count(svg, "<g "), 2);
  EXPECT_EQ(Count(svg, "</g>"), 2);
  EXPECT_EQ(Count(svg, "<text "), Count(svg, "</text>"));
}

TEST(ComparisonPlot, NamesAreEscapedAndDroppedContendersMarked) {
  const std::string svg = ComparisonPlot({Contest("tcp")});
  EXPECT_THAT(svg, AllOf(HasSubstr(">limit &lt;&amp;&gt;<"), Not(HasSubstr("<&>")), HasSubstr(">gone (dropped)<")));
}

TEST(ComparisonPlot, LockstepIsThickAndLimitsAreDashed) {
  const std::string svg = ComparisonPlot({Contest("tcp")});
  // A line and its place in the legend each.
  EXPECT_EQ(Count(svg, "stroke-width=\"3\""), 2);
  EXPECT_EQ(Count(svg, "stroke-dasharray"), 2);
}

TEST(ComparisonPlot, LabelsThatWouldOverlapAreLeftOut) {
  ContestResult contest = Contest("tcp");
  contest.sizes = {1024, 16 << 20, 20 << 20, 64 << 20};
  for (ContenderResult& contender : contest.contenders) contender.trials.resize(4);
  EXPECT_THAT(ComparisonPlot({contest}),
              AllOf(HasSubstr(">1K<"), HasSubstr(">16M<"), Not(HasSubstr(">20M<")), HasSubstr(">64M<")));
}

TEST(ComparisonPlot, ColoursThatComeAgainAreDotted) {
  ContestResult contest = Contest("tcp");
  contest.contenders.resize(1);
  contest.contenders[0].kind = ContenderKind::kPeer;
  contest.contenders.resize(12, contest.contenders[0]);
  EXPECT_EQ(Count(ComparisonPlot({contest}), "stroke-dasharray=\"2 3\""), 2);
}

TEST(ComparisonPlot, AContestWithoutTimesHasAxes) {
  ContestResult contest = Contest("tcp");
  for (ContenderResult& contender : contest.contenders) contender.trials = {{0, {}}, {0, {}}};
  const std::string svg = ComparisonPlot({contest});
  EXPECT_EQ(Count(svg, "<polyline"), 0);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ComparisonPlot, OneSizeAloneHasAPlace) {
  ContestResult contest = Contest("tcp");
  contest.sizes = {1000};
  for (ContenderResult& contender : contest.contenders) contender.trials.resize(1);
  EXPECT_THAT(ComparisonPlot({contest}), AllOf(HasSubstr("points=\"380.0,"), Not(HasSubstr("nan"))));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

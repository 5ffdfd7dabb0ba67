#include "launch/rank_report.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(RankReport, HasTheExceptionItsPlaceItsTimeAndTheBlame) {
  const auto report = ParseRankReport(
      R"({"message": {"message": "Aborted: rank 1 died", "extraInfo": {"py_callstack": "Traceback\nAborted: rank 1 died\n",
          "timestamp": "12"}},
          "lockstep": {"time_ns": 10000000007, "rank": 2, "world_size": 4, "failed_rank": 1, "where": "train.py:7"}})",
      2, 4);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->message, "Aborted: rank 1 died (train.py:7)");
  EXPECT_EQ(report->traceback, "Traceback\nAborted: rank 1 died\n");
  EXPECT_EQ(report->time_ns, 10'000'000'007);
  EXPECT_EQ(report->blames, 1);
}

TEST(RankReport, OfAnotherWorldBlamesNobodyUnlessItSaysWho) {
  const std::string text =
      R"({"message": {"message": "m", "extraInfo": {}}, "lockstep": {"rank": 0, "world_size": 2, "failed_rank": 1}})";
  EXPECT_EQ(ParseRankReport(text, 0, 2)->blames, 1);
  EXPECT_EQ(ParseRankReport(text, 0, 4)->blames, absl::nullopt);
  EXPECT_EQ(ParseRankReport(text, 1, 2)->blames, absl::nullopt);
  const std::string of_a_part =
      R"({"message": "m", "lockstep": {"rank": 0, "world_size": 2, "failed_rank": 1, "launched_as": 3}})";
  EXPECT_EQ(ParseRankReport(of_a_part, 2, 4)->blames, 3);
  EXPECT_EQ(ParseRankReport(of_a_part, 0, 2)->blames, absl::nullopt) << "of a larger job";
}

TEST(RankReport, MayBeOneOfTorchrunsOwn) {
  const auto recorded = ParseRankReport(
      R"({"message": {"message": "ValueError: bad\nmore", "extraInfo": {"py_callstack": "a\nb", "timestamp": "12"}}})",
      0, 2);
  EXPECT_EQ(recorded->message, "ValueError: bad ...");
  EXPECT_EQ(recorded->traceback, "a\nb");
  EXPECT_EQ(recorded->time_ns, 12'000'000'000);
  const auto text = ParseRankReport(R"({"message": "just text", "timestamp": 13})", 0, 2);
  EXPECT_EQ(text->message, "just text");
  EXPECT_EQ(text->traceback, "");
  EXPECT_EQ(text->time_ns, 13'000'000'000);
}

TEST(RankReport, IsNothingElse) {
  for (const char* text : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"lockstep": {"failed_rank": 1}})"}) {
    EXPECT_FALSE(ParseRankReport(text, 0, 2).has_value()) << text;
  }
  const auto odd = ParseRankReport(
      R"({"message": {"message": ["x"], "extraInfo": 3}, "lockstep": {"time_ns": "x", "failed_rank": 99, "rank": 0, "world_size": 2}})",
      0, 2);
  EXPECT_EQ(odd->message, "");
  EXPECT_EQ(odd->time_ns, 0);
  EXPECT_EQ(odd->blames, absl::nullopt);
  EXPECT_EQ(ParseRankReport(R"({"message": "\u001b[31m", "timestamp": 9223372036854775807})", 0, 2)->message, "?[31m");
}

TEST(ReportFolder, IsThereUntilItIsRemovedWithItsReports) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReportFolder folder, ReportFolder::Create());
  EXPECT_FALSE(folder.Read(0, 2).has_value());
  std::ofstream(folder.ErrorFile(1)) << R"({"message": "bad"})";
  EXPECT_EQ(folder.Read(1, 2)->message, "bad");
  EXPECT_FALSE(folder.RemoveIfEmpty());
  folder.Remove();
  struct stat unused;
  EXPECT_NE(stat(folder.path().c_str(), &unused), 0);
}

}  // namespace
}  // namespace lockstep

#include "bench/table.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Words(const std::string& line) { return absl::StrSplit(line, ' ', absl::SkipWhitespace()); }

Row AllReduceRow() {
  Row row;
  row.size = {1 << 18, 1 << 18, 1 << 20};
  row.out_of_place = {0.0005, 40, 0};
  row.in_place = Measurement{0.001, 20, 3};
  return row;
}

TEST(TableLine, HasTheColumnsOfNcclTests) {
  EXPECT_THAT(Words(TableLine(AllReduceRow(), 4)), ElementsAre("1048576", "262144", "f32", "sum", "-1", "500.0", "2.10",
                                                               "3.15", "0", "1000.0", "1.05", "1.57", "3\n"));
}

TEST(TableLine, WhatACollectiveHasNotIsSaid) {
  Row row;
  row.exercise.collective = Collective::kBroadcast;
  row.root = Rank(2);
  row.size = {2, 2, 8};
  row.out_of_place = {12.25e-6, 1, 0};
  row.in_place = Measurement{0.0123456, 1, 0};
  EXPECT_THAT(Words(TableLine(row, 4)),
              ElementsAre("8", "2", "f32", "none", "2", "12.25", "0.00", "0.00", "0", "12346", "0.00", "0.00", "0\n"));
  row = Row();
  row.exercise.collective = Collective::kBarrier;
  row.out_of_place = {8e-6, 1, 0};
  EXPECT_THAT(Words(TableLine(row, 2)),
              ElementsAre("0", "0", "none", "none", "-1", "8.00", "0.00", "0.00", "0", "-", "-", "-", "-\n"));
}

TEST(TableHeading, LinesUpWithItsRows) {
  const std::vector<std::string> heading = absl::StrSplit(TableHeading({}), '\n');
  const std::string line = TableLine(AllReduceRow(), 2);
  ASSERT_EQ(heading.size(), 6);
  EXPECT_THAT(heading[1], HasSubstr("all_reduce"));
  EXPECT_EQ(heading[3].size() + 1, line.size());
  EXPECT_EQ(heading[4].size() + 1, line.size());
  for (const std::string& text : heading) EXPECT_TRUE(text.empty() || text[0] == '#') << text;
}

TEST(LimitsLine, HasTheOneWayColumnsForSmallSizesOnly) {
  LimitRow row;
  row.bytes = 8;
  row.lockstep_seconds = 9e-6;
  row.exchange_seconds = 6e-6;
  row.exchange_ratio = {1.4, 1.5, 1.75};
  EXPECT_THAT(Words(LimitsLine(row)), ElementsAre("8", "9.00", "6.00", "1.50", "1.40", "-", "1.75", "-", "-", "-\n"));
  row.one_way_seconds = 4.5e-6;
  row.one_way_ratio = {1.9, 2, 2.1};
  EXPECT_THAT(Words(LimitsLine(row)),
              ElementsAre("8", "9.00", "6.00", "1.50", "1.40", "-", "1.75", "4.50", "2.00", "1.90", "-", "2.10\n"));
  for (const bool with_pingpong : {false, true}) {
    if (with_pingpong) {
      row.pingpong_seconds = 6e-6;
      row.pingpong_ratio = {1.25, 1.5, 1.75};
      EXPECT_THAT(LimitsLine(row), HasSubstr("6.00     1.50    1.25 - 1.75\n"));
    }
    const std::vector<std::string> heading = absl::StrSplit(LimitsHeading("bare sockets", with_pingpong), '\n');
    ASSERT_EQ(heading.size(), 5);
    EXPECT_EQ(heading[2].size() + 1, LimitsLine(row).size());
    EXPECT_EQ(heading[3].size() + 1, LimitsLine(row).size());
  }
}

TEST(Summary, CountsWrongElementsOfBothPlacements) {
  Report report;
  report.ranks = 2;
  report.rows.push_back(AllReduceRow());
  EXPECT_EQ(WrongElements(report), 3);
  EXPECT_THAT(Summary(report), HasSubstr("wrong elements: 3 FAILED"));
  EXPECT_THAT(Summary(report), HasSubstr("bandwidth: 1.573 GB/s"));
  report.rows[0].in_place->wrong = 0;
  EXPECT_THAT(Summary(report), HasSubstr("wrong elements: 0 OK"));
}

TEST(Summary, ABarrierHasNoBandwidth) {
  Report report;
  Row barrier;
  barrier.exercise.collective = Collective::kBarrier;
  barrier.out_of_place.seconds = 1e-5;
  report.rows = {barrier};
  EXPECT_DOUBLE_EQ(AverageBusBandwidth(report), 0);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

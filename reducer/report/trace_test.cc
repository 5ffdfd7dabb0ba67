#include "reducer/report/trace.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::nlohmann::json;

StepTime At(int milliseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds); }

double Microseconds(int milliseconds) { return 3600e6 + 1e3 * milliseconds; }

StepRecord Record() {
  StepRecord record;
  record.step = 5;
  record.forward_begin = At(0);
  record.backward_begin = At(10);
  record.end_called = At(30);
  record.end = At(50);
  record.buckets.resize(2);
  for (int b = 0; b < 2; ++b) {
    BucketRecord& bucket = record.buckets[b];
    bucket.ready = At(12 + b);
    bucket.launched = At(14 + b);
    bucket.bytes = 100 + b;
    for (int stage = 0; stage < kStageCount; ++stage) {
      const int begin = 15 + 2 * b + 5 * stage;
      bucket.stages[stage] = {At(begin), At(begin + 2)};
    }
  }
  return record;
}

std::vector<json> Parse(const std::string& events) {
  const json array = json::parse(absl::StrCat("[", events, "]"), nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(array.is_array()) << events;
  return std::vector<json>(array.begin(), array.end());
}

std::vector<json> Select(const std::vector<json>& events, const std::string& ph, int tid) {
  std::vector<json> selected;
  for (const json& event : events) {
    if (event["ph"] == ph && event["tid"] == tid) selected.push_back(event);
  }
  return selected;
}

TEST(Trace, NamesTheRankAndATrackForEachStream) {
  std::set<std::string> tracks;
  std::string process;
  for (const json& event : Parse(TraceNames(Rank(3)))) {
    EXPECT_EQ(event["ph"], "M");
    EXPECT_EQ(event["pid"], 3);
    if (event["name"] == "process_name") process = event["args"]["name"];
    if (event["name"] == "thread_name")
      tracks.insert(absl::StrCat(event["tid"].get<int>(), event["args"]["name"].get<std::string>()));
  }
  EXPECT_EQ(process, "rank 3");
  EXPECT_EQ(tracks, (std::set<std::string>{"0backward", "1copy in", "2collective", "3copy out", "4optimizer"}));
}

TEST(Trace, DrawsTheCallersPartOnTheTrackOfBackward) {
  const std::vector<json> slices = Select(Parse(TraceEvents(Record(), Rank(1))), "X", 0);
  ASSERT_EQ(slices.size(), 3);
  const struct {
    const char* name;
    int begin;
    int end;
  } expected[] = {{"forward", 0, 10}, {"backward", 10, 30}, {"end of backward", 30, 50}};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(slices[i]["name"], expected[i].name);
    EXPECT_EQ(slices[i]["pid"], 1);
    EXPECT_EQ(slices[i]["args"]["step"], 5);
    EXPECT_DOUBLE_EQ(slices[i]["ts"].get<double>(), Microseconds(expected[i].begin));
    EXPECT_DOUBLE_EQ(slices[i]["dur"].get<double>(), 1e3 * (expected[i].end - expected[i].begin));
  }
}

TEST(Trace, DrawsEachStageOfABucketOnItsTrack) {
  const std::vector<json> events = Parse(TraceEvents(Record(), Rank(0)));
  for (int stage = 0; stage < kStageCount; ++stage) {
    const std::vector<json> slices = Select(events, "X", 1 + stage);
    ASSERT_EQ(slices.size(), 2) << stage;
    for (int b = 0; b < 2; ++b) {
      const json& slice = slices[b];
      EXPECT_EQ(slice["name"], absl::StrCat("bucket ", b));
      EXPECT_EQ(slice["args"]["bucket"], b);
      EXPECT_EQ(slice["args"]["step"], 5);
      EXPECT_DOUBLE_EQ(slice["ts"].get<double>(), Microseconds(15 + 2 * b + 5 * stage));
      EXPECT_DOUBLE_EQ(slice["dur"].get<double>(), 2e3);
      EXPECT_EQ(slice["args"].contains("bytes"), stage == static_cast<int>(Stage::kCollective));
    }
  }
  EXPECT_EQ(Select(events, "X", 2)[1]["args"]["bytes"], 101);
}

TEST(Trace, MarksWhenABucketWasReadyAndLaunched) {
  const std::vector<json> instants = Select(Parse(TraceEvents(Record(), Rank(0))), "i", 0);
  ASSERT_EQ(instants.size(), 4);
  EXPECT_EQ(instants[2]["name"], "bucket 1 ready");
  EXPECT_DOUBLE_EQ(instants[2]["ts"].get<double>(), Microseconds(13));
  EXPECT_EQ(instants[3]["name"], "bucket 1 launched");
  EXPECT_DOUBLE_EQ(instants[3]["ts"].get<double>(), Microseconds(15));
  EXPECT_EQ(instants[3]["args"]["bucket"], 1);
  EXPECT_EQ(instants[3]["s"], "t");
}

TEST(Trace, LeavesOutWhatWasNotRecorded) {
  StepRecord record = Record();
  record.forward_begin = StepTime();
  record.buckets[0] = BucketRecord();
  record.buckets[1].at(Stage::kCopyIn) = StepInterval();
  record.buckets[1].at(Stage::kCollective).end = StepTime();
  const std::vector<json> events = Parse(TraceEvents(record, Rank(0)));
  EXPECT_EQ(Select(events, "X", 0).size(), 2);
  EXPECT_EQ(Select(events, "i", 0).size(), 2);
  EXPECT_EQ(Select(events, "X", 1).size(), 0);
  EXPECT_EQ(Select(events, "X", 2).size(), 0);
  EXPECT_EQ(Select(events, "X", 3).size(), 1);
  EXPECT_EQ(TraceEvents(StepRecord(), Rank(0)), "");
}

TEST(Trace, KeepsNanosecondsAfterYearsOfUptime) {
  StepRecord record;
  record.backward_begin = StepTime() + std::chrono::hours(24 * 365);
  record.end_called = record.backward_begin + std::chrono::nanoseconds(1500);
  const std::vector<json> events = Parse(TraceEvents(record, Rank(0)));
  ASSERT_EQ(events.size(), 1);
  EXPECT_DOUBLE_EQ(events[0]["dur"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(events[0]["ts"].get<double>(), 365 * 24 * 3600e6);
}

TEST(Trace, WritesAnEventALine) {
  // So that whatever reads a file that was cut loses one event at most.
  const std::string events = TraceEvents(Record(), Rank(0));
  for (const absl::string_view line : absl::StrSplit(events, '\n')) {
    EXPECT_TRUE(absl::StartsWith(line, "{") && (absl::EndsWith(line, "},") || absl::EndsWith(line, "}"))) << line;
    EXPECT_FALSE(absl::StrContains(line, "e+")) << line;
  }
}

}  // namespace
}  // namespace lockstep

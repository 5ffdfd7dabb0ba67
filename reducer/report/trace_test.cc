#include "reducer/report/trace.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::nlohmann::json;
using ::testing::EndsWith;
using ::testing::HasSubstr;

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

class TraceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = absl::StrCat(::testing::TempDir(), "/trace_test.XXXXXX");
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    unsetenv("LOCKSTEP_TRACE");
  }

  // Of rank 0, in the test's folder.
  std::unique_ptr<TraceFile> Open(int64_t steps_max = TraceFile::kStepsMax) const {
    return TraceFile::Open(folder_, Rank(0), steps_max).value();
  }

  static StepRecord Record(uint64_t step) {
    StepRecord record;
    record.step = step;
    record.backward_begin = StepTime() + std::chrono::hours(1);
    record.end_called = record.backward_begin + std::chrono::milliseconds(3);
    record.buckets.resize(1);
    record.buckets[0].at(Stage::kCollective) = {record.backward_begin, record.end_called};
    record.buckets[0].bytes = 64;
    return record;
  }

  static std::string Text(const std::string& name) {
    std::ifstream file(name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // The events of the file; their number, or -1 where it isn't JSON.
  static int Slices(const std::string& name) {
    const auto events = nlohmann::json::parse(Text(name), nullptr, /*allow_exceptions=*/false);
    if (!events.is_array()) return -1;
    int slices = 0;
    for (const auto& event : events) slices += event["ph"] == "X" ? 1 : 0;
    return slices;
  }

  static bool Exists(const std::string& name) {
    struct stat facts = {};
    return stat(name.c_str(), &facts) == 0;
  }

  std::string folder_;
};

TEST_F(TraceFileTest, IsNotMadeUnlessAskedFor) {
  const auto trace = TraceFile::Open("", Rank(0));
  LOCKSTEP_ASSERT_OK(trace);
  EXPECT_EQ(*trace, nullptr);
}

TEST_F(TraceFileTest, NamesAFileForEachRank) {
  EXPECT_EQ(TraceFile::FileName(folder_, Rank(0)), absl::StrCat(folder_, "/rank0.json"));
  EXPECT_EQ(TraceFile::FileName(absl::StrCat(folder_, "/"), Rank(12)), absl::StrCat(folder_, "/rank12.json"));
  EXPECT_EQ(TraceFile::FileName(absl::StrCat(folder_, "/run."), Rank(3)), absl::StrCat(folder_, "/run.rank3.json"));
  EXPECT_EQ(TraceFile::FileName("nowhere/", Rank(3)), "nowhere/rank3.json");
}

TEST_F(TraceFileTest, TheOptionGoesBeforeTheEnvironment) {
  setenv("LOCKSTEP_TRACE", absl::StrCat(folder_, "/environment.").c_str(), 1);
  const auto from_environment = TraceFile::Open("", Rank(0));
  LOCKSTEP_ASSERT_OK(from_environment);
  EXPECT_EQ((*from_environment)->name(), absl::StrCat(folder_, "/environment.rank0.json"));
  const auto from_option = TraceFile::Open(absl::StrCat(folder_, "/option."), Rank(0));
  LOCKSTEP_ASSERT_OK(from_option);
  EXPECT_EQ((*from_option)->name(), absl::StrCat(folder_, "/option.rank0.json"));
  unsetenv("LOCKSTEP_TRACE");
}

TEST_F(TraceFileTest, IsWholeAfterEveryStep) {
  const std::unique_ptr<TraceFile> trace = Open();
  const std::string& name = trace->name();
  EXPECT_EQ(Slices(name), 0);
  EXPECT_THAT(Text(name), HasSubstr("rank 0"));
  for (int step = 1; step <= 5; ++step) {
    LOCKSTEP_EXPECT_OK(trace->Append(Record(step)));
    EXPECT_EQ(Slices(name), 2 * step);
    EXPECT_THAT(Text(name), EndsWith("\n]\n"));
  }
}

TEST_F(TraceFileTest, AnEmptyRecordLeavesItAsItIs) {
  const std::unique_ptr<TraceFile> trace = Open();
  LOCKSTEP_EXPECT_OK(trace->Append(StepRecord()));
  EXPECT_EQ(Slices(trace->name()), 0);
}

TEST_F(TraceFileTest, StopsAtItsBound) {
  const std::unique_ptr<TraceFile> trace = Open(/*steps_max=*/3);
  for (int step = 1; step <= 10; ++step) LOCKSTEP_EXPECT_OK(trace->Append(Record(step)));
  EXPECT_EQ(Slices(trace->name()), 2 * 3);
}

TEST_F(TraceFileTest, ReplacesTheTraceOfAnEarlierRun) {
  for (const int steps : {5, 1}) {
    const std::unique_ptr<TraceFile> trace = Open();
    for (int step = 1; step <= steps; ++step) LOCKSTEP_EXPECT_OK(trace->Append(Record(step)));
    EXPECT_EQ(trace->name(), TraceFile::FileName(folder_, Rank(0)));
    EXPECT_EQ(Slices(trace->name()), 2 * steps);
  }
}

TEST_F(TraceFileTest, TwoOfOneRankHaveAFileEach) {
  const std::unique_ptr<TraceFile> first = Open();
  LOCKSTEP_EXPECT_OK(first->Append(Record(1)));
  const std::unique_ptr<TraceFile> second = Open();
  EXPECT_EQ(second->name(), absl::StrCat(folder_, "/rank0.2.json"));
  LOCKSTEP_EXPECT_OK(second->Append(Record(1)));
  LOCKSTEP_EXPECT_OK(second->Append(Record(2)));
  EXPECT_EQ(Slices(first->name()), 2);
  EXPECT_EQ(Slices(second->name()), 4);
}

TEST_F(TraceFileTest, SurvivesTheDeathOfItsProcess) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto trace = TraceFile::Open(folder_, Rank(0));
    if (!trace.ok()) _exit(1);
    for (int step = 1; step <= 3; ++step) {
      if (!(*trace)->Append(Record(step)).ok()) _exit(2);
    }
    kill(getpid(), SIGKILL);
    _exit(3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(Slices(TraceFile::FileName(folder_, Rank(0))), 6);
  // And nobody holds its lock.
  const std::unique_ptr<TraceFile> trace = Open();
  EXPECT_EQ(trace->name(), TraceFile::FileName(folder_, Rank(0)));
}

TEST_F(TraceFileTest, SaysWhichFileCannotBeMade) {
  const auto trace = TraceFile::Open(absl::StrCat(folder_, "/no/such/folder/"), Rank(2));
  EXPECT_THAT(trace, StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/rank2.json")));
}

TEST_F(TraceFileTest, EndsWholeWhereTheDiskDoes) {
  const std::unique_ptr<TraceFile> trace = Open();
  const std::string& name = trace->name();
  LOCKSTEP_EXPECT_OK(trace->Append(Record(1)));
  const std::string before = Text(name);

  // Files may grow by less than a step.
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit tight = limit;
  tight.rlim_cur = before.size() + 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status full = trace->Append(Record(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);

  EXPECT_FALSE(full.ok());
  EXPECT_THAT(std::string(full.message()), HasSubstr(name));
  EXPECT_EQ(Text(name), before);
  // Told once.
  LOCKSTEP_EXPECT_OK(trace->Append(Record(3)));
  EXPECT_EQ(Text(name), before);
}

}  // namespace
}  // namespace lockstep

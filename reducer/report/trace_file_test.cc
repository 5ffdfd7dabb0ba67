#include "reducer/report/trace_file.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class TraceFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = absl::StrCat(::testing::TempDir(), "/trace_file_test.XXXXXX");
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    unsetenv("LOCKSTEP_TRACE");
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
  const auto trace = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(trace);
  const std::string& name = (*trace)->name();
  EXPECT_EQ(Slices(name), 0);
  EXPECT_THAT(Text(name), HasSubstr("rank 0"));
  for (int step = 1; step <= 5; ++step) {
    LOCKSTEP_EXPECT_OK((*trace)->Append(Record(step)));
    EXPECT_EQ(Slices(name), 2 * step);
    EXPECT_THAT(Text(name), EndsWith("\n]\n"));
  }
}

TEST_F(TraceFileTest, AnEmptyRecordLeavesItAsItIs) {
  const auto trace = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(trace);
  LOCKSTEP_EXPECT_OK((*trace)->Append(StepRecord()));
  EXPECT_EQ(Slices((*trace)->name()), 0);
}

TEST_F(TraceFileTest, StopsAtItsBound) {
  const auto trace = TraceFile::Open(folder_, Rank(0), /*steps_max=*/3);
  LOCKSTEP_ASSERT_OK(trace);
  for (int step = 1; step <= 10; ++step) LOCKSTEP_EXPECT_OK((*trace)->Append(Record(step)));
  EXPECT_EQ(Slices((*trace)->name()), 2 * 3);
}

TEST_F(TraceFileTest, ReplacesTheTraceOfAnEarlierRun) {
  for (const int steps : {5, 1}) {
    const auto trace = TraceFile::Open(folder_, Rank(0));
    LOCKSTEP_ASSERT_OK(trace);
    for (int step = 1; step <= steps; ++step) LOCKSTEP_EXPECT_OK((*trace)->Append(Record(step)));
    EXPECT_EQ((*trace)->name(), TraceFile::FileName(folder_, Rank(0)));
    EXPECT_EQ(Slices((*trace)->name()), 2 * steps);
  }
}

TEST_F(TraceFileTest, TwoOfOneRankHaveAFileEach) {
  const auto first = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(first);
  LOCKSTEP_EXPECT_OK((*first)->Append(Record(1)));
  const auto second = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(second);
  EXPECT_EQ((*second)->name(), absl::StrCat(folder_, "/rank0.2.json"));
  LOCKSTEP_EXPECT_OK((*second)->Append(Record(1)));
  LOCKSTEP_EXPECT_OK((*second)->Append(Record(2)));
  EXPECT_EQ(Slices((*first)->name()), 2);
  EXPECT_EQ(Slices((*second)->name()), 4);
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
  const auto trace = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(trace);
  EXPECT_EQ((*trace)->name(), TraceFile::FileName(folder_, Rank(0)));
}

TEST_F(TraceFileTest, SaysWhichFileCannotBeMade) {
  const auto trace = TraceFile::Open(absl::StrCat(folder_, "/no/such/folder/"), Rank(2));
  EXPECT_THAT(trace, StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/rank2.json")));
}

TEST_F(TraceFileTest, EndsWholeWhereTheDiskDoes) {
  const auto trace = TraceFile::Open(folder_, Rank(0));
  LOCKSTEP_ASSERT_OK(trace);
  const std::string& name = (*trace)->name();
  LOCKSTEP_EXPECT_OK((*trace)->Append(Record(1)));
  const std::string before = Text(name);

  // Files may grow by less than a step.
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit tight = limit;
  tight.rlim_cur = before.size() + 20;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  const absl::Status full = (*trace)->Append(Record(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, handler);

  EXPECT_FALSE(full.ok());
  EXPECT_THAT(std::string(full.message()), HasSubstr(name));
  EXPECT_EQ(Text(name), before);
  // Told once.
  LOCKSTEP_EXPECT_OK((*trace)->Append(Record(3)));
  EXPECT_EQ(Text(name), before);
}

}  // namespace
}  // namespace lockstep

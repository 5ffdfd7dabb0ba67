#include "comm/record/failure_report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/env.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mutex.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

constexpr int kAppendedMax = 64;
constexpr size_t kRecordsLogged = 16;
// Error lines of all ranks together under lockstep-run, which adds at most 18 lines about the ranks (kOthersMax in launch/launcher.cc).
constexpr int kLinesOfJob = 4;
// torchrun takes the earliest time in whole seconds as the root cause, and dates a process without a file by when it noticed its end,
// which may take seconds. So the victim of another rank is dated later.
constexpr int kVictimSeconds = 30;

// The traces that this process has left so far.
struct Left {
  const uint64_t fork_generation = ForkGeneration();
  Mutex mu;
  std::string logged_cause ABSL_GUARDED_BY(mu);
  std::string records_path ABSL_GUARDED_BY(mu);
  std::string line_path ABSL_GUARDED_BY(mu);
  int appended ABSL_GUARDED_BY(mu) = 0;
  bool told_launcher ABSL_GUARDED_BY(mu) = false;
};

// A forked child has its own: a thread of the parent may have held the parent's mutex. Never destroyed, since static destructors may fail a
// communicator.
Left& LeftOfThisProcess() {
  static std::atomic<Left*> current{nullptr};
  Left* left = current.load();
  while (left == nullptr || left->fork_generation != ForkGeneration()) {
    auto made = std::make_unique<Left>();
    if (current.compare_exchange_strong(left, made.get())) left = made.release();
  }
  return *left;
}

bool WriteAll(int fd, absl::string_view text) {
  struct stat status;
  if (fstat(fd, &status) == 0 && !WhyNoFile(status.st_size + text.size()).empty()) {
    errno = EFBIG;
    return false;
  }
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(written);
  }
  return true;
}

// Returns where the records are, or why they are not there.
std::string Append(Left* left, PlaceInWorld place, const std::string& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(left->mu) {
  if (left->appended >= kAppendedMax) return left->records_path;
  ++left->appended;
  int fd = -1;
  if (left->records_path.empty()) {
    std::string folder = "/tmp";
    // The last of them counts. Bazel sets TEST_TMPDIR, so tests leave nothing in /tmp.
    for (const char* variable : {"TMPDIR", "TEST_TMPDIR", "LOCKSTEP_REPORT_FOLDER"}) {
      folder = GetEnv(variable).value_or(folder);
    }
    left->records_path =
        absl::StrCat(folder, "/lockstep-flight-records.rank", place.rank.value(), ".pid", getpid(), ".XXXXXX");
    fd = mkostemp(&left->records_path[0], O_APPEND | O_CLOEXEC);
  } else {
    fd = open(left->records_path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  }
  const bool written = fd >= 0 && WriteAll(fd, text);
  const int error = errno;
  if (fd >= 0) close(fd);
  return written ? left->records_path
                 : absl::StrCat("not written to ", left->records_path, ": ", strerror(error),
                                "; LOCKSTEP_LOG=info logs them");
}

// False if kLinesOfJob ranks of this job have logged a failure, as empty files in the launcher's folder tell. Each rank counts once, until
// it makes a new world.
bool TakeLineOfJob(Left* left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(left->mu) {
  const std::string folder = absl::StrCat(GetEnv("LOCKSTEP_REPORT_FOLDER").value_or(""), "/");
  if (!absl::StartsWith(GetEnv("TORCHELASTIC_ERROR_FILE").value_or(""), folder) || !left->line_path.empty())
    return true;
  for (int i = 0; i < kLinesOfJob; ++i) {
    const std::string path = absl::StrCat(folder, "failure_logged.", i);
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd >= 0) {
      close(fd);
      left->line_path = path;
    }
    return true;
  }
  return false;
}

absl::string_view NewestOf(absl::string_view records) {
  size_t begin = records.size();
  for (size_t lines = 0; lines <= kRecordsLogged && begin != absl::string_view::npos && begin > 0; ++lines) {
    begin = records.rfind('\n', begin - 1);
  }
  return begin == absl::string_view::npos || begin == 0 ? records : records.substr(begin + 1);
}

}  // namespace

void ReportFailure(PlaceInWorld place, const std::string& what, const absl::Status& cause, const std::string& records) {
  const std::string reason = cause.ToString(absl::StatusToStringMode::kWithNoExtraData);
  std::string where;
  bool logged;
  {
    Left& left = LeftOfThisProcess();
    MutexLock lock(&left.mu);
    // A program knows that it has aborted its own communicator.
    const bool own = absl::IsAborted(cause) && GetErrorInfo(cause).failed_rank == place.rank.value();
    logged = own || left.logged_cause == reason || !TakeLineOfJob(&left);
    if (!own) left.logged_cause = reason;
    where = Append(&left, place, absl::StrCat(what, ": ", reason, "\nlast collectives, newest last:\n", records, "\n"));
  }
  const absl::string_view first = absl::string_view(reason).substr(0, reason.find('\n'));
  const absl::string_view more = first.size() < reason.size() ? " ..." : "";
  const std::string line = absl::StrCat(what, ": ", first, more, " (flight records: ", where, ")");
  if (logged) {
    LOCKSTEP_LOG(kInfo) << line;
  } else {
    LOCKSTEP_LOG(kError) << line;
  }
  LOCKSTEP_LOG(kInfo) << "last collectives, newest last:\n" << NewestOf(records);
  TellLauncher(place, cause);
}

void TellLauncher(PlaceInWorld place, const absl::Status& cause) {
  const absl::optional<std::string> file = GetEnv("TORCHELASTIC_ERROR_FILE");
  Left& left = LeftOfThisProcess();
  MutexLock lock(&left.mu);
  if (!file.has_value() || left.told_launcher || access(file->c_str(), F_OK) == 0) return;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const std::string text(cause.message());
  const absl::optional<int> failed_rank = GetErrorInfo(cause).failed_rank;
  const bool victim = failed_rank.has_value() && *failed_rank != place.rank.value();
  nlohmann::json report;
  report["message"]["message"] = text;
  report["message"]["extraInfo"]["py_callstack"] = text;
  report["message"]["extraInfo"]["timestamp"] = absl::StrCat(now.tv_sec + (victim ? kVictimSeconds : 0));
  report["lockstep"] = {{"pid", getpid()},
                        {"time_ns", now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec},
                        {"rank", place.rank.value()},
                        {"world_size", place.size}};
  if (victim) report["lockstep"]["failed_rank"] = *failed_rank;
  const std::vector<int>* const launched_as = place.launched_as;
  if (victim && launched_as != nullptr && *failed_rank < static_cast<int>(launched_as->size())) {
    const int launched = (*launched_as)[*failed_rank];
    if (launched >= 0) report["lockstep"]["launched_as"] = launched;
  }
  // The file is renamed into place, so that no reader finds half a report.
  const std::string next = absl::StrCat(*file, ".", getpid());
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool written = WriteAll(fd, report.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  close(fd);
  left.told_launcher = written && rename(next.c_str(), file->c_str()) == 0;
  if (!left.told_launcher) unlink(next.c_str());
}

void TakeBackFromLauncher() {
  const absl::optional<std::string> file = GetEnv("TORCHELASTIC_ERROR_FILE");
  Left& left = LeftOfThisProcess();
  MutexLock lock(&left.mu);
  if (left.told_launcher && file.has_value()) unlink(file->c_str());
  left.told_launcher = false;
  if (!left.line_path.empty()) unlink(left.line_path.c_str());
  left.line_path.clear();
}

}  // namespace lockstep

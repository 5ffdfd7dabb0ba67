#include "base/log.h"

#include <pthread.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <iterator>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr const char* kNames[] = {"error", "warning", "info", "debug", "trace"};
constexpr int kUnset = -1;

// Relaxed: a level change reaches other threads soon, and orders nothing else.
std::atomic<int> current_level{kUnset};

struct Destination {
  LogSink sink = nullptr;
  void* context = nullptr;
};

class State {
 public:
  // Never destroyed: static destructors may log.
  static State& Get() {
    static State* const state = new State;
    return *state;
  }

  Destination destination() {
    MutexLock lock(&mu_);
    return destination_;
  }
  void SetSink(LogSink sink, void* context) {
    MutexLock lock(&mu_);
    destination_.sink = sink;
    destination_.context = context;
  }

 private:
  // fork() while another thread logs must not leave the child a mutex that nobody unlocks. Should registering fail,
  // only that is lost.
  State() {
    pthread_atfork([] { Get().Lock(); }, [] { Get().Unlock(); }, [] { Get().Unlock(); });
  }
  void Lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.Lock(); }
  void Unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mu_.Unlock(); }

  Mutex mu_;
  Destination destination_ ABSL_GUARDED_BY(mu_);
};

int CurrentLevel() {
  const int level = current_level.load(std::memory_order_relaxed);
  if (level != kUnset) return level;
  const absl::StatusOr<absl::optional<LogLevel>> read = LogLevelOfEnvironment();
  const LogLevel found = read.ok() ? read->value_or(LogLevel::kWarning) : LogLevel::kWarning;
  int expected = kUnset;
  // One thread's attempt succeeds; a SetLogLevel that came first stays.
  if (current_level.compare_exchange_strong(expected, static_cast<int>(found), std::memory_order_relaxed) &&
      !read.ok()) {
    internal::LogLine(LogLevel::kWarning, __FILE__, __LINE__).stream()
        << read.status().message() << "; logging at warning";
  }
  return current_level.load(std::memory_order_relaxed);
}

const char* BaseName(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// UTC, by arithmetic: hosts agree on it, and the C library's conversions take a lock that a forked child may find held.
std::string TimeOfDay() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const int second = static_cast<int>(now.tv_sec % 86400);
  return absl::StrFormat("%02d:%02d:%02d.%06dZ", second / 3600, second / 60 % 60, second % 60, now.tv_nsec / 1000);
}

// In one system call, so that lines of several processes on one terminal stay whole.
void WriteToStderr(const std::string& line) {
  iovec parts[] = {{const_cast<char*>(line.data()), line.size()}, {const_cast<char*>("\n"), 1}};
  // There is no one to tell that stderr is gone.
  [[maybe_unused]] const ssize_t written = writev(STDERR_FILENO, parts, 2);
}

}  // namespace

absl::StatusOr<absl::optional<LogLevel>> LogLevelOfEnvironment() {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int> level, GetEnvWord("LOCKSTEP_LOG", kNames));
  if (!level.has_value()) return absl::optional<LogLevel>();
  return absl::make_optional(static_cast<LogLevel>(*level));
}

const char* LogLevelName(LogLevel level) {
  const int index = static_cast<int>(level);
  return index >= 0 && index < static_cast<int>(std::size(kNames)) ? kNames[index] : "unknown";
}

LogLevel GetLogLevel() { return static_cast<LogLevel>(CurrentLevel()); }
void SetLogLevel(LogLevel level) { current_level.store(static_cast<int>(level), std::memory_order_relaxed); }
bool LogEnabled(LogLevel level) { return static_cast<int>(level) <= CurrentLevel(); }

void SetLogSink(LogSink sink, void* context) { State::Get().SetSink(sink, context); }

namespace internal {

LogLine::~LogLine() {
  const Destination to = State::Get().destination();
  const std::string line = absl::StrCat("lockstep ", TimeOfDay(), " ", LogLevelName(level_), " ", BaseName(file_), ":",
                                        line_, "] ", stream_.str());
  if (to.sink != nullptr) {
    to.sink(to.context, level_, line.c_str());
  } else {
    WriteToStderr(line);
  }
}

}  // namespace internal
}  // namespace lockstep

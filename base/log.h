// Levelled logging to stderr, or to a sink of the embedder's.
//
//   LOCKSTEP_LOG(kInfo) << "rank " << rank << " listens on " << address;
//
// The environment variable LOCKSTEP_LOG (error, warning, info, debug, trace; default warning) sets the level at first
// use. The streamed expressions are not evaluated when the level is off. Thread-safe.

#ifndef BASE_LOG_H_
#define BASE_LOG_H_

#include <sstream>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace lockstep {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3, kTrace = 4 };

// "error", "warning", "info", "debug", "trace".
const char* LogLevelName(LogLevel level);

// The level in LOCKSTEP_LOG. INVALID_ARGUMENT for another value: logging then uses the default, and creating a world fails.
absl::StatusOr<absl::optional<LogLevel>> LogLevelOfEnvironment();

LogLevel GetLogLevel();
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);

// Receives one line without its newline, on the thread that logged and outside our locks. It must not log through us.
using LogSink = void (*)(void* context, LogLevel level, const char* line);

// Replaces stderr; a null sink restores it. A line being written by another thread may still reach the old sink.
void SetLogSink(LogSink sink, void* context);

namespace internal {

class LogLine {
 public:
  LogLine(LogLevel level, const char* file, int line) : level_(level), file_(file), line_(line) {}
  ~LogLine();

  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;
  const char* const file_;
  const int line_;
  std::ostringstream stream_;
};

struct LogVoidify {
  void operator&(std::ostream&) {}
};

}  // namespace internal
}  // namespace lockstep

#define LOCKSTEP_LOG(level)                            \
  !::lockstep::LogEnabled(::lockstep::LogLevel::level) \
      ? static_cast<void>(0)                           \
      : ::lockstep::internal::LogVoidify() &           \
            ::lockstep::internal::LogLine(::lockstep::LogLevel::level, __FILE__, __LINE__).stream()

#endif  // BASE_LOG_H_

// LogLines: what is logged while it lives.

#ifndef BASE_LOG_TESTING_H_
#define BASE_LOG_TESTING_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/log.h"
#include "base/mutex.h"

namespace lockstep {

// Thread-safe. One at a time.
class LogLines {
 public:
  LogLines() {
    SetLogSink([](void* self, LogLevel, const char* line) { static_cast<LogLines*>(self)->Add(line); }, this);
  }
  ~LogLines() { SetLogSink(nullptr, nullptr); }

  std::vector<std::string> lines() const {
    MutexLock lock(&mu_);
    return lines_;
  }

 private:
  void Add(const char* line) {
    MutexLock lock(&mu_);
    lines_.emplace_back(line);
  }

  mutable Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // BASE_LOG_TESTING_H_

// What belongs to the process rather than to a handle: version and logging.

#include <memory>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/build_commit.h"
#include "base/log.h"
#include "capi/handles.h"
#include "capi/lockstep.h"
#include "transport/secure/openssl.h"

namespace {

static_assert(static_cast<int>(lockstep::LogLevel::kTrace) == LOCKSTEP_LOG_TRACE, "");

// The embedder's callback. Whoever writes a line to it holds a reference, so that its context is released after the last one.
struct Sink {
  lockstep_log_callback callback;
  void* argument;
  lockstep::capi::Context context;
};

// Never destroyed: threads may log while the process ends.
std::mutex& SinkMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::shared_ptr<Sink>& CurrentSink() {
  static auto* const sink = new std::shared_ptr<Sink>;
  return *sink;
}

void Write(void* /*context*/, lockstep::LogLevel level, const char* line) {
  std::unique_lock<std::mutex> lock(SinkMutex());
  const std::shared_ptr<Sink> sink = CurrentSink();
  lock.unlock();
  // Null: replaced by stderr meanwhile.
  if (sink != nullptr) sink->callback(sink->argument, static_cast<lockstep_log_level>(level), line);
}

}  // namespace

int32_t lockstep_version(void) { return LOCKSTEP_VERSION; }

const char* lockstep_version_text(void) {
  static const std::string* const text =
      new std::string(absl::StrCat(LOCKSTEP_VERSION_MAJOR, ".", LOCKSTEP_VERSION_MINOR, ".", LOCKSTEP_VERSION_PATCH,
                                   " (commit ", lockstep::BuildCommit(), ", ", lockstep::OpenSslVersion(), ")"));
  return text->c_str();
}

void lockstep_set_log_callback(lockstep_log_callback callback, void* context, lockstep_release release) {
  std::shared_ptr<Sink> sink;
  if (callback != nullptr) {
    sink = std::make_shared<Sink>(Sink{callback, context, lockstep::capi::Context(context, release)});
  }
  std::unique_lock<std::mutex> lock(SinkMutex());
  CurrentSink().swap(sink);
  lockstep::SetLogSink(callback == nullptr ? nullptr : &Write, nullptr);
  lock.unlock();
  sink.reset();  // outside the lock: it releases the replaced one's context
}

void lockstep_set_log_level(lockstep_log_level level) { lockstep::SetLogLevel(static_cast<lockstep::LogLevel>(level)); }

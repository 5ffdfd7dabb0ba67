// What belongs to the process rather than to a handle: version and logging.

#include <atomic>

#include "base/log.h"
#include "capi/lockstep.h"

namespace {

static_assert(static_cast<int>(lockstep::LogLevel::kTrace) == LOCKSTEP_LOG_TRACE, "");

// The embedder's callback and context, handed to the logger together as one pointer. Replaced ones are kept: another thread may
// still be writing a line to one, and an embedder sets a handful in its life.
struct Sink {
  lockstep_log_callback callback;
  void* context;
  Sink* replaced;
};

std::atomic<Sink*> newest_sink{nullptr};

void Write(void* context, lockstep::LogLevel level, const char* line) {
  const Sink* const sink = static_cast<const Sink*>(context);
  sink->callback(sink->context, static_cast<lockstep_log_level>(level), line);
}

}  // namespace

int32_t lockstep_version(void) { return LOCKSTEP_VERSION; }

void lockstep_set_log_callback(lockstep_log_callback callback, void* context) {
  if (callback == nullptr) {
    lockstep::SetLogSink(nullptr, nullptr);
  } else {
    Sink* const sink = new Sink{callback, context, newest_sink.load()};
    while (!newest_sink.compare_exchange_weak(sink->replaced, sink)) {
    }
    lockstep::SetLogSink(&Write, sink);
  }
}

void lockstep_set_log_level(lockstep_log_level level) { lockstep::SetLogLevel(static_cast<lockstep::LogLevel>(level)); }

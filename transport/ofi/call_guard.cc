#include "transport/ofi/call_guard.h"

#include <utility>

#include "base/check.h"
#include "base/deadline.h"

namespace lockstep {

OfiCallGuard::OfiCallGuard(const std::string& provider, Options options) : options_(std::move(options)) {
  if (options_.on_stuck == nullptr) {
    const auto patience = std::chrono::duration_cast<std::chrono::seconds>(kTicks * options_.tick);
    options_.on_stuck = [provider, patience] {
      LOCKSTEP_CHECK(false) << "libfabric's provider " << provider << " has not returned from a call for "
                            << patience.count()
                            << " s: a rank that was killed may have held a lock of its; no call can go on";
    };
  }
  thread_ = Thread("lockstep-guard", [this] { Watch(); });
}

OfiCallGuard::~OfiCallGuard() {
  {
    MutexLock lock(&mu_);
    ended_ = true;
    changed_.SignalAll();
  }
  thread_.Join();
}

void OfiCallGuard::Watch() {
  uint64_t seen = 0;
  int ticks = 0;  // in which the same call was under way; a pause of the whole process is one at most
  MutexLock lock(&mu_);
  while (!ended_) {
    const Deadline next = Deadline::After(options_.tick);
    while (!ended_ && changed_.WaitUntil(&mu_, next)) continue;
    const uint64_t now = beginnings_and_ends_.load(std::memory_order_relaxed);
    ticks = now % 2 == 1 && now == seen ? ticks + 1 : 0;
    seen = now;
    if (ticks == kTicks) options_.on_stuck();
  }
}

}  // namespace lockstep

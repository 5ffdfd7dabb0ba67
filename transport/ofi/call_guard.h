// Ends the process when a call of a provider does not return.
//
// The provider shm keeps locks in memory that its ranks share. A rank that is killed while it holds one leaves the others
// spinning inside the provider, in whatever call they are in. Nothing ends such a call: no deadline, and not the world's
// failure detector, which has long reported the death. A process that ends with a reason is better than one that hangs.

#ifndef TRANSPORT_OFI_CALL_GUARD_H_
#define TRANSPORT_OFI_CALL_GUARD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {

// One thread at a time makes calls; a thread of the guard's own watches them.
class OfiCallGuard {
 public:
  struct Options {
    // A call may take kTicks of these, in all of which this process was running. Copying a GiB takes a second.
    std::chrono::milliseconds tick{1000};
    // Runs on the guard's thread, once for a call that takes too long. Null: logs it to stderr and aborts.
    absl::AnyInvocable<void()> on_stuck;
  };
  static constexpr int kTicks = 10;

  OfiCallGuard(const std::string& provider, Options options) : options_(std::move(options)) {
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
  ~OfiCallGuard() {
    {
      MutexLock lock(&mu_);
      ended_ = true;
      changed_.SignalAll();
    }
    thread_.Join();
  }
  OfiCallGuard(const OfiCallGuard&) = delete;
  OfiCallGuard& operator=(const OfiCallGuard&) = delete;

  // For as long as a call is under way. Null: nobody watches it.
  class Call {
   public:
    explicit Call(OfiCallGuard* guard) : guard_(guard) { Count(); }
    ~Call() { Count(); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    void Count() {
      if (guard_ != nullptr) guard_->beginnings_and_ends_.fetch_add(1, std::memory_order_relaxed);
    }

    OfiCallGuard* const guard_;
  };

 private:
  void Watch() {
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

  Options options_;
  // Odd while a call is under way. Relaxed: nothing is read because of it.
  std::atomic<uint64_t> beginnings_and_ends_{0};

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_CALL_GUARD_H_

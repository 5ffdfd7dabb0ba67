// Ends the process when a call of a provider does not return.
//
// The provider shm keeps locks in memory that its ranks share. A rank that is killed while it holds one leaves the others
// spinning for it inside the provider, in whatever call they are in, and nothing can end such a call: not the world's
// failure detector, which has long told of the death, and no deadline. A process that ends with a reason is better than one
// that hangs for ever.

#ifndef TRANSPORT_OFI_CALL_GUARD_H_
#define TRANSPORT_OFI_CALL_GUARD_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {

// One thread at a time makes calls; a thread of the guard's own watches them.
class OfiCallGuard {
 public:
  struct Options {
    // How long a call may take: kTicks such pauses, in all of which this process was running. Copying a GiB takes a second.
    std::chrono::milliseconds tick{1000};
    // Runs on the guard's thread, once for a call that takes too long. Null: says so on stderr and aborts.
    absl::AnyInvocable<void()> on_stuck;
  };
  static constexpr int kTicks = 10;

  OfiCallGuard(const std::string& provider, Options options);
  ~OfiCallGuard();
  OfiCallGuard(const OfiCallGuard&) = delete;
  OfiCallGuard& operator=(const OfiCallGuard&) = delete;

  // For as long as a call is under way. Null: nobody watches it.
  class Call {
   public:
    explicit Call(OfiCallGuard* guard) : guard_(guard) {
      if (guard_ != nullptr) guard_->Count();
    }
    ~Call() {
      if (guard_ != nullptr) guard_->Count();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OfiCallGuard* const guard_;
  };

 private:
  void Count() { beginnings_and_ends_.fetch_add(1, std::memory_order_relaxed); }
  void Watch();

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

#include "comm/engine/progress_engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/log.h"

namespace lockstep {
namespace {

// A sleeper looks up at least this often. Deadlines posted while it sleeps are noticed that late at worst.
constexpr std::chrono::milliseconds kSleepMax{100};

// Where ranks outnumber cores, whoever would poll gives its core away instead, so many times without any movement before it
// sleeps: what it waits for is most often done by the rank that runs then, and going to sleep and being woken costs more.
constexpr int kYields = 50;

// Whoever leaves the core to computation polls only this long, and only once something has moved: ranks that are at the same collective
// wait for each other again and again, each time less than it takes to go to sleep and be woken.
constexpr std::chrono::microseconds kLazySpin{20};

}  // namespace

ProgressEngine::ProgressEngine(Transport* transport, std::chrono::nanoseconds spin)
    : transport_(transport), spin_(spin), sends_may_lag_(transport->sends_may_lag()) {}

ProgressEngine::~ProgressEngine() {
  {
    MutexLock lock(&mu_);
    LOCKSTEP_CHECK(clients_.empty());
  }
  Stop();
}

void ProgressEngine::Stop() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
    transport_->Wake();
    while (waiters_ > 0) changed_.WaitUntil(&mu_, Deadline::Infinite());
    thread = std::move(thread_);
  }
  thread.Join();
}

void ProgressEngine::AddClient(Client* client) { clients_.push_back(client); }

void ProgressEngine::RemoveClient(Client* client) {
  clients_.erase(std::remove(clients_.begin(), clients_.end(), client), clients_.end());
}

void ProgressEngine::WakeThread() {
  if (!thread_.joinable()) {
    // Without it collectives still get on while somebody waits for one.
    const absl::Status started = thread_.Start("lockstep-io", [this] { ThreadMain(); });
    if (!started.ok()) LOCKSTEP_LOG(kError) << "nothing goes on in the background: " << started.message();
  } else {
    changed_.SignalAll();
  }
}

void ProgressEngine::AddBackgroundWork() {
  if (++background_work_ == 1) WakeThread();
}

void ProgressEngine::RemoveBackgroundWork() {
  LOCKSTEP_CHECK(background_work_ > 0);
  if (--background_work_ == 0 && waiters_ == 0) HandOver();
}

void ProgressEngine::HandOver() {
  if (!sends_may_lag_ || handed_over_ || stopping_ || !transport_->sends_lag()) return;
  handed_over_ = true;
  WakeThread();
}

void ProgressEngine::NoteDeadline(Deadline deadline) { next_check_ = Deadline::Earlier(next_check_, deadline); }

void ProgressEngine::Notify() {
  if (waiters_ > 0) changed_.SignalAll();
  if (sleeping_) transport_->Wake();
  // An abort tells peers, too.
  if (waiters_ == 0) HandOver();
}

void ProgressEngine::Drive(const std::atomic<bool>& done, Deadline deadline, bool spin) {
  if (done.load(std::memory_order_acquire)) return;
  MutexLock lock(&mu_);
  ++waiters_;
  if (thread_has_progress_) transport_->Wake();
  while (!done.load(std::memory_order_acquire) && !deadline.passed()) {
    if (!progress_held_) {
      Run(&done, deadline, spin);
    } else {
      changed_.WaitUntil(&mu_, Deadline::Earlier(deadline, Deadline::After(kSleepMax)));
    }
  }
  --waiters_;
  if (sends_may_lag_ && !progress_held_) {
    // Most often a look is enough: the provider has taken it by now.
    if (transport_->sends_lag()) transport_->Progress();
    handed_over_ = handed_over_ && transport_->sends_lag();
  }
  if (waiters_ == 0) HandOver();
  // The next waiter takes the progress lock, or the thread does for what nobody waits for.
  if (waiters_ > 0 || background_work_ > 0 || handed_over_ || stopping_) changed_.SignalAll();
}

void ProgressEngine::Run(const std::atomic<bool>* done, Deadline deadline, bool eager) {
  progress_held_ = true;
  const auto finished = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done != nullptr) return done->load(std::memory_order_acquire);
    handed_over_ = handed_over_ && transport_->sends_lag();
    return stopping_ || waiters_ > 0 || (background_work_ == 0 && !handed_over_);
  };
  std::chrono::nanoseconds spin = eager ? spin_ : std::chrono::nanoseconds::zero();
  const int yields_max = eager && !spins() ? kYields : 0;
  Deadline::Clock::time_point spin_end;
  int yields = 0;
  bool moved = true;
  while (!finished()) {
    // Once in a turn: reading the clock is a good part of what a turn costs.
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    if (deadline.passed(now)) break;
    if (moved) {
      spin_end = now + spin;
      yields = 0;
    }
    if (next_check_.passed(now)) {
      next_check_ = Deadline::After(kSleepMax);
      for (Client* client : clients_) NoteDeadline(client->CheckDeadlines());
      if (finished()) break;
    }
    const bool transport_moved = transport_->Progress();
    bool client_moved = false;
    for (Client* client : clients_) client_moved |= client->Poll();
    if (finished()) break;
    moved = transport_moved || client_moved;
    if (moved && !eager && spins()) spin = kLazySpin;
    if (transport_moved && !client_moved) continue;
    // Between two polls other threads get to post.
    const bool idle = !moved && now >= spin_end;
    const bool yield = idle && yields < yields_max;
    sleeping_ = idle && !yield;
    const bool sleep = sleeping_;
    const Deadline wake_up = next_check_;
    mu_.Unlock();
    if (yield) {
      ++yields;
      std::this_thread::yield();
    }
    if (sleep) transport_->WaitForEvent(Deadline::Earlier(deadline, wake_up));
    mu_.Lock();
    sleeping_ = false;
  }
  progress_held_ = false;
}

void ProgressEngine::ThreadMain() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    if ((background_work_ == 0 && !handed_over_) || waiters_ > 0 || progress_held_) {
      changed_.WaitUntil(&mu_, Deadline::Infinite());
      continue;
    }
    thread_has_progress_ = true;
    Run(nullptr, Deadline::Infinite(), /*eager=*/false);
    thread_has_progress_ = false;
    if (waiters_ > 0) changed_.SignalAll();
  }
}

}  // namespace lockstep

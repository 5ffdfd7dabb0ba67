// ProgressEngine: who drives a transport, and when.
//
// A transport does nothing by itself. One thread at a time holds the progress lock: it polls the transport and the clients, runs
// completions and sleeps in WaitForEvent when nothing moves. A thread that waits for a result takes the progress lock if it is
// free, so a blocking collective is executed by its caller and wakes nobody. The engine's own thread ("lockstep-io") takes the lock
// only when nobody waits for an operation in flight, or when what completed operations sent has not left. It hands the lock to the
// first waiter.
//
// The engine's mutex is the lock that Transport's comment asks for. Whoever holds it may post operations; completions run
// with it held. A holder of the progress lock that sleeps does not hold the mutex.

#ifndef COMM_ENGINE_PROGRESS_ENGINE_H_
#define COMM_ENGINE_PROGRESS_ENGINE_H_

#include <atomic>
#include <chrono>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/transport.h"

namespace lockstep {

class ProgressEngine {
 public:
  // Something with operations in flight.
  class Client {
   public:
    virtual ~Client() = default;
    // Continues work that the transport does not do, without waiting, and for a bounded time, since others wait for the mutex.
    // True when anything moved; it is then called again. Called after each Transport::Progress, and before the holder of the
    // progress lock sleeps. Adds and removes no clients.
    virtual bool Poll() { return false; }
    // Acts on deadlines that have passed and returns the next one.
    virtual Deadline CheckDeadlines() = 0;
  };

  // The transport must outlive the engine. `spin`: how long a caller who asks for it polls before it sleeps. Zero where
  // ranks outnumber cores.
  ProgressEngine(Transport* transport, std::chrono::nanoseconds spin);

  // Stops.
  // REQUIRES  all clients have been removed
  ~ProgressEngine();

  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;

  // Waits until all threads have left Drive, and ends the engine's thread. Idempotent.
  // REQUIRES  everything that anybody waits for is done, and nothing more will begin
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex* mutex() ABSL_LOCK_RETURNED(mu_) { return &mu_; }
  Transport* transport() { return transport_; }
  // Whether waiters poll before they sleep.
  bool spins() const { return spin_.count() > 0; }

  void AddClient(Client* client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveClient(Client* client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // An operation that must progress without a waiter has begun, or ended. The first one starts the engine's thread.
  void AddBackgroundWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveBackgroundWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // A client has a new deadline, unknown at its last CheckDeadlines.
  void NoteDeadline(Deadline deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Something that a waiter may be waiting for has changed. Any thread, also without the progress lock.
  void Notify() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Drives the transport, or waits for the thread that does, until `done` is true or the deadline has passed.
  void Drive(const std::atomic<bool>& done, Deadline deadline, bool spin) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Polls with the progress lock until `done` (null: until a waiter wants the lock or no background work is left). `eager`: before it
  // sleeps it polls for a while, or yields the core where ranks outnumber cores; else it polls for moments, once something has moved.
  void Run(const std::atomic<bool>* done, Deadline deadline, bool eager) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ThreadMain() ABSL_LOCKS_EXCLUDED(mu_);
  void WakeThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The thread that drove is about to leave Drive. The engine's thread takes over if something has not left.
  void HandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  Transport* const transport_;
  const std::chrono::nanoseconds spin_;
  const bool sends_may_lag_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  std::vector<Client*> clients_ ABSL_GUARDED_BY(mu_);
  Deadline next_check_ ABSL_GUARDED_BY(mu_) = Deadline::Now();  // of the clients' deadlines
  bool progress_held_ ABSL_GUARDED_BY(mu_) = false;
  bool thread_has_progress_ ABSL_GUARDED_BY(mu_) = false;
  bool sleeping_ ABSL_GUARDED_BY(mu_) = false;  // whoever holds the progress lock is in WaitForEvent
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  int background_work_ ABSL_GUARDED_BY(mu_) = 0;
  bool handed_over_ ABSL_GUARDED_BY(mu_) = false;  // to the thread, until all has left
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_ENGINE_PROGRESS_ENGINE_H_

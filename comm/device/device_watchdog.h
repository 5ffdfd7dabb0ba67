// The one thread of a process that looks after its communicators that work on devices by themselves: NCCL reports
// failures only to who asks, and a collective on a stream has nobody who waits for it.

#ifndef COMM_DEVICE_DEVICE_WATCHDOG_H_
#define COMM_DEVICE_DEVICE_WATCHDOG_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {

// Thread-safe. The thread, lockstep-device, is there while anybody is watched. What a client asks CUDA there does not
// break captures of graphs on other threads.
class DeviceWatchdog {
 public:
  class Client {
   public:
    // Every 20 ms. Waits for nobody: the others of the process are looked after by the same thread.
    virtual void Watch() = 0;

   protected:
    ~Client() = default;
  };

  // The process's. Never destroyed.
  static DeviceWatchdog* Get();

  void Add(Client* client) ABSL_LOCKS_EXCLUDED(mu_);
  // After this the client is called no more: waits for the end of a call that is under way to it, but not to others. Not from
  // one of its calls. With the last client the thread ends.
  void Remove(Client* client) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DeviceWatchdog() = default;

  // As long as that is the generation.
  void Loop(uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the clients of now, without the lock; those that are removed meanwhile are left out.
  void CallAll(uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::vector<Client*> clients_ ABSL_GUARDED_BY(mu_);
  // To whom a call is under way: one for each thread that has not ended yet.
  std::vector<Client*> called_ ABSL_GUARDED_BY(mu_);
  // Counts threads that were begun and ended: the one that is there has the number that is here.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_WATCHDOG_H_

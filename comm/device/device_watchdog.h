// The thread of a process that watches its communicators for devices. It is needed because NCCL reports failures only when asked,
// and nobody waits for a collective on a stream.

#ifndef COMM_DEVICE_DEVICE_WATCHDOG_H_
#define COMM_DEVICE_DEVICE_WATCHDOG_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "base/thread.h"

namespace lockstep {

// Thread-safe. The thread, lockstep-device, exists while there are clients. CUDA calls that clients make on it do not break captures
// of graphs on other threads.
class DeviceWatchdog {
 public:
  class Client {
   public:
    // Called every 20 ms. Must not wait: one thread watches all communicators of the process.
    virtual void Watch() = 0;

   protected:
    ~Client() = default;
  };

  // The process's. Never destroyed.
  static DeviceWatchdog* Get();

  void Add(Client* client) ABSL_LOCKS_EXCLUDED(mu_);
  // When this returns the client is not called any more: waits for a call of this client that is under way, but not for those of
  // others. Must not be called from one of the client's calls. The thread ends with the last client.
  void Remove(Client* client) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  DeviceWatchdog() = default;

  // The thread, until there is another generation.
  void Loop(uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls the current clients without the lock; skips those that are removed meanwhile.
  void CallAll(uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::vector<Client*> clients_ ABSL_GUARDED_BY(mu_);
  // The clients of calls under way: one for each thread that has not ended yet.
  std::vector<Client*> called_ ABSL_GUARDED_BY(mu_);
  // Counts starts and ends of threads. The current thread has this number.
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // COMM_DEVICE_DEVICE_WATCHDOG_H_

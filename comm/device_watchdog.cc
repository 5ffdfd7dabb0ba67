#include "comm/device_watchdog.h"

#include <algorithm>
#include <utility>

#include "base/cuda_api.h"
#include "base/cuda_guard.h"
#include "base/deadline.h"

namespace lockstep {
namespace {

constexpr int kPeriodMs = 20;

}  // namespace

DeviceWatchdog* DeviceWatchdog::Get() {
  static DeviceWatchdog* const watchdog = new DeviceWatchdog();
  return watchdog;
}

void DeviceWatchdog::Add(Client* client) {
  MutexLock lock(&mu_);
  clients_.push_back(client);
  if (clients_.size() > 1) return;
  thread_ = Thread("lockstep-device", [this, generation = ++generation_] { Loop(generation); });
}

void DeviceWatchdog::Remove(Client* client) {
  Thread ended;
  {
    MutexLock lock(&mu_);
    clients_.erase(std::find(clients_.begin(), clients_.end(), client));
    if (!clients_.empty()) return;
    ++generation_;
    changed_.SignalAll();
    ended = std::move(thread_);
  }
  ended.Join();
}

void DeviceWatchdog::Loop(uint64_t generation) {
  const CudaRelaxedCapture relaxed(TheCudaApi());
  MutexLock lock(&mu_);
  while (generation_ == generation) {
    for (Client* const client : clients_) client->Watch();
    const Deadline next = Deadline::AfterMs(kPeriodMs);
    while (generation_ == generation && changed_.WaitUntil(&mu_, next)) {
    }
  }
}

}  // namespace lockstep

#include "comm/device/device_watchdog.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_guard.h"

namespace lockstep {
namespace {

constexpr int kPeriodMs = 20;

bool Contains(const std::vector<DeviceWatchdog::Client*>& clients, const DeviceWatchdog::Client* client) {
  return std::find(clients.begin(), clients.end(), client) != clients.end();
}

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
    if (clients_.empty()) {
      ++generation_;
      changed_.SignalAll();
      ended = std::move(thread_);
    }
    // Calls wait for nobody.
    while (Contains(called_, client)) changed_.WaitUntil(&mu_, Deadline::Infinite());
  }
  ended.Join();
}

void DeviceWatchdog::CallAll(uint64_t generation) {
  for (Client* const client : std::vector<Client*>(clients_)) {
    if (generation_ != generation) return;
    if (!Contains(clients_, client)) continue;
    called_.push_back(client);
    mu_.Unlock();
    client->Watch();
    mu_.Lock();
    called_.erase(std::find(called_.begin(), called_.end(), client));
    changed_.SignalAll();
  }
}

void DeviceWatchdog::Loop(uint64_t generation) {
  const CudaRelaxedCapture relaxed(TheCudaApi());
  MutexLock lock(&mu_);
  while (generation_ == generation) {
    CallAll(generation);
    const Deadline next = Deadline::AfterMs(kPeriodMs);
    while (generation_ == generation && changed_.WaitUntil(&mu_, next)) {
    }
  }
}

}  // namespace lockstep

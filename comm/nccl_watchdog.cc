#include "comm/nccl_watchdog.h"

#include <algorithm>

#include "base/cuda_api.h"
#include "base/cuda_guard.h"
#include "base/deadline.h"

namespace lockstep {
namespace {

constexpr int kPeriodMs = 20;

}  // namespace

NcclWatchdog* NcclWatchdog::Get() {
  static NcclWatchdog* const watchdog = new NcclWatchdog();
  return watchdog;
}

void NcclWatchdog::Add(Client* client) {
  MutexLock lock(&mu_);
  clients_.push_back(client);
  if (running_) return;
  // The thread before has seen that there is nobody left and needs the mutex no more.
  thread_.Join();
  running_ = true;
  thread_ = Thread("lockstep-nccl", [this] { Loop(); });
}

void NcclWatchdog::Remove(Client* client) {
  MutexLock lock(&mu_);
  clients_.erase(std::find(clients_.begin(), clients_.end(), client));
  if (clients_.empty()) changed_.SignalAll();
}

void NcclWatchdog::Loop() {
  const CudaRelaxedCapture relaxed(TheCudaApi());
  MutexLock lock(&mu_);
  while (!clients_.empty()) {
    for (Client* const client : clients_) client->Watch();
    const Deadline next = Deadline::AfterMs(kPeriodMs);
    while (!clients_.empty() && changed_.WaitUntil(&mu_, next)) {
    }
  }
  running_ = false;
}

}  // namespace lockstep

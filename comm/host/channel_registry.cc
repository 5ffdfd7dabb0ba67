#include "comm/host/channel_registry.h"

#include "base/check.h"

namespace lockstep {
namespace {

constexpr size_t kEarlyFailuresMax = 256;

}  // namespace

uint32_t ChannelRegistry::TakeNumber() {
  MutexLock lock(&mu_);
  return numbers_ < kNumbersMax ? numbers_++ : kNumbersMax;
}

uint32_t ChannelRegistry::TakeMemoryNumber() {
  MutexLock lock(&mu_);
  return memory_numbers_ < kMemoriesMax ? memory_numbers_++ : kMemoriesMax;
}

void ChannelRegistry::Add(ChannelId channel, Member* member) {
  MutexLock lock(&mu_);
  LOCKSTEP_CHECK(members_.emplace(channel, member).second) << "channel " << channel << " is taken";
  absl::Status failure = world_failure_;
  if (const auto it = early_failures_.find(channel); it != early_failures_.end()) {
    failure.Update(it->second);
    early_failures_.erase(it);
  }
  if (!failure.ok()) member->OnFailure(failure);
}

void ChannelRegistry::Remove(ChannelId channel) {
  MutexLock lock(&mu_);
  members_.erase(channel);
}

void ChannelRegistry::OnFailure(const Failure& failure) {
  MutexLock lock(&mu_);
  if (failure.channel == kAllChannels) {
    world_failure_.Update(failure.status);
    for (const auto& [channel, member] : members_) member->OnFailure(failure.status);
    return;
  }
  if (const auto it = members_.find(failure.channel); it != members_.end()) {
    it->second->OnFailure(failure.status);
    return;
  }
  if (early_failures_.size() >= kEarlyFailuresMax) early_failures_.erase(early_failures_.begin());
  early_failures_.emplace(failure.channel, failure.status);
}

std::vector<std::pair<ChannelId, Progress>> ChannelRegistry::progress() const {
  MutexLock lock(&mu_);
  std::vector<std::pair<ChannelId, Progress>> list;
  for (const auto& [channel, member] : members_) list.emplace_back(channel, member->progress());
  return list;
}

std::string ChannelRegistry::CalledAs(ChannelId channel, uint64_t sequence) const {
  MutexLock lock(&mu_);
  const auto it = members_.find(channel);
  return it == members_.end() ? "" : it->second->CalledAs(sequence);
}

}  // namespace lockstep

#include "comm/host/self_communicator.h"

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr size_t kMessageTopicsMax = 64;

TransportCommunicatorOptions OptionsOfOne(size_t flight_records, std::chrono::milliseconds timeout) {
  TransportCommunicatorOptions options;
  options.flight_records = flight_records;
  options.timeout = timeout;
  options.description = "one rank: collectives are copies";
  return options;
}

}  // namespace

SelfCommunicator::SelfCommunicator(size_t flight_records, std::chrono::milliseconds timeout)
    : TransportCommunicator(&own_engine_, /*control=*/nullptr, OptionsOfOne(flight_records, timeout)) {}

absl::Status SelfCommunicator::MonitoredBarrier(std::chrono::milliseconds, std::vector<Rank>* missing) {
  if (missing != nullptr) missing->clear();
  return status();
}

void SelfCommunicator::PostMessage(uint64_t topic, const std::string& text) {
  MutexLock lock(&posted_mu_);
  posted_[topic] = text;
  if (posted_.size() > kMessageTopicsMax) posted_.erase(posted_.begin());
}

absl::StatusOr<std::vector<std::pair<Rank, std::string>>> SelfCommunicator::AwaitMessages(uint64_t topic, int count,
                                                                                          Deadline) {
  MutexLock lock(&posted_mu_);
  std::vector<std::pair<Rank, std::string>> found;
  if (const auto it = posted_.find(topic); it != posted_.end()) found.emplace_back(Rank(0), it->second);
  if (static_cast<int>(found.size()) >= count) return found;
  return absl::DeadlineExceededError(absl::StrCat("there are ", found.size(), " messages, not ", count));
}

}  // namespace lockstep

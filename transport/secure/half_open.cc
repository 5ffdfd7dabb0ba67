#include "transport/secure/half_open.h"

#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "absl/strings/string_view.h"

namespace lockstep {

size_t HalfOpen::MostForThisProcess() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 4, 4, 1024));
}

absl::optional<uint64_t> HalfOpen::Add(uint64_t id, const std::string& source, Clock::time_point now) {
  connections_.push_back({id, source, now + time_});
  return connections_.size() > most_ ? Crowded() : absl::nullopt;
}

bool HalfOpen::Remove(uint64_t id) {
  const auto found =
      std::lower_bound(connections_.begin(), connections_.end(), id,
                       [](const Connection& connection, uint64_t value) { return connection.id < value; });
  if (found == connections_.end() || found->id != id) return false;
  connections_.erase(found);
  return true;
}

absl::optional<uint64_t> HalfOpen::Crowded() const {
  std::map<absl::string_view, size_t> counts;
  size_t most = 0;
  for (const Connection& connection : connections_) most = std::max(most, ++counts[connection.source]);
  for (const Connection& connection : connections_) {
    if (counts[connection.source] == most) return connection.id;
  }
  return absl::nullopt;
}

absl::optional<uint64_t> HalfOpen::Expired(Clock::time_point now) const {
  if (connections_.empty() || now < connections_.front().until) return absl::nullopt;
  return connections_.front().id;
}

}  // namespace lockstep

#include "transport/secure/half_open.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

// In which a handshake between processes that mean it is over.
constexpr std::chrono::seconds kStays{1};

// More than the ranks of any world make. Those that are remembered are made with the secret, so unauthenticated peers cannot fill this up.
constexpr size_t kFirstFlightsMax = size_t{1} << 16;

// What a listener keeps of those that have not begun well, however many all listeners have.
constexpr size_t kNotBegunWellMin = 4;

// Of all listeners with Bound::kProcess; a forked child begins anew. Relaxed: nothing else is handed over with it.
std::atomic<size_t>& NotBegunWellInProcess() {
  static std::atomic<size_t> count{0};
  static const int handler = pthread_atfork(nullptr, nullptr, [] { count.store(0, std::memory_order_relaxed); });
  (void)handler;
  return count;
}

// The network of an IPv6 address, "2001:db8::7" or "fe80::7%eth0". Anything else as it is, an IPv4 address in IPv6's form too.
std::string CountedAs(const std::string& source) {
  const size_t host_bytes = std::min(source.find('%'), source.size());
  in6_addr address;
  if (inet_pton(AF_INET6, source.substr(0, host_bytes).c_str(), &address) != 1) return source;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return source;
  return std::string(reinterpret_cast<const char*>(&address), 8) + source.substr(host_bytes);
}

}  // namespace

size_t HalfOpen::MostForThisProcess() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 4;
  return static_cast<size_t>(std::clamp<rlim_t>(limit.rlim_cur / 16, 4, 1024));
}

HalfOpen::~HalfOpen() { SetNotBegunWell(0); }

void HalfOpen::SetNotBegunWell(size_t count) {
  if (bound_ == Bound::kProcess && ForkGeneration() == fork_generation_) {
    // Modulo 2^64, so that it may become less.
    NotBegunWellInProcess().fetch_add(count - not_begun_well_, std::memory_order_relaxed);
  }
  not_begun_well_ = count;
}

bool HalfOpen::TooManyHaveNotBegunWell() const {
  if (not_begun_well_ > most_) return true;
  return bound_ == Bound::kProcess && not_begun_well_ > kNotBegunWellMin &&
         NotBegunWellInProcess().load(std::memory_order_relaxed) > most_in_process_;
}

template <typename Condition>
absl::optional<uint64_t> HalfOpen::OldestOfTheFullest(Condition condition) const {
  std::map<absl::string_view, size_t> counts;
  size_t most = 0;
  for (const Connection& connection : connections_) {
    if (condition(connection)) most = std::max(most, ++counts[connection.source]);
  }
  for (const Connection& connection : connections_) {
    if (condition(connection) && counts[connection.source] == most) return connection.id;
  }
  return absl::nullopt;
}

absl::optional<uint64_t> HalfOpen::Add(uint64_t id, const std::string& source, Clock::time_point now) {
  connections_.push_back({id, CountedAs(source), now + time_, now, false});
  SetNotBegunWell(not_begun_well_ + 1);
  if (TooManyHaveNotBegunWell()) {
    return OldestOfTheFullest([](const Connection& connection) { return !connection.begun_well; });
  }
  if (connections_.size() <= most_ + more_begun_well_) return absl::nullopt;
  const absl::optional<uint64_t> oldest = ToEvict(now);
  if (oldest.has_value() && *oldest != id) return oldest;
  // All others stay. But first flights may have been recorded elsewhere, and an address that has most of them keeps out no other: its
  // oldest goes.
  std::map<absl::string_view, size_t> counts;
  for (const Connection& connection : connections_) ++counts[connection.source];
  const auto fullest =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (fullest->second <= counts[connections_.back().source] + 1) return id;
  return std::find_if(connections_.begin(), connections_.end(),
                      [&](const Connection& connection) { return connection.source == fullest->first; })
      ->id;
}

std::vector<HalfOpen::Connection>::iterator HalfOpen::Find(uint64_t id) {
  const auto found =
      std::lower_bound(connections_.begin(), connections_.end(), id,
                       [](const Connection& connection, uint64_t value) { return connection.id < value; });
  return found != connections_.end() && found->id == id ? found : connections_.end();
}

void HalfOpen::BegunWell(uint64_t id, absl::string_view first_flight, Clock::time_point now) {
  const auto found = first_flight.empty() ? connections_.end() : Find(id);
  if (found == connections_.end() || found->begun_well) return;
  if (first_flights_.size() >= kFirstFlightsMax) first_flights_.clear();
  if (!first_flights_.emplace(first_flight).second) return;
  found->begun_well = true;
  SetNotBegunWell(not_begun_well_ - 1);
  found->stays_until = now + kStays;
}

bool HalfOpen::Remove(uint64_t id) {
  const auto found = Find(id);
  if (found == connections_.end()) return false;
  if (!found->begun_well) SetNotBegunWell(not_begun_well_ - 1);
  connections_.erase(found);
  return true;
}

absl::optional<uint64_t> HalfOpen::ToEvict(Clock::time_point now) const {
  return OldestOfTheFullest([now](const Connection& connection) { return connection.stays_until <= now; });
}

absl::optional<uint64_t> HalfOpen::Expired(Clock::time_point now) const {
  if (connections_.empty() || now < connections_.front().until) return absl::nullopt;
  return connections_.front().id;
}

}  // namespace lockstep

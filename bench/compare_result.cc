#include "bench/compare_result.h"

#include <algorithm>

#include "bench/bandwidth.h"
#include "comm/schedule.h"

namespace lockstep {
namespace bench {

std::string TransportText(const std::string& transport) {
  if (transport == "shm") return "shared memory";
  if (transport == "ofi") return "libfabric";
  return transport == "tcp" ? "TCP" : transport;
}

absl::optional<double> MedianSeconds(const ContenderResult& contender, size_t size_index) {
  const std::vector<double>& seconds = contender.trials[size_index].seconds;
  if (seconds.empty()) return absl::nullopt;
  return Median(seconds);
}

absl::optional<Quartiles> RatioOf(const ContenderResult& subject, const ContenderResult& other, size_t size_index) {
  const std::vector<double>& own = subject.trials[size_index].seconds;
  const std::vector<double>& others = other.trials[size_index].seconds;
  const size_t rounds = std::min(own.size(), others.size());
  if (rounds == 0) return absl::nullopt;
  std::vector<double> ratios;
  for (size_t round = 0; round < rounds; ++round) ratios.push_back(own[round] / others[round]);
  return QuartilesOf(std::move(ratios));
}

const ContenderResult* FastestPeer(const ContestResult& contest, size_t size_index) {
  const ContenderResult* fastest = nullptr;
  for (const ContenderResult& contender : contest.contenders) {
    if (contender.kind != ContenderKind::kPeer) continue;
    const absl::optional<double> seconds = MedianSeconds(contender, size_index);
    if (!seconds.has_value()) continue;
    if (fastest == nullptr || *seconds < *MedianSeconds(*fastest, size_index)) fastest = &contender;
  }
  return fastest;
}

double BusBandwidth(int64_t bytes, int ranks, double seconds) {
  return AlgorithmBandwidth(bytes, seconds) * BusFactor({Collective::kAllReduce}, ranks);
}

}  // namespace bench
}  // namespace lockstep

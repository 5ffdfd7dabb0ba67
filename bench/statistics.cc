#include "bench/statistics.h"

#include <algorithm>
#include <cstddef>

namespace lockstep {
namespace bench {
namespace {

double AtFraction(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Quartiles QuartilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {AtFraction(values, 0.25), AtFraction(values, 0.5), AtFraction(values, 0.75)};
}

double Median(const std::vector<double>& values) { return QuartilesOf(values).median; }

}  // namespace bench
}  // namespace lockstep

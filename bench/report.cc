#include "bench/report.h"

#include "bench/bandwidth.h"

namespace lockstep {
namespace bench {

uint64_t WrongElements(const Report& report) {
  uint64_t wrong = 0;
  for (const Row& row : report.rows) {
    wrong += row.out_of_place.wrong;
    if (row.in_place.has_value()) wrong += row.in_place->wrong;
  }
  return wrong;
}

double AverageBusBandwidth(const Report& report) {
  double sum = 0;
  int count = 0;
  const auto add = [&](const Row& row, const Measurement& measurement) {
    sum += AlgorithmBandwidth(row.size.bytes, measurement.seconds) * BusFactor(row.exercise, report.ranks);
    ++count;
  };
  for (const Row& row : report.rows) {
    if (row.size.bytes == 0) continue;
    add(row, row.out_of_place);
    if (row.in_place.has_value()) add(row, *row.in_place);
  }
  return count == 0 ? 0 : sum / count;
}

}  // namespace bench
}  // namespace lockstep

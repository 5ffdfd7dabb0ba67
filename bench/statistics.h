// Medians and quartiles of a few measurements.

#ifndef BENCH_STATISTICS_H_
#define BENCH_STATISTICS_H_

#include <vector>

namespace lockstep {
namespace bench {

struct Quartiles {
  double low = 0;
  double median = 0;
  double high = 0;
};

// Between two measurements, linearly. Zeros for none.
Quartiles QuartilesOf(std::vector<double> values);

double Median(const std::vector<double>& values);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_STATISTICS_H_

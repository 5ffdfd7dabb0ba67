// A comparison as a picture: bus bandwidth over size, both in powers, one panel for each contest.

#ifndef BENCH_COMPARE_PLOT_H_
#define BENCH_COMPARE_PLOT_H_

#include <string>
#include <vector>

#include "bench/compare_result.h"

namespace lockstep {
namespace bench {

// An SVG document by itself, with no script, font or style from elsewhere. Lockstep's lines are thick, limits dashed. A
// contender without times has no line; a contest without any has empty axes.
std::string ComparisonPlot(const std::vector<ContestResult>& contests);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_PLOT_H_

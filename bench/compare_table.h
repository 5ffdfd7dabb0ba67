// A comparison as tables for people.

#ifndef BENCH_COMPARE_TABLE_H_
#define BENCH_COMPARE_TABLE_H_

#include <string>
#include <utility>
#include <vector>

#include "bench/compare_result.h"

namespace lockstep {
namespace bench {

// "# cpu: ...", one line for each fact.
std::string ComparisonFactsText(const std::vector<std::pair<std::string, std::string>>& facts);

// Who took part and how, who was dropped and why; the medians; and for each of Lockstep's contenders that has times its
// ratios to all others: the median and, in brackets, the quartiles over rounds, the fastest peer of the row marked with
// a star. Every line but the rows begins with "#".
std::string ContestTable(const ContestResult& contest);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_TABLE_H_

// Tables for people, in the columns of nccl-tests.

#ifndef BENCH_TABLE_H_
#define BENCH_TABLE_H_

#include <string>

#include "bench/report.h"

namespace lockstep {
namespace bench {

// "# cpu: ...", one line for each fact.
std::string FactsText(const Report& report);

// Every line but the rows begins with "#", as in nccl-tests, so that a row is what a script need not skip.
std::string TableHeading(const Exercise& exercise);
std::string TableLine(const Row& row, int ranks);

// `limit`: what all-reduce is beside.
// The latter where lines have the columns of fi_pingpong.
std::string LimitsHeading(const std::string& limit, bool with_pingpong);
std::string LimitsLine(const LimitRow& row);

// The wrong elements and the average bus bandwidth.
std::string Summary(const Report& report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_TABLE_H_

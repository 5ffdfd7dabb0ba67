// A report as JSON, for scripts.

#ifndef BENCH_REPORT_JSON_H_
#define BENCH_REPORT_JSON_H_

#include <string>

#include "bench/report.h"

namespace lockstep {
namespace bench {

// {"facts": {"cpu": ..., ...}, "ranks": 2,
//  "rows": [{"collective": "all_reduce", "size_bytes": 8, "count": 2, "dtype": "f32", "op": "sum", "root": -1,
//            "out_of_place": {"time_us": 9.1, "algbw_gbps": 0.001, "busbw_gbps": 0.001, "wrong": 0, "iterations": 1000},
//            "in_place": {...}}],                                    null for a barrier
//  "limits": [{"size_bytes": 8, "lockstep_us": 9.1, "both_ways_us": 5.0,
//              "both_ways_ratio": {"low": 1.7, "median": 1.8, "high": 1.9},
//              "one_way_us": 4.1, "one_way_ratio": {...}}]}          null for large sizes
// `count` is nccl-tests' column. GB is 10^9 bytes.
std::string ReportJson(const Report& report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_REPORT_JSON_H_

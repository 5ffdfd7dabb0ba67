// A comparison as JSON, for scripts: with every round, so that other statistics can be made.

#ifndef BENCH_COMPARE_JSON_H_
#define BENCH_COMPARE_JSON_H_

#include <string>

#include "bench/compare_result.h"

namespace lockstep {
namespace bench {

// {"facts": {"cpu": ..., ...}, "missing": ["gloo: ..."],
//  "contests": [{"transport": "tcp", "ranks": 2, "contenders": [
//    {"name": "lockstep", "kind": "lockstep", "about": ..., "congestion_control": "reno", "dropped": null,
//     "sizes": [{"bytes": 8, "calls": 1000, "median_us": 7.1, "busbw_gbps": 0.001, "rounds_us": [7.0, 7.1, ...],
//                "lockstep_ratio": {"lockstep": {"low": ..., "median": ..., "high": ...}}}]}]}]}
// `kind` is lockstep, limit or peer. A size that was not measured has no entry. `lockstep_ratio` is, for each of
// Lockstep's contenders but this one, its time over this one's.
std::string ComparisonJson(const ComparisonReport& report);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_JSON_H_

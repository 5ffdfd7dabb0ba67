// What a contest has found out, as data: for the table, the plot and JSON.

#ifndef BENCH_COMPARE_RESULT_H_
#define BENCH_COMPARE_RESULT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "bench/compare_contender.h"
#include "bench/statistics.h"

namespace lockstep {
namespace bench {

// One contender at one size.
struct Trial {
  int64_t calls = 0;            // in a round
  std::vector<double> seconds;  // of one call, by round; shorter when the contender was dropped, empty when never asked
};

struct ContenderResult {
  std::string name;
  ContenderKind kind = ContenderKind::kPeer;
  std::string about;
  std::string congestion_control;  // of the TCP connection that sent most; "none" without TCP; empty: not found out
  std::string dropped;             // when and why; empty when it went through
  std::vector<Trial> trials;       // by size
};

struct ContestResult {
  std::string transport;
  int ranks = 2;
  std::vector<int64_t> sizes;
  std::vector<ContenderResult> contenders;
};

struct ComparisonReport {
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<ContestResult> contests;
  std::vector<std::string> missing;  // peers that were wished for and are not there, and how to get them
};

// "shm" -> "shared memory": for people.
std::string TransportText(const std::string& transport);

// None where the contender has no times at that size.
absl::optional<double> MedianSeconds(const ContenderResult& contender, size_t size_index);

// Time of `subject` / time of `other`, round by round; below 1 the subject is faster. None where either has no times.
absl::optional<Quartiles> RatioOf(const ContenderResult& subject, const ContenderResult& other, size_t size_index);

// The peer with the lowest median at that size; null without any.
const ContenderResult* FastestPeer(const ContestResult& contest, size_t size_index);

// In GB/s (10^9 bytes), as nccl-tests defines it for all-reduce: size / time x 2 (n - 1) / n.
double BusBandwidth(int64_t bytes, int ranks, double seconds);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_RESULT_H_

// Price tables: algorithm x size for a described network, as text, with the selector's choice marked. What
// //comm/schedule/verify:simulate prints.

#ifndef COMM_SCHEDULE_VERIFY_COST_TABLE_H_
#define COMM_SCHEDULE_VERIFY_COST_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

struct CostTableOptions {
  std::vector<Collective> collectives;
  std::vector<int64_t> sizes;  // bytes of the whole vector: see CostModel::Ns()
  int ranks = 1;
  Network network;
  // The ranks of a host map each other's memory: where there is one host, the shared-memory algorithms too.
  bool share_memory = false;
  // Carry out the schedules of all ranks in virtual time (comm/schedule/verify/simulator.h) rather than ask the cost model.
  bool step_by_step = false;
};

// One table for each collective, of microseconds:
//
//   all_reduce, 4096 ranks, 8 on each of 512 hosts, us
//   algorithm                   8 B      1 MiB
//   recursive_doubling       182.4*   120304.1
//   ring                   12006.3     10423.0*
//
// "*" is what the selector takes for ordinary buffers; "+" what it takes for buffers of the communicator's allocator,
// where that is something else. "-" where the algorithm cannot carry out the collective. INVALID_ARGUMENT for a world
// without ranks, or (step by step) for one that cannot be simulated in memory, and for negative sizes.
absl::StatusOr<std::string> FormatCostTables(const CostTableOptions& options);

// Texts of the command line. All give INVALID_ARGUMENT that says what is expected.
//
//   collectives  "all", or names with commas between
//   sizes        bytes with commas between; K, M and G behind a number are powers of 1024
//   bandwidth    "25gbit", "800mbit": decimal, a second; the nanoseconds that a byte takes
//   latency      "20us", "500ns", "1.5ms"; nanoseconds
//   link class   "tcp", "shared_memory", "loopback": the built-in costs between ranks of one host
absl::StatusOr<std::vector<Collective>> ParseCollectiveList(absl::string_view text);
absl::StatusOr<std::vector<int64_t>> ParseSizeList(absl::string_view text);
absl::StatusOr<double> ParseBandwidth(absl::string_view text);
absl::StatusOr<double> ParseLatency(absl::string_view text);
absl::StatusOr<LinkCosts> ParseLocalLink(absl::string_view text);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_COST_TABLE_H_

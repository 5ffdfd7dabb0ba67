// Cost tables: algorithm x size for a described network, as text, with the selector's choice marked.
// //comm/schedule/verify:simulate prints them.

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
  // The ranks of a host map each other's memory. With one host the tables then include the shared-memory algorithms.
  bool share_memory = false;
  // Run the schedules of all ranks in virtual time (comm/schedule/verify/simulator.h) instead of asking the cost model.
  bool step_by_step = false;
};

// One table for each collective, of microseconds:
//
//   all_reduce, 4096 ranks, 8 on each of 512 hosts, us
//   algorithm                   8 B      1 MiB
//   recursive_doubling       182.4*   120304.1
//   ring                   12006.3     10423.0*
//
// "*": the selector's choice for ordinary buffers. "+": its choice for buffers of the communicator's allocator, if it differs.
// "-": the algorithm cannot execute the collective.
// ERRORS  INVALID_ARGUMENT for a world without ranks, one too large to be simulated step by step, and negative sizes
absl::StatusOr<std::string> FormatCostTables(const CostTableOptions& options);

// Parse texts of the command line. INVALID_ARGUMENT says what is expected.
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

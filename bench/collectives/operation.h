// Operation: what a table is about. A collective, one of its forms with blocks of their own sizes, or messages. And what its bandwidth
// is, as nccl-tests defines it (its doc/PERFORMANCE.md), so that tables can be laid side by side.

#ifndef BENCH_COLLECTIVES_OPERATION_H_
#define BENCH_COLLECTIVES_OPERATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/schedule/schedule.h"

namespace lockstep {
namespace bench {

struct Operation {
  Collective collective = Collective::kAllReduce;
  bool unequal = false;   // the v-form, of those that have a block for each rank
  bool messages = false;  // no collective: every rank sends its vector to the next one, and receives the previous one's

  bool is(Collective some) const { return !messages && collective == some; }
  bool has_data() const { return !is(Collective::kBarrier); }
  bool has_blocks() const { return !messages && IsByRank(collective); }
  bool has_root() const { return !messages && HasRoot(collective); }
  bool reduces() const { return !messages && HasReduction(collective); }
};

// "all_gather", "all_gather_v", "send_receive".
std::string Name(const Operation& operation);

// "all", or names with commas between. INVALID_ARGUMENT lists the known ones.
absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text);

// Of `count` elements, the blocks of `ranks`: equal, or growing from rank to rank as far as there are elements for it.
std::vector<int64_t> BlockCounts(int64_t count, int ranks, bool unequal);

// The algorithm's bandwidth is size / time, of the whole vector: for all-gather what it makes, for reduce-scatter what it starts from. In
// GB/s, with GB = 10^9 bytes; 0 for no time. Times the bus factor it is the bus bandwidth: by what an optimal algorithm moves through
// each rank's link per byte, which makes it comparable with the hardware's rate whatever the number of ranks. Of unequal blocks as of
// equal ones.
double AlgorithmBandwidth(int64_t bytes, double seconds);
double BusFactor(const Operation& operation, int ranks);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COLLECTIVES_OPERATION_H_

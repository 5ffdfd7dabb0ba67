// Exercise: what a table is about. A collective, one of its forms with blocks of their own sizes, or messages.

#ifndef BENCH_EXERCISE_H_
#define BENCH_EXERCISE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/schedule.h"

namespace lockstep {
namespace bench {

struct Exercise {
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
std::string Name(const Exercise& exercise);

// "all", or names with commas between. INVALID_ARGUMENT lists the known ones.
absl::StatusOr<std::vector<Exercise>> ParseExercises(absl::string_view text);

// Of `count` elements, the blocks of `ranks`: equal, or growing from rank to rank as far as there are elements for it.
std::vector<int64_t> BlockCounts(int64_t count, int ranks, bool unequal);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_EXERCISE_H_

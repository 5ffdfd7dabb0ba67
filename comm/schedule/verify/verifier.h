// Verifier: runs all ranks' schedules of one collective in one thread, on symbols, and proves that
//
//   - every message is matched, message for message and block for block, and none is left over;
//   - nothing deadlocks even where a send completes only when its receive has been started. Steps start as the executor
//     starts them: when the steps named in `after` are complete and, for a message, when all earlier steps of the list
//     with the same peer in the same direction have been started;
//   - any two steps of one rank that touch the same block of the same memory, one of them writing, are ordered by
//   `after`;
//   - no step reads memory that was never written, leaves its window, or writes the input;
//   - where blocks may differ in size, a block is only ever where a block of its size belongs;
//   - every output is the right expression of the inputs: a reduction has every rank's contribution exactly once, and
//     in an all-reduce every rank builds the same tree but for the order of a node's two operands, so that all end with
//     the same bits;
//   - no rank leaves a barrier before every rank has entered it;
//   - in shared memory, every rank holds the same barriers in the same order, and touches other ranks' input and output between
//     its first step, a barrier, and its last barrier, and their scratch only where it is a stage; and what two ranks do
//     to the same block of the same memory, one of them writing, has a barrier between;
//   - staged, the schedule has no more phases than a stage has slots, and at least two (comm/schedule/stage.h).
//
// Memory is compared by block, so a proof holds for every count.

#ifndef COMM_SCHEDULE_VERIFY_VERIFIER_H_
#define COMM_SCHEDULE_VERIFY_VERIFIER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "comm/schedule/schedule.h"
#include "comm/schedule/verify/expression.h"

namespace lockstep {

// What has been proved about a set of schedules.
class Proof {
 public:
  Proof(ExpressionTable expressions, std::vector<std::vector<ExpressionTable::Id>> outputs, int message_depth,
        bool reduces_in_rank_order, bool rounds_once);

  // The final value of a block of a rank's output: "((r2+r1)+r0)", or "(r0+r1+r2)" from one reduce_many. The left operand is the
  // rank's own in a receive_reduce and the target in a reduce. "undefined" where the collective leaves it undefined.
  std::string Expression(Rank rank, int block) const;
  // The length of the longest chain of messages of which each had to wait for the one before: the factor of the latency in a
  // cost model.
  int message_depth() const { return message_depth_; }
  // Whether every block of every rank's output is the left fold of the ranks' inputs in rank order.
  bool reduces_in_rank_order() const { return folds_in_rank_order_; }
  // Whether every block of every rank's output is reduced in one step, straight from the inputs.
  bool rounds_once() const { return rounds_once_; }

 private:
  ExpressionTable expressions_;
  std::vector<std::vector<ExpressionTable::Id>> outputs_;  // [rank][block]
  int message_depth_;
  bool folds_in_rank_order_;
  bool rounds_once_;
};

// all_ranks[r] is rank r's schedule. INTERNAL naming the rank, the step and what is wrong, for the first fault found.
absl::StatusOr<Proof> Prove(absl::Span<const Schedule> all_ranks, bool in_place);
absl::Status Verify(absl::Span<const Schedule> all_ranks, bool in_place);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_VERIFIER_H_

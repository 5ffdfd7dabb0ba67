// ExecutionPlan: a schedule laid over memory: where every step's operands lie, and how they are cut into chunks.
//
// All that can be worked out before a collective is called the second time. Immutable; shared by the cache, prepared
// collectives and the operations in flight. Offsets are in bytes from where the caller's buffers begin, and those of
// operands in another rank's windows from where that rank's caller's begin: the layouts are the same on every rank, but a
// window that is one block of the vector begins at another place of it on each (IsOwnBlock() in comm/schedule/schedule.h).

#ifndef COMM_PLAN_EXECUTION_PLAN_H_
#define COMM_PLAN_EXECUTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/rank.h"
#include "base/types/reduction.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/schedule/block_layout.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

class ExecutionPlan {
 public:
  struct Options {
    std::shared_ptr<const PreparedSchedule> schedule;
    BlockLayout input;
    BlockLayout output;  // of scratch as well; the same as the input's but for an all-to-all with counts
    int64_t element_bytes = 1;
    int64_t chunk_bytes = 1;
    // Of the collectives that reduce.
    Reduction reduction;
    ReduceManyFunction reduce_many = nullptr;
    // Of those whose folds multiply what they read by `factor`, in the place of reduce_many.
    ScaledSumFunction scaled_sum = nullptr;
    double factor = 1;
    // The envelope says the elements of its message's step, not the vector's: an all-to-all with counts, whose ranks
    // know only their own.
    bool count_per_message = false;
  };

  // Another step that waits for this one.
  struct Dependent {
    int32_t step = 0;
    bool chunkwise = false;  // it waits chunk by chunk, and there is more than one
  };

  struct StepLayout {
    const Step* step = nullptr;
    ChunkLayout chunks{0, 1, 1};
    int64_t elements = 0;
    // Of the operands that the step has.
    size_t source_offset = 0;
    size_t target_offset = 0;
    // Before this step begins: steps that must be complete, and one more where its lane has an earlier message, which must be
    // posted whole.
    int32_t held_by = 0;
    int32_t lane_next = PreparedSchedule::kNone;
    absl::Span<const int32_t>
        chunkwise_after;  // steps of which chunk c must be complete before chunk c of this one begins
    absl::Span<const Dependent> dependents;
    std::vector<size_t> term_offsets;
    std::vector<size_t> more_target_offsets;
  };

  explicit ExecutionPlan(Options options);

  ExecutionPlan(const ExecutionPlan&) = delete;
  ExecutionPlan& operator=(const ExecutionPlan&) = delete;

  const PreparedSchedule& schedule() const { return *options_.schedule; }
  const StepLayout& step(int index) const { return steps_[index]; }
  size_t element_bytes() const { return static_cast<size_t>(options_.element_bytes); }
  // Of a rank's own scratch: none where it is a stage.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // From one block of scratch to the next: the size of the vector's largest block, or on a stage of the largest piece of it.
  // What a rank gives in a kShare step is no longer.
  size_t scratch_block_bytes() const { return static_cast<size_t>(scratch_block_ * options_.element_bytes); }
  // In shared memory: in how many rounds the schedule is executed, and how many elements of each block are moved in each at most.
  // One round of whole blocks but for staged schedules (comm/schedule/stage.h).
  int64_t rounds() const { return rounds_; }
  int64_t piece_elements() const { return piece_; }
  const Reduction& reduction() const { return options_.reduction; }
  // A kReduceMany step's work, on `elements` of each term and target.
  void ReduceMany(void* const* targets, size_t target_count, const void* const* terms, size_t term_count,
                  size_t elements) const {
    if (options_.scaled_sum == nullptr) return options_.reduce_many(targets, target_count, terms, term_count, elements);
    options_.scaled_sum(targets, target_count, terms, term_count, elements, options_.factor);
  }
  bool count_per_message() const { return options_.count_per_message; }

  // Of an all-reduce in which this rank and one other give each other the whole vector, and nobody else takes part.
  struct Exchange {
    Rank peer;
    size_t bytes = 0;
  };
  const absl::optional<Exchange>& exchange() const { return exchange_; }

 private:
  void LinkSteps();
  absl::optional<Exchange> FindExchange() const;
  int64_t Elements(const Operand& operand) const;
  size_t Offset(const Operand& operand) const;

  Options options_;
  std::vector<StepLayout> steps_;
  // What the steps' spans show.
  std::vector<int32_t> chunkwise_after_;
  std::vector<Dependent> dependents_;
  int64_t piece_ = 0;  // elements
  int64_t rounds_ = 1;
  int64_t scratch_block_ = 0;  // elements
  size_t scratch_bytes_ = 0;
  absl::optional<Exchange> exchange_;
};

}  // namespace lockstep

#endif  // COMM_PLAN_EXECUTION_PLAN_H_

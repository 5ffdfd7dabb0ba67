// ExecutionPlan: a schedule laid over memory. It says where every step's operands lie, and how they are cut into chunks.
//
// Computed once, so that calls like the first need not. Immutable; shared by the cache, prepared collectives and the operations
// in flight. Offsets are in bytes from the beginning of the caller's buffers. For an operand in another rank's window they count
// from the beginning of that rank's buffers. Layouts are the same on every rank, but a window that is one block of the vector
// begins elsewhere in it on each rank (IsOwnBlock() in comm/schedule/schedule.h).

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
    BlockLayout output;  // of scratch as well; differs from the input's only in an all-to-all with counts
    int64_t element_bytes = 1;
    int64_t chunk_bytes = 1;
    // For collectives that reduce.
    Reduction reduction;
    ReduceManyFunction reduce_many = nullptr;
    // Used instead of reduce_many where the reduction multiplies what it reads by `factor`.
    ScaledSumFunction scaled_sum = nullptr;
    double factor = 1;
    // The envelope's count is that of its message, not of the vector: in an all-to-all with counts, where ranks know only their own.
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
    // Set for operands that the step has.
    size_t source_offset = 0;
    size_t target_offset = 0;
    // How many things hold this step back: each step that must be complete before it counts one; an earlier message in its lane,
    // which must be posted whole, counts one more.
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
  // Of a rank's own scratch; 0 where the scratch is a stage.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // From one block of scratch to the next: the size of the vector's largest block, on a stage of the largest piece of it. A
  // rank gives no more than this in a kShare step.
  size_t scratch_block_bytes() const { return static_cast<size_t>(scratch_block_ * options_.element_bytes); }
  // In shared memory: the rounds in which the schedule is executed, and the most elements of each block that one round moves. Only
  // staged schedules (comm/schedule/stage.h) have more than one round.
  int64_t rounds() const { return rounds_; }
  int64_t piece_elements() const { return piece_; }
  const Reduction& reduction() const { return options_.reduction; }
  // Executes a kReduceMany step on `elements` of each term and target.
  void ReduceMany(void* const* targets, size_t target_count, const void* const* terms, size_t term_count,
                  size_t elements) const {
    if (options_.scaled_sum == nullptr) return options_.reduce_many(targets, target_count, terms, term_count, elements);
    options_.scaled_sum(targets, target_count, terms, term_count, elements, options_.factor);
  }
  bool count_per_message() const { return options_.count_per_message; }

  // Set for an all-reduce in which this rank and one other send each other the whole vector, and nobody else takes part.
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

// ExecutionPlan: a schedule laid over memory: where every step's operands lie, and how they are cut into chunks.
//
// All that can be worked out before a collective is called the second time. Immutable; shared by the cache, prepared
// collectives and the operations in flight. Offsets are in bytes from where the caller's buffers begin.

#ifndef COMM_EXECUTION_PLAN_H_
#define COMM_EXECUTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/reduction.h"
#include "comm/block_layout.h"
#include "comm/prepared_schedule.h"

namespace lockstep {

class ExecutionPlan {
 public:
  struct Options {
    std::shared_ptr<const PreparedSchedule> schedule;
    BlockLayout input;
    BlockLayout output;  // of scratch as well; the same as the input's but for an all-to-all with counts
    // Elements of the layouts before the caller's buffers: an all-gather's input is one block of the vector, as a
    // reduce-scatter's output is.
    int64_t input_begin = 0;
    int64_t output_begin = 0;
    int64_t element_bytes = 1;
    int64_t chunk_bytes = 1;
    // Of the collectives that reduce.
    Reduction reduction;
    ReduceManyFunction reduce_many = nullptr;
    // The envelope says the elements of its message's step, not the vector's: an all-to-all with counts, whose ranks
    // know only their own.
    bool count_per_message = false;
  };

  struct StepLayout {
    ChunkLayout chunks{0, 1, 1};
    int64_t elements = 0;
    // Of the operands that the step has.
    size_t source_offset = 0;
    size_t target_offset = 0;
    std::vector<size_t> term_offsets;
  };

  explicit ExecutionPlan(Options options);

  const PreparedSchedule& schedule() const { return *options_.schedule; }
  const StepLayout& step(int index) const { return steps_[index]; }
  size_t element_bytes() const { return static_cast<size_t>(options_.element_bytes); }
  size_t scratch_bytes() const { return scratch_bytes_; }
  const Reduction& reduction() const { return options_.reduction; }
  ReduceManyFunction reduce_many() const { return options_.reduce_many; }
  bool count_per_message() const { return options_.count_per_message; }

 private:
  int64_t Elements(const Operand& operand) const;
  size_t Offset(const Operand& operand) const;

  Options options_;
  std::vector<StepLayout> steps_;
  int64_t scratch_block_ = 0;  // elements
  size_t scratch_bytes_ = 0;
};

}  // namespace lockstep

#endif  // COMM_EXECUTION_PLAN_H_

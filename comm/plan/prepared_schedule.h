// A schedule with what the executors need to know about it, computed once: which step waits for which, and whether chunk by chunk.
// For shared-memory schedules, whose steps run one after the other: the phases between barriers.

#ifndef COMM_PLAN_PREPARED_SCHEDULE_H_
#define COMM_PLAN_PREPARED_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

// Immutable. Shared by the cache and the operations in flight.
class PreparedSchedule {
 public:
  static constexpr int32_t kNone = Step::kNone;

  struct Links {
    // Messages of one direction with one peer form a lane and are posted in list order.
    int32_t lane_previous = kNone;
    int32_t lane_next = kNone;
    // For Step::after[k]: chunk c of this step may start when chunk c of that one is complete, rather than all of it.
    absl::InlinedVector<bool, 3> chunkwise;
  };

  // In shared memory: the steps before the first barrier, between two, or after the last.
  struct Phase {
    int32_t begin = 0;
    int32_t end = 0;  // the barrier; of the last phase, the number of steps
  };

  explicit PreparedSchedule(Schedule schedule);

  const Schedule& schedule() const { return schedule_; }
  int steps() const { return static_cast<int>(schedule_.steps.size()); }
  const Step& step(int index) const { return schedule_.steps[index]; }
  const Links& links(int index) const { return links_[index]; }
  int phases() const { return static_cast<int>(phases_.size()); }
  const Phase& phase(int index) const { return phases_[index]; }

  // The steps that name `index` in `after`.
  absl::Span<const int32_t> dependents(int index) const {
    return absl::MakeConstSpan(dependents_.data() + dependents_begin_[index],
                               dependents_begin_[index + 1] - dependents_begin_[index]);
  }

 private:
  Schedule schedule_;
  std::vector<Links> links_;
  std::vector<Phase> phases_;
  std::vector<int32_t> dependents_begin_;
  std::vector<int32_t> dependents_;
};

}  // namespace lockstep

#endif  // COMM_PLAN_PREPARED_SCHEDULE_H_

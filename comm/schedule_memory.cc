#include "comm/schedule_memory.h"

namespace lockstep {

const char* ScheduleMemory::WhyAbsent(Window window, int64_t block) const {
  const Collective collective = schedule_.collective;
  if (window == Window::kScratch) {
    return block < 0 || block >= schedule_.scratch_blocks ? "is outside the scratch" : nullptr;
  }
  if (block < 0 || block >= schedule_.blocks) return "is outside the vector";
  const bool is_root = schedule_.rank == schedule_.root;
  const bool is_own = block == schedule_.rank.value();
  if (window == Window::kInput) {
    const bool is_at_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
    const bool is_by_rank = collective == Collective::kAllGather || collective == Collective::kGather;
    if (is_at_root && !is_root) return "is there on the root alone";
    if (is_by_rank && !is_own) return "is another rank's";
  } else {
    const bool is_at_root = collective == Collective::kReduce || collective == Collective::kGather;
    const bool is_by_rank = collective == Collective::kReduceScatter || collective == Collective::kScatter;
    if (is_at_root && !is_root) return "is there on the root alone";
    if (is_by_rank && !is_own) return "is another rank's";
  }
  return nullptr;
}

}  // namespace lockstep

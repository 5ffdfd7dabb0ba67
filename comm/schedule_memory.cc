#include "comm/schedule_memory.h"

namespace lockstep {

const char* ScheduleMemory::WhyAbsent(Window window, int64_t block, int32_t rank) const {
  const Collective collective = schedule_.collective;
  if (window == Window::kScratch) {
    return block < 0 || block >= schedule_.scratch_blocks ? "is outside the scratch" : nullptr;
  }
  if (block < 0 || block >= schedule_.blocks) return "is outside the vector";
  const bool is_at_root = window == Window::kInput
                              ? collective == Collective::kBroadcast || collective == Collective::kScatter
                              : collective == Collective::kReduce || collective == Collective::kGather;
  if (is_at_root && rank != schedule_.root.value()) return "is there on the root alone";
  if (IsOwnBlock(collective, window) && block != rank) return "is another rank's";
  return nullptr;
}

}  // namespace lockstep

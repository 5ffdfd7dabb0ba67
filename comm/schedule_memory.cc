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
    if (collective == Collective::kBroadcast && !is_root) return "is there on the root alone";
    if (collective == Collective::kAllGather && !is_own) return "is another rank's";
  } else {
    if (collective == Collective::kReduce && !is_root) return "is there on the root alone";
    if (collective == Collective::kReduceScatter && !is_own) return "is another rank's";
  }
  return nullptr;
}

}  // namespace lockstep

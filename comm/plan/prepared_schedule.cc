#include "comm/plan/prepared_schedule.h"

#include <map>
#include <utility>

#include "comm/schedule/schedule_memory.h"

namespace lockstep {
PreparedSchedule::PreparedSchedule(Schedule schedule) : schedule_(std::move(schedule)) {
  const int count = steps();
  links_.resize(count);
  std::vector<std::vector<int32_t>> dependents(count);
  std::map<std::pair<Rank, bool>, int32_t> lane_last;  // by peer and direction
  for (int i = 0; i < count; ++i) {
    const Step& current = step(i);
    for (const int32_t earlier : current.after) {
      dependents[earlier].push_back(i);
      links_[i].chunkwise.push_back(IsChunkwise(current, step(earlier)));
    }
    if (!IsMessage(current.kind)) continue;
    const auto lane = std::make_pair(current.peer, current.kind == Step::Kind::kSend);
    if (auto it = lane_last.find(lane); it != lane_last.end()) {
      links_[i].lane_previous = it->second;
      links_[it->second].lane_next = i;
    }
    lane_last[lane] = i;
  }
  if (UsesSharedMemory(schedule_.algorithm)) {
    phases_.emplace_back();
    for (int i = 0; i < count; ++i) {
      if (!IsBarrier(step(i).kind)) continue;
      phases_.back().end = i;
      phases_.push_back({i + 1, 0});
    }
    phases_.back().end = count;
  }
  dependents_begin_.reserve(count + 1);
  dependents_begin_.push_back(0);
  for (const std::vector<int32_t>& list : dependents) {
    dependents_.insert(dependents_.end(), list.begin(), list.end());
    dependents_begin_.push_back(static_cast<int32_t>(dependents_.size()));
  }
}

}  // namespace lockstep

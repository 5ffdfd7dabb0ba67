#include "comm/engine/barrier_checks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/schedule_checks.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"

namespace lockstep {
namespace {

constexpr int32_t kNone = Step::kNone;

std::vector<int32_t> BarriersOf(const Schedule& schedule) {
  std::vector<int32_t> barriers;
  for (size_t index = 0; index < schedule.steps.size(); ++index) {
    if (IsBarrier(schedule.steps[index].kind)) barriers.push_back(static_cast<int32_t>(index));
  }
  return barriers;
}

// Their stage, before everyone's eyes all the time, does not count.
bool TouchesOthers(const Step& step) {
  const auto is_of_another = [](const Operand& operand) {
    return operand.rank != Operand::kOwn && operand.window != Window::kScratch;
  };
  for (const Operand& term : step.terms) {
    if (is_of_another(term)) return true;
  }
  for (const Operand& target : step.more_targets) {
    if (is_of_another(target)) return true;
  }
  return is_of_another(step.source) || is_of_another(step.target);
}

// One rank's against rank 0's.
absl::Status CheckBarriersOf(const Schedule& schedule, const std::vector<int32_t>& barriers, const Schedule& first,
                             const std::vector<int32_t>& of_first) {
  if (barriers.size() != of_first.size()) {
    return absl::InternalError(absl::StrCat("rank ", schedule.rank.value(), " holds ", barriers.size(),
                                            " barriers, and rank 0 ", of_first.size()));
  }
  for (size_t k = 0; k < barriers.size(); ++k) {
    if (schedule.steps[barriers[k]].kind == first.steps[of_first[k]].kind) continue;
    return StepError(schedule, barriers[k],
                     absl::StrCat("is another kind of barrier than ", DescribeStep(first, of_first[k])));
  }
  return absl::OkStatus();
}

// Where some rank touches another's memory, all begin with a barrier that tells where their memory is, and each ends
// with one before which all that touch it are done.
absl::Status CheckPresence(absl::Span<const Schedule> all) {
  const auto touches_others = [](const Schedule& schedule) {
    return std::any_of(schedule.steps.begin(), schedule.steps.end(), TouchesOthers);
  };
  if (std::none_of(all.begin(), all.end(), touches_others)) return absl::OkStatus();
  for (const Schedule& schedule : all) {
    if (schedule.steps.empty() || schedule.steps.front().kind != Step::Kind::kBarrier) {
      constexpr char kFault[] =
          ": the schedule does not begin with a kBarrier step, and ranks touch each other's memory";
      return absl::InternalError(absl::StrCat("rank ", schedule.rank.value(), kFault));
    }
    for (size_t index = schedule.steps.size() - 1; !IsBarrier(schedule.steps[index].kind); --index) {
      if (!TouchesOthers(schedule.steps[index])) continue;
      return StepError(schedule, index, "touches another rank's memory after the last barrier");
    }
  }
  return absl::OkStatus();
}

// Who touches which block of whose memory between two barriers.
class Races {
 public:
  Races(absl::Span<const Schedule> all, bool in_place) : all_(all), in_place_(in_place) {
    for (const Schedule& schedule : all) touched_.emplace_back(ScheduleMemory(schedule, in_place).locations());
  }

  // All ranks' steps between two barriers come before any step after the second.
  absl::Status Add(int rank, int32_t index, int32_t barrier);

 private:
  struct Access {
    int32_t rank = kNone;
    int32_t index = 0;
  };
  struct Touched {
    int32_t barrier = kNone;  // the barrier before the accesses
    Access writer;
    std::array<Access, 2> readers;  // of two ranks: more make no difference
  };

  absl::Status Touch(int rank, int32_t index, int32_t barrier, const Operand& operand, bool writes);

  const absl::Span<const Schedule> all_;
  const bool in_place_;
  std::vector<std::vector<Touched>> touched_;  // [owner][location]
};

absl::Status Races::Add(int rank, int32_t index, int32_t barrier) {
  const Step& step = all_[rank].steps[index];
  if (ScheduleMemory(all_[rank], in_place_).IsVoid(step)) return absl::OkStatus();
  if (ReadsSource(step.kind)) LOCKSTEP_RETURN_IF_ERROR(Touch(rank, index, barrier, step.source, /*writes=*/false));
  for (const Operand& term : step.terms) {
    LOCKSTEP_RETURN_IF_ERROR(Touch(rank, index, barrier, term, /*writes=*/false));
  }
  if (WritesTarget(step.kind)) LOCKSTEP_RETURN_IF_ERROR(Touch(rank, index, barrier, step.target, /*writes=*/true));
  for (const Operand& target : step.more_targets) {
    LOCKSTEP_RETURN_IF_ERROR(Touch(rank, index, barrier, target, /*writes=*/true));
  }
  return absl::OkStatus();
}

absl::Status Races::Touch(int rank, int32_t index, int32_t barrier, const Operand& operand, bool writes) {
  const ScheduleMemory memory(all_[rank], in_place_);
  const Access access = {rank, index};
  for (int i = 0; i < operand.blocks; ++i) {
    Touched& touched = touched_[memory.OwnerOf(operand)][memory.Location(operand) + i];
    if (touched.barrier != barrier) {
      touched = Touched();
      touched.barrier = barrier;
    }
    const auto is_of_another = [rank](const Access& other) { return other.rank != kNone && other.rank != rank; };
    const Access* other = is_of_another(touched.writer) ? &touched.writer : nullptr;
    for (const Access& reader : touched.readers) {
      if (other == nullptr && writes && is_of_another(reader)) other = &reader;
    }
    if (other != nullptr) {
      return StepError(
          all_[rank], index,
          absl::StrCat("races with ", DescribeStep(all_[other->rank], other->index), in_place_ ? " in place" : "",
                       ": both touch the same block, and there is no barrier between them"));
    }
    if (writes) {
      touched.writer = access;
    } else if (touched.readers[0].rank == kNone || touched.readers[0].rank == rank) {
      touched.readers[0] = access;
    } else {
      touched.readers[1] = access;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBarriers(absl::Span<const Schedule> all_ranks, bool in_place) {
  std::vector<std::vector<int32_t>> barriers;
  for (const Schedule& schedule : all_ranks) {
    barriers.push_back(BarriersOf(schedule));
    LOCKSTEP_RETURN_IF_ERROR(CheckBarriersOf(schedule, barriers.back(), all_ranks[0], barriers[0]));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckPresence(all_ranks));
  Races races(all_ranks, in_place);
  for (int32_t barrier = 0; barrier <= static_cast<int32_t>(barriers[0].size()); ++barrier) {
    for (int rank = 0; rank < static_cast<int>(all_ranks.size()); ++rank) {
      const std::vector<int32_t>& own = barriers[rank];
      const int32_t begin = barrier == 0 ? 0 : own[barrier - 1] + 1;
      // What is given in a barrier is read before it.
      const int32_t end = barrier < static_cast<int32_t>(own.size())
                              ? own[barrier] + 1
                              : static_cast<int32_t>(all_ranks[rank].steps.size());
      for (int32_t index = begin; index < end; ++index) LOCKSTEP_RETURN_IF_ERROR(races.Add(rank, index, barrier));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRounds(absl::Span<const Schedule> all_ranks) {
  const Schedule& first = all_ranks[0];
  if (first.size == 1) return absl::OkStatus();
  const size_t phases = BarriersOf(first).size() + 1;
  if (phases < kStagePhasesMin || phases > kStagePhasesMax) {
    return absl::InternalError(absl::StrCat("a staged schedule of ", phases, " phases"));
  }
  for (const Schedule& schedule : all_ranks) {
    if (schedule.scratch_blocks == first.scratch_blocks && schedule.scratch_blocks <= schedule.size) continue;
    return absl::InternalError(absl::StrCat("rank ", schedule.rank.value(), " has ", schedule.scratch_blocks,
                                            " blocks of scratch on a stage, and rank 0 ", first.scratch_blocks));
  }
  return absl::OkStatus();
}

}  // namespace lockstep

#include "comm/schedule/verify/schedule_checks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/stage.h"

namespace lockstep {
namespace {

const char* WindowName(Window window) {
  return window == Window::kInput ? "input" : window == Window::kOutput ? "output" : "scratch";
}

// Calls `use(operand, writes)` for what the step reads and then for what it writes, until that is an error.
template <typename Use>
absl::Status ForOperands(const Step& step, const Use& use) {
  if (ReadsSource(step.kind)) LOCKSTEP_RETURN_IF_ERROR(use(step.source, false));
  for (const Operand& term : step.terms) LOCKSTEP_RETURN_IF_ERROR(use(term, false));
  if (WritesTarget(step.kind)) LOCKSTEP_RETURN_IF_ERROR(use(step.target, true));
  for (const Operand& target : step.more_targets) LOCKSTEP_RETURN_IF_ERROR(use(target, true));
  return absl::OkStatus();
}

// The steps of one schedule, one by one.
class StepChecker {
 public:
  StepChecker(const Schedule& schedule, bool in_place)
      : schedule_(schedule),
        memory_(schedule, in_place),
        uses_shared_memory_(UsesSharedMemory(schedule.algorithm)),
        is_staged_(IsStaged(schedule.algorithm)),
        blocks_may_differ_(memory_.HasUnequalBlocks()),
        pieces_(std::max(schedule.scratch_blocks, 0)) {}

  absl::Status Check(size_t index);

 private:
  // How steps see a block of scratch: as a part of blocks [begin, end).
  struct Piece {
    int begin = 0;
    int end = 0;  // 0: not seen yet
  };

  absl::Status Error(size_t index, absl::string_view fault) const { return StepError(schedule_, index, fault); }
  // What a step of its kind has, and what only shared-memory schedules have.
  absl::Status CheckKind(size_t index) const;
  absl::Status CheckOperand(size_t index, const Operand& operand);
  absl::Status CheckScratch(size_t index, const Operand& operand);
  absl::Status CheckShare(size_t index);
  // All that is read against all that is written.
  absl::Status CheckOverlap(size_t index) const;

  const Schedule& schedule_;
  const ScheduleMemory memory_;
  const bool uses_shared_memory_;
  const bool is_staged_;
  const bool blocks_may_differ_;
  std::vector<Piece> pieces_;
};

absl::Status StepChecker::CheckKind(size_t index) const {
  const Step& step = schedule_.steps[index];
  if (static_cast<int>(step.kind) >= Step::kKindCount) return Error(index, "is of no known kind");
  if (IsMessage(step.kind)) {
    if (uses_shared_memory_) return Error(index, "is a message, in a shared-memory schedule");
    const int peer = step.peer.value();
    if (peer < 0 || peer >= schedule_.size) return Error(index, "has a peer outside the world");
    if (step.peer == schedule_.rank) return Error(index, "has the rank itself as its peer");
  }
  if (IsBarrier(step.kind) && !uses_shared_memory_) return Error(index, "is a barrier, in a schedule of messages");
  if (is_staged_ && step.kind == Step::Kind::kShare) return Error(index, "shares, in a staged schedule");
  for (int32_t earlier : step.after) {
    if (uses_shared_memory_) return Error(index, "waits for another step, in a shared-memory schedule");
    if (earlier < 0 || earlier >= static_cast<int64_t>(index)) {
      return Error(index, absl::StrCat("waits for #", earlier, ", which is no earlier step"));
    }
  }
  const bool is_many = step.kind == Step::Kind::kReduceMany;
  if (is_many ? step.terms.size() < 2 : !step.terms.empty()) {
    return Error(index, absl::StrCat("has ", step.terms.size(), " terms"));
  }
  if (!step.more_targets.empty() && (!is_many || !uses_shared_memory_)) return Error(index, "has more than one target");
  return absl::OkStatus();
}

absl::Status StepChecker::CheckOperand(size_t index, const Operand& operand) {
  if (operand.blocks < 0) return Error(index, "has an operand of a negative number of blocks");
  if (is_staged_ && operand.blocks > 1) return Error(index, "has an operand of several blocks, in a staged schedule");
  std::string whose;
  if (operand.rank != Operand::kOwn) {
    const Step::Kind kind = schedule_.steps[index].kind;
    if (!uses_shared_memory_ || (kind != Step::Kind::kCopy && kind != Step::Kind::kReduceMany)) {
      return Error(index, "touches another rank's memory, which no such step can");
    }
    if (operand.rank < 0 || operand.rank >= schedule_.size || operand.rank == schedule_.rank.value()) {
      return Error(index, absl::StrCat("names rank ", operand.rank, ", which is no other rank of the world"));
    }
    if (operand.window == Window::kScratch && !is_staged_) return Error(index, "touches another rank's scratch");
    if (operand.window != Window::kScratch && is_staged_) {
      return Error(index, "touches another rank's input or output, in a staged schedule");
    }
    whose = absl::StrCat("rank ", operand.rank, "'s ");
  }
  for (int64_t block = operand.block; block < int64_t{operand.block} + operand.blocks; ++block) {
    if (const char* why = memory_.WhyAbsent(operand.window, block, memory_.OwnerOf(operand))) {
      return Error(index, absl::StrCat("uses ", whose, WindowName(operand.window), "[", block, "], which ", why));
    }
  }
  return operand.window == Window::kScratch ? CheckScratch(index, operand) : absl::OkStatus();
}

absl::Status StepChecker::CheckScratch(size_t index, const Operand& operand) {
  if (operand.holds < 0 || int64_t{operand.holds} + operand.blocks > schedule_.blocks) {
    return Error(index, "has scratch for blocks outside the vector");
  }
  if (!blocks_may_differ_) return absl::OkStatus();
  if (schedule_.collective == Collective::kAllToAll) {
    return Error(index, "uses scratch, which has no size where an all-to-all's blocks may differ");
  }
  // Blocks that differ in size are packed: where the second of a piece begins depends on the first.
  for (int i = operand.block; i < operand.block + operand.blocks; ++i) {
    Piece& piece = pieces_[i];
    if (piece.end == 0) piece = {operand.block, operand.block + operand.blocks};
    if (piece.begin != operand.block || piece.end != operand.block + operand.blocks) {
      return Error(index, absl::StrCat("touches a part of scratch[", piece.begin, "..", piece.end - 1,
                                       "], or more, which another step touches as one, where blocks may differ in "
                                       "size"));
    }
  }
  return absl::OkStatus();
}

absl::Status StepChecker::CheckShare(size_t index) {
  const Operand& source = schedule_.steps[index].source;
  const Operand& target = schedule_.steps[index].target;
  if (source.window == Window::kScratch || source.blocks > 1) {
    return Error(index, "gives something else than a block of its rank's input or output");
  }
  if (target.window != Window::kScratch || target.holds != 0 || target.blocks != schedule_.size) {
    return Error(index, "does not share into a block of scratch for each rank");
  }
  for (int rank = 0; rank < schedule_.size; ++rank) {
    LOCKSTEP_RETURN_IF_ERROR(CheckOperand(index, {Window::kScratch, target.block + rank, 1}));
  }
  return CheckOperand(index, source);
}

absl::Status StepChecker::CheckOverlap(size_t index) const {
  const Step& step = schedule_.steps[index];
  struct Use {
    int32_t owner;
    int begin;
    bool writes;
  };
  std::vector<Use> uses;
  const int blocks = step.target.blocks;
  const auto note = [&](const Operand& operand, bool writes) {
    uses.push_back({memory_.OwnerOf(operand), memory_.Location(operand), writes});
    if (operand.blocks == blocks) return absl::OkStatus();
    return Error(index, absl::StrCat("has ", operand.blocks, " blocks as ", writes ? "another target" : "its source",
                                     " and ", blocks, " as its target"));
  };
  LOCKSTEP_RETURN_IF_ERROR(ForOperands(step, note));
  // Few are of one rank where there are many targets.
  std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) {
    return a.owner != b.owner ? a.owner < b.owner : a.writes && !b.writes;
  });
  for (auto first = uses.begin(), last = first; first != uses.end(); first = last) {
    last = std::find_if(first, uses.end(), [&](const Use& use) { return use.owner != first->owner; });
    for (auto written = first; written != last && written->writes; ++written) {
      for (auto other = written + 1; other != last; ++other) {
        const int distance = other->begin - written->begin;
        if (distance >= blocks || -distance >= blocks || (distance == 0 && !other->writes)) continue;
        return Error(index, other->writes ? "has two targets that overlap" : "has a source and a target that overlap");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StepChecker::Check(size_t index) {
  const Step& step = schedule_.steps[index];
  LOCKSTEP_RETURN_IF_ERROR(CheckKind(index));
  if (step.kind == Step::Kind::kShare) return CheckShare(index);
  LOCKSTEP_RETURN_IF_ERROR(ForOperands(step, [&](const Operand& operand, bool writes) {
    LOCKSTEP_RETURN_IF_ERROR(CheckOperand(index, operand));
    const bool writes_input = writes && operand.window == Window::kInput && operand.blocks > 0;
    return writes_input ? Error(index, "writes the input") : absl::OkStatus();
  }));
  return WritesTarget(step.kind) ? CheckOverlap(index) : absl::OkStatus();
}

struct Access {
  int step;
  bool writes;
};

}  // namespace

std::string DescribeStep(const Schedule& schedule, size_t index) {
  return absl::StrCat("rank ", schedule.rank.value(), ", step #", index, " (", ToString(schedule.steps[index]), ")");
}

absl::Status StepError(const Schedule& schedule, size_t index, absl::string_view fault) {
  return absl::InternalError(absl::StrCat(DescribeStep(schedule, index), " ", fault));
}

absl::Status CheckSteps(const Schedule& schedule, bool in_place) {
  StepChecker checker(schedule, in_place);
  for (size_t index = 0; index < schedule.steps.size(); ++index) LOCKSTEP_RETURN_IF_ERROR(checker.Check(index));
  return absl::OkStatus();
}

absl::Status CheckRaces(const Schedule& schedule, bool in_place) {
  const ScheduleMemory memory(schedule, in_place);
  const int steps = static_cast<int>(schedule.steps.size());

  // ancestors[step]: the set of steps complete before it starts, as a row of bits.
  const size_t words = (steps + 63) / 64;
  std::vector<uint64_t> ancestors(words * steps);
  for (int step = 0; step < steps; ++step) {
    uint64_t* row = &ancestors[step * words];
    for (int32_t earlier : schedule.steps[step].after) {
      const uint64_t* earlier_row = &ancestors[earlier * words];
      for (int word = 0; word <= earlier / 64; ++word) row[word] |= earlier_row[word];
      row[earlier / 64] |= uint64_t{1} << (earlier % 64);
    }
  }

  std::vector<std::vector<Access>> accesses(memory.locations());
  for (int index = 0; index < steps; ++index) {
    if (memory.IsVoid(schedule.steps[index])) continue;
    LOCKSTEP_RETURN_IF_ERROR(ForOperands(schedule.steps[index], [&](const Operand& operand, bool writes) {
      for (int i = 0; i < operand.blocks; ++i) accesses[memory.Location(operand) + i].push_back({index, writes});
      return absl::OkStatus();
    }));
  }
  for (const std::vector<Access>& at_location : accesses) {
    for (size_t i = 0; i < at_location.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Access &earlier = at_location[j], &later = at_location[i];
        if (earlier.step == later.step || (!earlier.writes && !later.writes)) continue;
        if ((ancestors[later.step * words + earlier.step / 64] >> (earlier.step % 64) & 1) != 0) continue;
        return StepError(
            schedule, later.step,
            absl::StrCat("races with step #", earlier.step, " (", ToString(schedule.steps[earlier.step]), ")",
                         in_place ? " in place" : "", ": both touch the same block, and neither waits for the other"));
      }
    }
  }
  return absl::OkStatus();
}

// ---- Barriers.

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
  bool touches = false;
  ForOperands(step, [&](const Operand& operand, bool /*writes*/) {
    touches |= operand.rank != Operand::kOwn && operand.window != Window::kScratch;
    return absl::OkStatus();
  }).IgnoreError();
  return touches;
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
  return ForOperands(step,
                     [&](const Operand& operand, bool writes) { return Touch(rank, index, barrier, operand, writes); });
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

#include "comm/schedule/verify/verifier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/schedule_memory.h"
#include "comm/schedule/verify/schedule_checks.h"
#include "comm/schedule/verify/symbolic_run.h"

namespace lockstep {
namespace {

using Id = ExpressionTable::Id;
constexpr Id kUndefined = ExpressionTable::kUndefined;

absl::Status CheckWorld(absl::Span<const Schedule> all) {
  if (all.empty()) return absl::InternalError("there are no schedules");
  const Schedule& first = all[0];
  const int size = static_cast<int>(all.size());
  for (int rank = 0; rank < size; ++rank) {
    const Schedule& schedule = all[rank];
    const auto error = [&](absl::string_view fault) {
      return absl::InternalError(absl::StrCat("rank ", rank, ": the schedule ", fault));
    };
    if (schedule.rank.value() != rank) return error(absl::StrCat("is that of rank ", schedule.rank.value()));
    if (schedule.size != size) {
      return error(absl::StrCat("is for a world of ", schedule.size, ", and there are ", size));
    }
    if (schedule.collective != first.collective || schedule.algorithm != first.algorithm ||
        schedule.root != first.root || schedule.blocks != first.blocks) {
      return error("differs from rank 0's in collective, algorithm, root or number of blocks");
    }
    if (schedule.root.value() < 0 || schedule.root.value() >= size) return error("has a root outside the world");
    const bool is_barrier = first.collective == Collective::kBarrier;
    if (schedule.scratch_blocks < 0 || (IsByRank(first.collective) && schedule.blocks != size) ||
        (is_barrier && schedule.blocks + schedule.scratch_blocks != 0) || (!is_barrier && schedule.blocks < 1)) {
      return error(absl::StrCat("has ", schedule.blocks, " blocks and ", schedule.scratch_blocks, " of scratch"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBarrier(absl::Span<const Schedule> all, const SymbolicRun& run) {
  for (const Schedule& schedule : all) {
    const int unheard = run.FirstUnheard(schedule.rank.value());
    if (unheard < 0) continue;
    return absl::InternalError(absl::StrCat("rank ", schedule.rank.value(), " may leave the barrier before rank ",
                                            unheard, " has entered it"));
  }
  return absl::OkStatus();
}

// One block of one rank's output against what the collective makes of it.
absl::Status CheckOutput(const Schedule& schedule, int block, Id value, Id value_on_first,
                         ExpressionTable& expressions) {
  const Collective collective = schedule.collective;
  const int rank = schedule.rank.value();
  if (value == kUndefined) {
    return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "] is never written"));
  }
  const auto error = [&](const auto&... fault) {
    return absl::InternalError(absl::StrCat("rank ", rank, ": output[", block, "] ends as ",
                                            expressions.ToString(value), " of block ", expressions.block(value),
                                            fault...));
  };
  if (!HasReduction(collective)) {
    const bool is_roots = collective == Collective::kBroadcast || collective == Collective::kScatter;
    const Rank owner = is_roots ? schedule.root : Rank(block);
    const int owners_block = collective == Collective::kAllToAll ? rank : block;
    if (value == expressions.Leaf(owner, owners_block)) return absl::OkStatus();
    return error(", not as block ", owners_block, " of rank ", owner.value(), "'s input");
  }
  if (expressions.block(value) != block) return error("");
  const int missing = expressions.MissingLeaf(value);
  if (missing >= 0) return error(", without the contribution of rank ", missing);
  if (collective != Collective::kAllReduce) return absl::OkStatus();
  if (expressions.Canonical(value) == expressions.Canonical(value_on_first)) return absl::OkStatus();
  return error(", on rank 0 as ", expressions.ToString(value_on_first), ": the bits may differ");
}

absl::StatusOr<Proof> CheckOutputs(absl::Span<const Schedule> all, bool in_place, SymbolicRun* run) {
  ExpressionTable& expressions = run->expressions();
  const bool is_reduced = HasReduction(all[0].collective);
  bool reduces_in_rank_order = is_reduced, rounds_once = is_reduced;
  std::vector<std::vector<Id>> outputs;
  for (const Schedule& schedule : all) {
    const ScheduleMemory memory(schedule, in_place);
    outputs.emplace_back(schedule.blocks, kUndefined);
    for (int block = 0; block < schedule.blocks; ++block) {
      if (memory.WhyAbsent(Window::kOutput, block) != nullptr) continue;
      const Id value = run->Output(schedule.rank.value(), block);
      LOCKSTEP_RETURN_IF_ERROR(CheckOutput(schedule, block, value, run->Output(0, block), expressions));
      outputs.back()[block] = value;
      reduces_in_rank_order = reduces_in_rank_order && expressions.ReducesInRankOrder(value);
      rounds_once = rounds_once && expressions.IsRoundedOnce(value);
    }
  }
  return Proof(std::move(expressions), std::move(outputs), run->message_depth(), reduces_in_rank_order, rounds_once);
}

}  // namespace

Proof::Proof(ExpressionTable expressions, std::vector<std::vector<ExpressionTable::Id>> outputs, int message_depth,
             bool reduces_in_rank_order, bool rounds_once)
    : expressions_(std::move(expressions)),
      outputs_(std::move(outputs)),
      message_depth_(message_depth),
      folds_in_rank_order_(reduces_in_rank_order),
      rounds_once_(rounds_once) {}

std::string Proof::Expression(Rank rank, int block) const {
  return expressions_.ToString(outputs_[rank.value()][block]);
}

absl::StatusOr<Proof> Prove(absl::Span<const Schedule> all_ranks, bool in_place) {
  LOCKSTEP_RETURN_IF_ERROR(CheckWorld(all_ranks));
  const bool in_shared_memory = UsesSharedMemory(all_ranks[0].algorithm);
  for (const Schedule& schedule : all_ranks) {
    LOCKSTEP_RETURN_IF_ERROR(CheckSteps(schedule, in_place));
    if (!in_shared_memory) LOCKSTEP_RETURN_IF_ERROR(CheckRaces(schedule, in_place));
  }
  if (IsStaged(all_ranks[0].algorithm)) LOCKSTEP_RETURN_IF_ERROR(CheckRounds(all_ranks));
  if (in_shared_memory) LOCKSTEP_RETURN_IF_ERROR(CheckBarriers(all_ranks, in_place));
  SymbolicRun run(all_ranks, in_place);
  LOCKSTEP_RETURN_IF_ERROR(run.Run());
  if (all_ranks[0].collective == Collective::kBarrier) LOCKSTEP_RETURN_IF_ERROR(CheckBarrier(all_ranks, run));
  return CheckOutputs(all_ranks, in_place, &run);
}

absl::Status Verify(absl::Span<const Schedule> all_ranks, bool in_place) { return Prove(all_ranks, in_place).status(); }

}  // namespace lockstep

#include "comm/plan/call_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/block_layout.h"
#include "kernels/cpu/reduce.h"

namespace lockstep {
namespace {

// The wire carries sums; what makes them averages happens before and after.
ReduceOp WireOp(ReduceOp op) { return op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? ReduceOp::kSum : op; }

bool AllEqual(absl::Span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [&](int64_t count) { return count == counts[0]; });
}

absl::Status CheckLayout(const CollectiveRequest& request, Rank rank, int size) {
  const bool all_to_all = request.collective == Collective::kAllToAll;
  if (!request.output_counts.empty() && (!all_to_all || request.counts.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(request.collective), ": output_counts belong to an all_to_all, beside the counts of its input"));
  }
  if (!IsByRank(request.collective)) {
    if (request.counts.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Name(request.collective), " has no blocks to give counts of"));
  }
  if (request.counts.empty()) {
    if (request.count % size == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Name(request.collective), ": the count, ", request.count,
                                                   ", is no multiple of the ", size, " ranks"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t sum, SumOfCounts(request.counts, "counts", size));
  if (static_cast<uint64_t>(sum) != request.count) {
    return absl::InvalidArgumentError(absl::StrCat(Name(request.collective), ": the counts add up to ", sum,
                                                   ", and the vector has ", request.count, " elements"));
  }
  if (!all_to_all) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(SumOfCounts(request.output_counts, "output_counts", size));
  const int self = rank.value();
  if (request.counts[self] == request.output_counts[self]) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("all_to_all: rank ", self, " sends ", request.counts[self],
                                                 " elements to itself and expects ", request.output_counts[self]));
}

absl::StatusOr<BlockLayout> MakeLayout(const CollectiveRequest& request, absl::Span<const int64_t> counts, int size,
                                       int blocks) {
  const int64_t element_bytes = SizeOf(request.dtype);
  if (!IsByRank(request.collective)) {
    return blocks == 0 ? BlockLayout() : BlockLayout::Split(request.count, element_bytes, blocks);
  }
  if (!counts.empty()) return BlockLayout::Explicit(counts, element_bytes);
  return BlockLayout::Equal(request.count / size, element_bytes, size);
}

// Whether the folds apply the factor of an average, which is the same for all ranks' inputs, so that none is scaled
// before. A shared-memory schedule reduces only where it folds, every rank's input at once.
bool ScalesInFold(const CollectiveRequest& request, const Schedule& schedule) {
  return request.op == ReduceOp::kAvg && InputFactor(request, schedule.size) != 1.0 &&
         UsesSharedMemory(schedule.algorithm);
}

}  // namespace

Signature SignatureOf(const CollectiveRequest& request, Algorithm algorithm) {
  Signature signature;
  signature.collective = request.collective;
  signature.algorithm = algorithm;
  signature.dtype = request.dtype;
  if (HasReduction(request.collective)) signature.op = request.op;
  if (HasRoot(request.collective)) signature.root = request.root;
  if (request.collective == Collective::kAllToAll && !request.counts.empty()) {
    signature.pair_counts = true;
    return signature;
  }
  signature.count = request.count;
  if (!request.counts.empty() && !AllEqual(request.counts)) signature.counts_hash = HashOfCounts(request.counts);
  return signature;
}

absl::StatusOr<int64_t> SumOfCounts(absl::Span<const int64_t> counts, const char* name, int size) {
  if (static_cast<int>(counts.size()) != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", counts.size(), " entries for ", size, " ranks: one for each is needed"));
  }
  int64_t sum = 0;
  for (int r = 0; r < size; ++r) {
    if (counts[r] < 0) return absl::InvalidArgumentError(absl::StrCat(name, "[", r, "] is negative: ", counts[r]));
    if (__builtin_add_overflow(sum, counts[r], &sum)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " add up to more than can be addressed"));
    }
  }
  return sum;
}

double InputFactor(const CollectiveRequest& request, int size) {
  if (!HasReduction(request.collective)) return 1.0;
  if (request.op == ReduceOp::kPremulSum) return request.factor;
  if (request.op == ReduceOp::kAvg && !IsInteger(request.dtype)) return 1.0 / size;
  return 1.0;
}

bool HasUnequalBlocks(const CollectiveRequest& request) {
  return !request.counts.empty() && (request.collective == Collective::kAllToAll || !AllEqual(request.counts));
}

absl::Status CheckRequest(const CollectiveRequest& request, Rank rank, int size) {
  if (HasReduction(request.collective)) LOCKSTEP_RETURN_IF_ERROR(CheckDefined(request.dtype, request.op));
  return CheckLayout(request, rank, size);
}

absl::StatusOr<std::shared_ptr<const CallPlan>> MakeCallPlan(const CollectiveRequest& request,
                                                             std::shared_ptr<const PreparedSchedule> schedule,
                                                             size_t chunk_bytes) {
  const Collective collective = request.collective;
  const Rank rank = schedule->schedule().rank;
  const int size = schedule->schedule().size;
  auto plan = std::make_shared<CallPlan>();
  plan->signature = SignatureOf(request, schedule->schedule().algorithm);
  plan->vector_bytes = request.count * SizeOf(request.dtype);

  ExecutionPlan::Options execution;
  const int blocks = schedule->schedule().blocks;
  LOCKSTEP_ASSIGN_OR_RETURN(execution.input, MakeLayout(request, request.counts, size, blocks));
  execution.output = execution.input;
  if (!request.output_counts.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(execution.output, MakeLayout(request, request.output_counts, size, blocks));
  }
  int64_t scratch_bytes = 0;
  if (__builtin_mul_overflow(execution.output.largest() * static_cast<int64_t>(SizeOf(request.dtype)),
                             schedule->schedule().scratch_blocks, &scratch_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(collective), " of ", request.count, " ", Name(request.dtype),
                                                   " by ", Name(schedule->schedule().algorithm),
                                                   " needs more memory than can be addressed"));
  }
  const bool block_out = IsOwnBlock(collective, Window::kOutput);
  execution.schedule = std::move(schedule);
  execution.element_bytes = SizeOf(request.dtype);
  execution.chunk_bytes = chunk_bytes;
  execution.count_per_message = plan->signature.pair_counts;
  if (HasReduction(collective)) {
    const bool at_root = collective != Collective::kReduce || rank == request.root;
    const size_t output_count = block_out ? execution.output.Size(rank.value()) : request.count;
    execution.reduction.dtype = request.dtype;
    execution.reduction.op = WireOp(request.op);
    LOCKSTEP_ASSIGN_OR_RETURN(execution.reduction.combine, kernels::CombineFor(request.dtype, execution.reduction.op));
    LOCKSTEP_ASSIGN_OR_RETURN(execution.reduce_many, kernels::ReduceManyFor(request.dtype, execution.reduction.op));
    if (ScalesInFold(request, execution.schedule->schedule())) {
      LOCKSTEP_ASSIGN_OR_RETURN(execution.scaled_sum, kernels::ScaledSumFor(request.dtype));
      execution.factor = InputFactor(request, size);
    } else {
      plan->input_count = request.count;
    }
    // The input is not ours to change, and a block has no room for the vector.
    plan->prepare_in_output = !block_out && at_root;
    if (request.op == ReduceOp::kAvg && IsInteger(request.dtype) && at_root && size > 1) {
      plan->divide_count = output_count;
    }
  }
  if (collective == Collective::kAllToAll && size > 1) plan->input_count = request.count;
  plan->execution = std::make_shared<const ExecutionPlan>(std::move(execution));
  return plan;
}

}  // namespace lockstep

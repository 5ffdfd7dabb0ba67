#include "comm/plan_cache.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

// Whether the result's bits follow from the inputs alone. Floats that are narrower than what they accumulate in must be
// rounded at the same place as well: once.
bool KeepsRankOrder(const CollectiveRequest& request, Algorithm algorithm) {
  if (!HasReduction(request.collective)) return true;
  const bool narrow = IsFloat(request.dtype) && SizeOf(request.dtype) < SizeOf(DType::kF32);
  return FoldsInRankOrder(request.collective, algorithm) && (!narrow || RoundsOnce(request.collective, algorithm));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanCache::Find(const CollectiveRequest& request) {
  if (!request.counts.empty() || !request.output_counts.empty()) return Make(request);
  Key key;
  key.count = request.count;
  key.collective = request.collective;
  key.algorithm = request.algorithm;
  key.dtype = request.dtype;
  if (HasReduction(request.collective)) key.op = request.op;
  if (HasRoot(request.collective)) key.root = request.root;
  // Any mixing will do: the top bits of a product depend on all of the key.
  const uint64_t bits = static_cast<uint64_t>(key.collective) | static_cast<uint64_t>(key.algorithm) << 8 |
                        static_cast<uint64_t>(key.dtype) << 16 | static_cast<uint64_t>(key.op) << 24 |
                        static_cast<uint64_t>(key.root.value()) << 32;
  Entry& entry = entries_[(bits * 0x9e3779b97f4a7c15u ^ key.count * 0xc2b2ae3d27d4eb4fu) >> 58];
  static_assert(kEntries == 1 << (64 - 58), "the shift keeps as many bits as index the entries");
  if (entry.plan != nullptr && entry.key == key) return entry.plan;
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const CallPlan> plan, Make(request));
  entry = {key, plan};
  return plan;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanCache::Make(const CollectiveRequest& request) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRequest(request, options_.rank, options_.size));
  LOCKSTEP_ASSIGN_OR_RETURN(const Algorithm algorithm, Choose(request));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const PreparedSchedule> schedule, FindSchedule(request, algorithm));
  return MakeCallPlan(request, std::move(schedule), options_.chunk_bytes);
}

bool PlanCache::Allowed(const CollectiveRequest& request, Algorithm algorithm) const {
  if (HasUnequalBlocks(request) && NeedsEqualBlocks(request.collective, algorithm)) return false;
  return !options_.deterministic || KeepsRankOrder(request, algorithm);
}

absl::StatusOr<Algorithm> PlanCache::Choose(const CollectiveRequest& request) const {
  const Algorithm fixed = options_.algorithms.by_collective[static_cast<int>(request.collective)];
  const Algorithm asked_for = request.algorithm != Algorithm::kAuto ? request.algorithm : fixed;
  if (asked_for != Algorithm::kAuto && options_.deterministic && !KeepsRankOrder(request, asked_for)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(asked_for), ", which is asked for, does not fold ",
                                                   Name(request.collective), " of ", Name(request.dtype),
                                                   " in rank order, and the communicator is deterministic"));
  }
  if (request.algorithm != Algorithm::kAuto) return request.algorithm;
  if (fixed != Algorithm::kAuto && Allowed(request, fixed)) return fixed;
  Algorithms allowed;
  for (const Algorithm algorithm : AlgorithmsFor(request.collective)) {
    if (Allowed(request, algorithm)) allowed.push_back(algorithm);
  }
  LOCKSTEP_CHECK(!allowed.empty()) << "nothing carries out this " << Name(request.collective);
  // With counts of each pair no two ranks know the same bytes to choose by.
  const bool same_bytes = request.collective != Collective::kAllToAll || request.counts.empty();
  const size_t bytes = same_bytes ? request.count * SizeOf(request.dtype) : 0;
  return Cheapest(allowed, request.collective, options_.size, bytes, options_.shape.network);
}

absl::StatusOr<std::shared_ptr<const PreparedSchedule>> PlanCache::FindSchedule(const CollectiveRequest& request,
                                                                                Algorithm algorithm) {
  const Rank root = HasRoot(request.collective) ? request.root : Rank(0);
  const auto key = std::make_tuple(request.collective, algorithm, root);
  if (const auto it = schedules_.find(key); it != schedules_.end()) return it->second;
  LOCKSTEP_ASSIGN_OR_RETURN(Schedule schedule, BuildSchedule(request.collective, algorithm, options_.rank,
                                                             options_.size, root, options_.shape.topology));
  if (schedules_.size() >= kSchedulesMax) schedules_.clear();
  auto prepared = std::make_shared<const PreparedSchedule>(std::move(schedule));
  schedules_.emplace(key, prepared);
  return prepared;
}

}  // namespace lockstep

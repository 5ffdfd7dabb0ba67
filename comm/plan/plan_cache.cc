#include "comm/plan/plan_cache.h"

#include <cstdint>
#include <utility>

#include "absl/base/optimization.h"
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
  return ReducesInRankOrder(request.collective, algorithm) && (!narrow || RoundsOnce(request.collective, algorithm));
}

// Up to the next number of four binary digits and zeros: sizes that differ by less than an eighth get the same choice.
size_t RoundedUp(size_t bytes) {
  if (bytes < 16) return bytes;
  const int zeros = 60 - __builtin_clzll(bytes);
  return (((bytes - 1) >> zeros) + 1) << zeros;
}

}  // namespace

PlanCache::PlanCache(Options options) : options_(std::move(options)) {
  const Network& network = options_.shape.network;
  if (options_.costs != nullptr && options_.costs->IsOf(options_.size, network)) return;
  options_.costs = std::make_shared<CostModel>(options_.size, network);
  options_.costs->Prepare();
}

absl::StatusOr<const std::shared_ptr<const CallPlan>*> PlanCache::Find(const CollectiveRequest& request, bool shared) {
  if (ABSL_PREDICT_FALSE(request.device.kind != DeviceKind::kHost)) return CheckOnHost(request.device);
  if (!request.counts.empty() || !request.output_counts.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(uncached_, Make(request, shared));
    return &uncached_;
  }
  Key key;
  key.count = request.count;
  key.collective = request.collective;
  key.algorithm = request.algorithm;
  key.dtype = request.dtype;
  if (HasReduction(request.collective)) key.op = request.op;
  if (HasRoot(request.collective)) key.root = request.root;
  key.shared = shared;
  // Any mixing will do: the top bits of a product depend on all of the key.
  const uint64_t bits = static_cast<uint64_t>(key.collective) | static_cast<uint64_t>(key.algorithm) << 8 |
                        static_cast<uint64_t>(key.dtype) << 16 | static_cast<uint64_t>(key.op) << 24 |
                        static_cast<uint64_t>(key.root.value()) << 32 | static_cast<uint64_t>(key.shared) << 63;
  Entry& entry = entries_[(bits * 0x9e3779b97f4a7c15u ^ key.count * 0xc2b2ae3d27d4eb4fu) >> 58];
  static_assert(kEntries == 1 << (64 - 58), "the shift keeps as many bits as index the entries");
  if (entry.plan != nullptr && entry.key == key) return &entry.plan;
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const CallPlan> plan, Make(request, shared));
  entry = {key, std::move(plan)};
  return &entry.plan;
}

absl::StatusOr<std::shared_ptr<const CallPlan>> PlanCache::Make(const CollectiveRequest& request, bool shared) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRequest(request, options_.rank, options_.size));
  LOCKSTEP_ASSIGN_OR_RETURN(const Algorithm algorithm, Choose(request, shared));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const PreparedSchedule> schedule, FindSchedule(request, algorithm));
  return MakeCallPlan(request, std::move(schedule), options_.chunk_bytes);
}

absl::Status PlanCache::CheckAllowed(const CollectiveRequest& request, bool shared, Algorithm algorithm) const {
  if (options_.size == 1) return absl::OkStatus();  // by whatever algorithm, it is a copy
  const auto refused = [&](auto... why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(algorithm), " cannot carry out this ", Name(request.collective), ": ", why...));
  };
  if (HasUnequalBlocks(request) && NeedsEqualBlocks(request.collective, algorithm)) {
    return refused("it is for equal blocks only");
  }
  if (Has(algorithm, algorithms::kDirect) && !shared) {
    return refused("not all of its buffers lie in memory of the communicator's allocator that the ranks share");
  }
  if (Has(algorithm, algorithms::kInline | algorithms::kStage) && !shared_memory_) {
    return refused("the ranks do not share memory");
  }
  if (Has(algorithm, algorithms::kInline)) {
    const bool blocks = request.collective == Collective::kAllGather;
    const size_t bytes = (blocks ? request.count / options_.size : request.count) * SizeOf(request.dtype);
    if (!request.counts.empty() || bytes > kShareBytesMax) {
      return refused("it is for at most ", kShareBytesMax, " bytes", blocks ? " from each" : "");
    }
  }
  if (options_.deterministic && !KeepsRankOrder(request, algorithm)) {
    return refused("it does not fold ", Name(request.dtype), " in rank order, and the communicator is deterministic");
  }
  return absl::OkStatus();
}

absl::StatusOr<Algorithm> PlanCache::Choose(const CollectiveRequest& request, bool shared) {
  const Algorithm fixed = options_.algorithms.by_collective[static_cast<int>(request.collective)];
  if (request.algorithm != Algorithm::kAuto) {
    LOCKSTEP_RETURN_IF_ERROR(CheckAllowed(request, shared, request.algorithm));
    return request.algorithm;
  }
  if (fixed != Algorithm::kAuto) {
    // What the blocks or the buffers of a call do not allow is left out for that call; what all calls are promised is not.
    if (options_.deterministic && !KeepsRankOrder(request, fixed)) return CheckAllowed(request, shared, fixed);
    if (CheckAllowed(request, shared, fixed).ok()) return fixed;
  }
  Algorithms allowed;
  uint32_t allowed_bits = 0;
  static_assert(kAlgorithmCount <= 32, "each has a bit");
  for (const Algorithm algorithm : ChoicesFor(request.collective)) {
    if (!CheckAllowed(request, shared, algorithm).ok()) continue;
    allowed.push_back(algorithm);
    allowed_bits |= uint32_t{1} << static_cast<int>(algorithm);
  }
  LOCKSTEP_CHECK(!allowed.empty()) << "nothing carries out this " << Name(request.collective);
  // With counts of each pair no two ranks know the same bytes to choose by.
  const bool same_bytes = request.collective != Collective::kAllToAll || request.counts.empty();
  const size_t bytes = same_bytes ? RoundedUp(request.count * SizeOf(request.dtype)) : 0;
  const auto key = std::make_tuple(request.collective, allowed_bits, bytes);
  if (const auto it = choices_.find(key); it != choices_.end()) return it->second;
  const Algorithm choice = Cheapest(allowed, request.collective, bytes, options_.costs.get());
  if (choices_.size() >= kChoicesMax) choices_.clear();
  choices_.emplace(key, choice);
  return choice;
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

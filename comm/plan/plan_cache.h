// PlanCache: the schedules and plans of one communicator. A call like an earlier one is looked up instead of computed. Bounded: what
// was evicted is computed again.
//
// Externally synchronised. Finding a plan allocates nothing.

#ifndef COMM_PLAN_PLAN_CACHE_H_
#define COMM_PLAN_PLAN_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/plan/call_plan.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/select/cost_model.h"
#include "comm/select/selector.h"
#include "comm/topology/world_shape.h"

namespace lockstep {

class PlanCache {
 public:
  struct Options {
    Rank rank;
    int size = 1;
    size_t chunk_bytes = 1;
    AlgorithmOverrides algorithms;
    bool deterministic = false;
    WorldShape shape;
    // Of the communicator that this one was split from, if any. Used if it is for a world like this one.
    std::shared_ptr<CostModel> costs;
  };

  // Prepares the cost model, so that no call needs to.
  explicit PlanCache(Options options);

  // To be used under the lock of this cache.
  const std::shared_ptr<CostModel>& costs() const { return options_.costs; }

  // The ranks share memory: ordinary buffers may also use the inline and staged algorithms. Before the first Find.
  void AllowSharedMemory() { shared_memory_ = true; }

  // The plan of the request. `shared`: all ranks' buffers lie in memory that all of them map. The pointer is good until the next
  // call. Plans with counts are not cached: whoever repeats such a call prepares it.
  // ERRORS  INVALID_ARGUMENT says why the request cannot be executed
  absl::StatusOr<const std::shared_ptr<const CallPlan>*> Find(const CollectiveRequest& request, bool shared);

 private:
  // What a plan without counts depends on.
  struct Key {
    size_t count = 0;
    Collective collective = Collective::kBarrier;
    Algorithm algorithm = Algorithm::kAuto;
    DType dtype = DType::kU8;
    ReduceOp op = ReduceOp::kSum;
    Rank root;
    bool shared = false;

    friend bool operator==(const Key& a, const Key& b) {
      return a.count == b.count && a.collective == b.collective && a.algorithm == b.algorithm && a.dtype == b.dtype &&
             a.op == b.op && a.root == b.root && a.shared == b.shared;
    }
  };
  struct Entry {
    Key key;
    std::shared_ptr<const CallPlan> plan;
  };
  // A power of two. A training step has some ten kinds of calls.
  static constexpr size_t kEntries = 64;
  static constexpr size_t kSchedulesMax = 1024;
  static constexpr size_t kChoicesMax = 1024;

  absl::StatusOr<std::shared_ptr<const CallPlan>> Make(const CollectiveRequest& request, bool shared);
  absl::StatusOr<Algorithm> Choose(const CollectiveRequest& request, bool shared);
  // INVALID_ARGUMENT saying why the algorithm cannot execute what the options and the request ask for.
  absl::Status CheckAllowed(const CollectiveRequest& request, bool shared, Algorithm algorithm) const;
  absl::StatusOr<std::shared_ptr<const PreparedSchedule>> FindSchedule(const CollectiveRequest& request,
                                                                       Algorithm algorithm);

  Options options_;  // constant after construction
  bool shared_memory_ = false;
  std::array<Entry, kEntries> entries_;       // by the key's hash; a newer entry replaces an older one
  std::shared_ptr<const CallPlan> uncached_;  // the last one with counts
  std::map<std::tuple<Collective, Algorithm, Rank>, std::shared_ptr<const PreparedSchedule>> schedules_;
  // By the allowed algorithms, as bits, and the size. With many ranks a choice takes up to half a millisecond.
  std::map<std::tuple<Collective, uint32_t, size_t>, Algorithm> choices_;
};

}  // namespace lockstep

#endif  // COMM_PLAN_PLAN_CACHE_H_

// PlanCache: the schedules and plans of one communicator, so that a call like an earlier one is looked up rather than worked
// out. Bounded; what has no room is worked out again.
//
// Externally synchronised. Finding a plan allocates nothing.

#ifndef COMM_PLAN_CACHE_H_
#define COMM_PLAN_CACHE_H_

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/call_plan.h"
#include "comm/communicator.h"
#include "comm/prepared_schedule.h"
#include "comm/selector.h"
#include "comm/world_shape.h"

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
  };

  explicit PlanCache(Options options) : options_(std::move(options)) {}

  // INVALID_ARGUMENT for a request that cannot be carried out, saying why. Plans with counts of their own are made anew each
  // time: whoever repeats such a call prepares it.
  absl::StatusOr<std::shared_ptr<const CallPlan>> Find(const CollectiveRequest& request);

 private:
  // What a plan without counts depends on.
  struct Key {
    size_t count = 0;
    Collective collective = Collective::kBarrier;
    Algorithm algorithm = Algorithm::kAuto;
    DType dtype = DType::kU8;
    ReduceOp op = ReduceOp::kSum;
    Rank root;

    friend bool operator==(const Key& a, const Key& b) {
      return a.count == b.count && a.collective == b.collective && a.algorithm == b.algorithm && a.dtype == b.dtype &&
             a.op == b.op && a.root == b.root;
    }
  };
  struct Entry {
    Key key;
    std::shared_ptr<const CallPlan> plan;
  };
  // A power of two. A training step has some ten kinds of calls.
  static constexpr size_t kEntries = 64;
  static constexpr size_t kSchedulesMax = 1024;

  absl::StatusOr<std::shared_ptr<const CallPlan>> Make(const CollectiveRequest& request);
  absl::StatusOr<Algorithm> Choose(const CollectiveRequest& request) const;
  // Whether the algorithm can carry out what the options and the request ask for.
  bool Allowed(const CollectiveRequest& request, Algorithm algorithm) const;
  absl::StatusOr<std::shared_ptr<const PreparedSchedule>> FindSchedule(const CollectiveRequest& request,
                                                                       Algorithm algorithm);

  const Options options_;
  std::array<Entry, kEntries> entries_;  // by the key's hash; a newer one takes the place of an older
  std::map<std::tuple<Collective, Algorithm, Rank>, std::shared_ptr<const PreparedSchedule>> schedules_;
};

}  // namespace lockstep

#endif  // COMM_PLAN_CACHE_H_

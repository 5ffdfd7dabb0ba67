#include "reducer/pipeline/opening.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/schedule/schedule.h"
#include "xxhash.h"

namespace lockstep {

absl::StatusOr<bool> SamePlan(Communicator& communicator, const std::string& plan, Opening opening) {
  struct Offer {
    uint64_t plan = 0;
    Opening opening = Opening::kCreated;
  };
  const Offer mine = {XXH3_64bits(plan.data(), plan.size()), opening};
  std::vector<Offer> offers(communicator.size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = offers.size() * sizeof(Offer);
  request.input = &mine;
  request.output = offers.data();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  const auto differing =
      std::find_if(offers.begin(), offers.end(), [&](const Offer& offer) { return offer.plan != offers[0].plan; });
  if (differing == offers.end()) return true;
  const bool all_changed =
      std::all_of(offers.begin(), offers.end(), [](const Offer& offer) { return offer.opening == Opening::kChanged; });
  if (all_changed) return false;
  return absl::FailedPreconditionError(
      absl::StrCat("the bucket plan differs on rank 0 and rank ", differing - offers.begin()));
}

absl::StatusOr<uint64_t> AgreeOnFirstTopic(Communicator& communicator) {
  static std::atomic<uint64_t> reducers{0};
  uint64_t topic = reducers.fetch_add(1, std::memory_order_relaxed) << 40;
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.dtype = DType::kU64;
  request.count = 1;
  request.input = &topic;
  request.output = &topic;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return topic;
}

}  // namespace lockstep

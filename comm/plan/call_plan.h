// CallPlan: what one call of a collective becomes on one rank: checked, laid out, and with what goes before and after it.
//
// Pure. Everything in it follows from the request but for the buffers, the factor and the deadline, so calls that differ in
// those alone share one plan (comm/plan/plan_cache.h).

#ifndef COMM_PLAN_CALL_PLAN_H_
#define COMM_PLAN_CALL_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "comm/plan/execution_plan.h"
#include "comm/plan/prepared_schedule.h"
#include "comm/record/signature.h"

namespace lockstep {

struct CallPlan {
  std::shared_ptr<const ExecutionPlan> execution;
  Signature signature;      // but for the sequence
  size_t vector_bytes = 0;  // of the whole vector, for the flight record
  // Elements of the input where it may have to be read before the collective begins, because it is multiplied by a factor
  // and not as it is reduced, or because an all-to-all is in place; and whether what is made of it may lie in the output.
  size_t input_count = 0;
  bool prepare_in_output = false;
  // Of an integer average: elements of this rank's output, to be divided by the size once they are summed.
  size_t divide_count = 0;
};

// The sum of one count for each rank. INVALID_ARGUMENT, calling them `name`, when there are more or fewer, or one is negative.
absl::StatusOr<int64_t> SumOfCounts(absl::Span<const int64_t> counts, const char* name, int size);

// What can be said of a request before an algorithm is chosen: counts that fit the world and each other, an op with a meaning.
// INVALID_ARGUMENT says what does not.
absl::Status CheckRequest(const CollectiveRequest& request, Rank rank, int size);

// What has to be equal on all ranks that make the call, but for the sequence. What the collective has no use for makes no
// difference.
Signature SignatureOf(const CollectiveRequest& request, Algorithm algorithm);

// Whether the blocks differ in size, or may on other ranks: not every algorithm can do that.
bool HasUnequalBlocks(const CollectiveRequest& request);

// The plan by this schedule, which is one of the request's collective. The request has been checked.
absl::StatusOr<std::shared_ptr<const CallPlan>> MakeCallPlan(const CollectiveRequest& request,
                                                             std::shared_ptr<const PreparedSchedule> schedule,
                                                             size_t chunk_bytes);

// What each element of the input is multiplied by before it is summed: an average's 1/size, a premultiplied sum's factor;
// 1 otherwise.
double InputFactor(const CollectiveRequest& request, int size);

}  // namespace lockstep

#endif  // COMM_PLAN_CALL_PLAN_H_

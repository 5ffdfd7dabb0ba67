// CallPlan: one call of a collective on one rank, checked and laid over memory, with the work before and after it.
//
// Pure. It follows from the request without its buffers, factor and deadline, so calls that differ only in those share one
// plan (comm/plan/plan_cache.h).

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
  Signature signature;      // without the sequence
  size_t vector_bytes = 0;  // of the whole vector, for the flight record
  // Elements of an input that may have to be read before the collective begins: it is multiplied by a factor beforehand, or the
  // call is an all-to-all in place. The copy is made in the output if prepare_in_output, else in memory of the call's.
  size_t input_count = 0;
  bool prepare_in_output = false;
  // Of an integer average: elements of this rank's output, to be divided by the size once they are summed.
  size_t divide_count = 0;
};

// The sum of the counts. INVALID_ARGUMENT, calling them `name`, unless there is one for each rank and none is negative.
absl::StatusOr<int64_t> SumOfCounts(absl::Span<const int64_t> counts, const char* name, int size);

// The checks that need no algorithm: the counts fit the world and each other, the op has a meaning for the dtype. INVALID_ARGUMENT
// names what is wrong.
absl::Status CheckRequest(const CollectiveRequest& request, Rank rank, int size);

// What must be equal on all ranks that make the call, without the sequence. Fields that the collective does not use are ignored.
Signature SignatureOf(const CollectiveRequest& request, Algorithm algorithm);

// Whether the blocks differ in size, or may differ on other ranks. Not every algorithm supports that (NeedsEqualBlocks).
bool HasUnequalBlocks(const CollectiveRequest& request);

// Lays the schedule over the request's memory.
// REQUIRES  the request has been checked; the schedule is of its collective
absl::StatusOr<std::shared_ptr<const CallPlan>> MakeCallPlan(const CollectiveRequest& request,
                                                             std::shared_ptr<const PreparedSchedule> schedule,
                                                             size_t chunk_bytes);

// By what each element of the input is multiplied before it is summed: an average's 1/size, a premultiplied sum's factor,
// otherwise 1.
double InputFactor(const CollectiveRequest& request, int size);

}  // namespace lockstep

#endif  // COMM_PLAN_CALL_PLAN_H_

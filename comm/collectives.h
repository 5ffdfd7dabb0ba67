// Checked requests from tensors: what the C ABI and other callers with arguments from outside go through.
//
// Each returns a request for Communicator::Run or Start, or INVALID_ARGUMENT saying which argument is wrong and why: a tensor
// that is not contiguous or not on the host, dtypes or element counts that do not fit together, an op without meaning for the
// dtype, a root outside the world, input and output that overlap in another way than in place.

#ifndef COMM_COLLECTIVES_H_
#define COMM_COLLECTIVES_H_

#include "absl/status/statusor.h"
#include "base/tensor_view.h"
#include "comm/communicator.h"

namespace lockstep {

absl::StatusOr<CollectiveRequest> AllReduceRequest(const TensorView& input, const TensorView& output, ReduceOp op);

absl::StatusOr<CollectiveRequest> BroadcastRequest(const Communicator& communicator, const TensorView& tensor,
                                                   Rank root);

// `output` is looked at on the root alone and may be a default-constructed view elsewhere.
absl::StatusOr<CollectiveRequest> ReduceRequest(const Communicator& communicator, const TensorView& input,
                                                const TensorView& output, ReduceOp op, Rank root);

// output: size x input's elements. In place: input is block `rank` of output.
absl::StatusOr<CollectiveRequest> AllGatherRequest(const Communicator& communicator, const TensorView& input,
                                                   const TensorView& output);

// input: size x output's elements. In place: output is block `rank` of input.
absl::StatusOr<CollectiveRequest> ReduceScatterRequest(const Communicator& communicator, const TensorView& input,
                                                       const TensorView& output, ReduceOp op);

CollectiveRequest BarrierRequest();

}  // namespace lockstep

#endif  // COMM_COLLECTIVES_H_

// Checked requests from tensors, for the C ABI and other callers whose arguments come from outside.
//
// RETURNS  a request for Communicator::Run or Start
// ERRORS   INVALID_ARGUMENT says which argument is wrong and why: a tensor that is not contiguous; dtypes, devices or element counts
//          that do not fit together; an op without meaning for the dtype; a root outside the world; input and output that overlap
//          but are not in place

#ifndef COMM_PLAN_COLLECTIVES_H_
#define COMM_PLAN_COLLECTIVES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "comm/communicator.h"

namespace lockstep {

absl::StatusOr<CollectiveRequest> AllReduceRequest(const TensorView& input, const TensorView& output, ReduceOp op);

absl::StatusOr<CollectiveRequest> BroadcastRequest(const Communicator& communicator, const TensorView& tensor,
                                                   Rank root);

// `output` is used on the root alone and may be a default-constructed view elsewhere.
absl::StatusOr<CollectiveRequest> ReduceRequest(const Communicator& communicator, const TensorView& input,
                                                const TensorView& output, ReduceOp op, Rank root);

// The following have a block for each rank, one behind the other in rank order. Without counts all are of one size. With counts
// block r has counts[r] elements; all ranks give the same counts, and the request borrows them.

// output: all blocks; input: this rank's. In place: input is block `rank` of output.
absl::StatusOr<CollectiveRequest> AllGatherRequest(const Communicator& communicator, const TensorView& input,
                                                   const TensorView& output, absl::Span<const int64_t> counts = {});

// input: all blocks; output: this rank's. In place: output is block `rank` of input.
absl::StatusOr<CollectiveRequest> ReduceScatterRequest(const Communicator& communicator, const TensorView& input,
                                                       const TensorView& output, ReduceOp op,
                                                       absl::Span<const int64_t> counts = {});

// As all-gather, but `output` is used on the root alone and may be a default-constructed view elsewhere.
absl::StatusOr<CollectiveRequest> GatherRequest(const Communicator& communicator, const TensorView& input,
                                                const TensorView& output, Rank root,
                                                absl::Span<const int64_t> counts = {});

// output: this rank's block of the root's input, which is used there alone. In place: output is the root's block.
absl::StatusOr<CollectiveRequest> ScatterRequest(const Communicator& communicator, const TensorView& input,
                                                 const TensorView& output, Rank root,
                                                 absl::Span<const int64_t> counts = {});

// Block r of input goes to rank r, block r of output comes from rank r. In place: the same tensor. With counts each rank has
// two lists of its own: input_counts[r] elements go to rank r and output_counts[r] come from it. If two ranks disagree about
// what goes between them, the receiver's call fails.
absl::StatusOr<CollectiveRequest> AllToAllRequest(const Communicator& communicator, const TensorView& input,
                                                  const TensorView& output, absl::Span<const int64_t> input_counts = {},
                                                  absl::Span<const int64_t> output_counts = {});

CollectiveRequest BarrierRequest();

// Several calls as one, with the same results.
// REQUIRES at least one, all of one collective that has neither counts nor a root's own buffers, with one op and root
// RETURNS  on the host one request. Its vector is the calls' vectors, one behind the other; where there are blocks, block r is block r of
//          each call. Where that is one range of memory, it is a request like any other, else it has pieces. On a device, which has no
//          pieces, the calls as they are, to be made together.
// ERRORS   INVALID_ARGUMENT  dtypes or devices differ, or memory of two calls overlaps; the message names both tensors
absl::StatusOr<std::vector<CollectiveRequest>> CoalescedRequests(const Communicator& communicator,
                                                                 std::vector<CollectiveRequest> calls);

}  // namespace lockstep

#endif  // COMM_PLAN_COLLECTIVES_H_

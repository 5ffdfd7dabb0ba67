// What a call of Communicator's becomes in NCCL's terms. Pure.
//
//   all-reduce, reduce, broadcast     the same of NCCL's
//   all-gather, reduce-scatter        the same; with counts a broadcast, or a reduce, for each block that is not empty
//   gather, scatter, all-to-all       a send and a receive for each block that is not empty, from and to itself too
//   barrier                           an all-reduce of one byte, for which the request brings memory
//   send, receive                     the same
//
// Calls that go together are issued as one group. What is only moved goes as bytes. A bool is a byte 0 or 1, whose
// sum, or and max are the byte's maximum, and whose product, and and min are its minimum. Sums of complex numbers,
// with one real factor or another, are sums of their parts. What NCCL rounds where: docs/numerics.md.

#ifndef COMM_DEVICE_NCCL_NCCL_PLAN_H_
#define COMM_DEVICE_NCCL_NCCL_PLAN_H_

#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "transport/nccl/nccl_abi.h"

namespace lockstep {

// INVALID_ARGUMENT for a pair without a meaning; UNIMPLEMENTED for what NCCL has no equivalent of: bitwise
// operations, xor of bool, products of complex numbers, reductions of 8-bit floats before NCCL 2.24 (`has_float8`).
absl::Status NcclSupports(Collective collective, DType dtype, ReduceOp op, bool has_float8);

// Appends the calls of this rank. The request has been checked (comm/plan/call_plan.h) and is supported; an all-to-all is
// not in place, and a barrier brings one byte as its input and output.
void AppendNcclCalls(const CollectiveRequest& request, Rank rank, int size, std::vector<NcclCall>* calls);
void AppendNcclCalls(const SendRequest& request, std::vector<NcclCall>* calls);
// From a rank that is named.
void AppendNcclCalls(const ReceiveRequest& request, std::vector<NcclCall>* calls);

}  // namespace lockstep

#endif  // COMM_DEVICE_NCCL_NCCL_PLAN_H_

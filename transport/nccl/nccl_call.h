// One call of NCCL's as data, so that what a collective becomes (comm/device/nccl/nccl_plan.h) is a pure function.

#ifndef TRANSPORT_NCCL_NCCL_CALL_H_
#define TRANSPORT_NCCL_NCCL_CALL_H_

#include <array>
#include <cstddef>

#include "transport/nccl/nccl_abi.h"

namespace lockstep {

struct NcclCall {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kReceive };

  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;  // of all but kReceive
  void* output = nullptr;       // of all but kSend; kReduce: of the root
  size_t count = 0;             // as NCCL counts: kAllGather and kReduceScatter of one block, in elements of `type`
  nccl::DataType type = nccl::kUint8;
  nccl::RedOp op = nccl::kSum;
  int peer = 0;  // kReduce, kBroadcast: the root
  // The input is multiplied by this, encoded as `type`, before it is summed; `op` counts for nothing then.
  bool scaled = false;
  std::array<unsigned char, 8> factor = {};
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_CALL_H_

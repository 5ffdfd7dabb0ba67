#include "bench/team.h"

#include "base/status.h"
#include "comm/collectives.h"

namespace lockstep {
namespace bench {
namespace {

template <typename T>
absl::StatusOr<T> AllReduced(Communicator* communicator, DType dtype, ReduceOp op, T value) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = dtype;
  request.op = op;
  request.count = 1;
  request.input = &value;
  request.output = &value;
  LOCKSTEP_RETURN_IF_ERROR(communicator->Run(request));
  return value;
}

}  // namespace

absl::Status Team::Barrier() const { return communicator_->Run(BarrierRequest()); }

absl::StatusOr<double> Team::Largest(double value) const {
  return AllReduced(communicator_, DType::kF64, ReduceOp::kMax, value);
}

absl::StatusOr<uint64_t> Team::Sum(uint64_t value) const {
  return AllReduced(communicator_, DType::kU64, ReduceOp::kSum, value);
}

absl::StatusOr<int64_t> Team::FromLeader(int64_t value) const {
  return AllReduced(communicator_, DType::kI64, ReduceOp::kSum, leads() ? value : 0);
}

}  // namespace bench
}  // namespace lockstep

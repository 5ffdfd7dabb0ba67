#include "comm/collectives.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace {

absl::Status CheckTensor(const TensorView& tensor, const char* name) {
  if (tensor.device().kind != DeviceKind::kHost) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " ", tensor.ToString(), " is not on the host, where this communicator works"));
  }
  if (!tensor.contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", tensor.ToString(), " is not contiguous"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameDType(const TensorView& input, const TensorView& output) {
  if (input.dtype() == output.dtype()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input is ", Name(input.dtype()), " and output is ", Name(output.dtype())));
}

absl::Status CheckRoot(const Communicator& communicator, Rank root) {
  if (root.value() >= 0 && root.value() < communicator.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root ", root.value(), " is not a rank of a world of ", communicator.size()));
}

// `whole` is `part` times the world's size, and they share memory exactly as block `rank` or not at all.
absl::Status CheckBlocks(const Communicator& communicator, const TensorView& part, const char* part_name,
                         const TensorView& whole, const char* whole_name) {
  const size_t size = communicator.size();
  if (whole.elements() / size != part.elements() || whole.elements() % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(whole_name, " has ", whole.elements(), " elements, which is not ",
                                                   size, " (world size) x ", part.elements(), " (elements of ",
                                                   part_name, ")"));
  }
  const char* const block = static_cast<const char*>(whole.data()) + part.bytes() * communicator.rank().value();
  if (Overlap(part, whole) && part.data() != block) {
    return absl::InvalidArgumentError(absl::StrCat(part_name, " overlaps ", whole_name, " elsewhere than at block ",
                                                   communicator.rank().value(),
                                                   " (this rank's), which would be in place"));
  }
  return absl::OkStatus();
}

CollectiveRequest Request(Collective collective, const TensorView& whole) {
  CollectiveRequest request;
  request.collective = collective;
  request.dtype = whole.dtype();
  request.count = whole.elements();
  return request;
}

absl::Status CheckElementwise(const TensorView& input, const TensorView& output) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(output, "output"));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameDType(input, output));
  if (input.elements() != output.elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input has ", input.elements(), " elements and output has ", output.elements()));
  }
  if (Overlap(input, output) && input.data() != output.data()) {
    return absl::InvalidArgumentError("input and output overlap without being the same memory");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CollectiveRequest> AllReduceRequest(const TensorView& input, const TensorView& output, ReduceOp op) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(input, "input"));
  LOCKSTEP_RETURN_IF_ERROR(CheckElementwise(input, output));
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(input.dtype(), op));
  CollectiveRequest request = Request(Collective::kAllReduce, input);
  request.op = op;
  request.input = input.data();
  request.output = output.data();
  return request;
}

absl::StatusOr<CollectiveRequest> BroadcastRequest(const Communicator& communicator, const TensorView& tensor,
                                                   Rank root) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(tensor, "tensor"));
  LOCKSTEP_RETURN_IF_ERROR(CheckRoot(communicator, root));
  CollectiveRequest request = Request(Collective::kBroadcast, tensor);
  request.root = root;
  request.input = tensor.data();
  request.output = tensor.data();
  return request;
}

absl::StatusOr<CollectiveRequest> ReduceRequest(const Communicator& communicator, const TensorView& input,
                                                const TensorView& output, ReduceOp op, Rank root) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(input, "input"));
  LOCKSTEP_RETURN_IF_ERROR(CheckRoot(communicator, root));
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(input.dtype(), op));
  CollectiveRequest request = Request(Collective::kReduce, input);
  request.op = op;
  request.root = root;
  request.input = input.data();
  if (communicator.rank() == root) {
    LOCKSTEP_RETURN_IF_ERROR(CheckElementwise(input, output));
    request.output = output.data();
  }
  return request;
}

absl::StatusOr<CollectiveRequest> AllGatherRequest(const Communicator& communicator, const TensorView& input,
                                                   const TensorView& output) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(input, "input"));
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(output, "output"));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameDType(input, output));
  LOCKSTEP_RETURN_IF_ERROR(CheckBlocks(communicator, input, "input", output, "output"));
  CollectiveRequest request = Request(Collective::kAllGather, output);
  request.input = input.data();
  request.output = output.data();
  return request;
}

absl::StatusOr<CollectiveRequest> ReduceScatterRequest(const Communicator& communicator, const TensorView& input,
                                                       const TensorView& output, ReduceOp op) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(input, "input"));
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(output, "output"));
  LOCKSTEP_RETURN_IF_ERROR(CheckSameDType(input, output));
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(input.dtype(), op));
  LOCKSTEP_RETURN_IF_ERROR(CheckBlocks(communicator, output, "output", input, "input"));
  CollectiveRequest request = Request(Collective::kReduceScatter, input);
  request.op = op;
  request.input = input.data();
  request.output = output.data();
  return request;
}

CollectiveRequest BarrierRequest() { return CollectiveRequest(); }

}  // namespace lockstep

// The profiler's events of a collective: their name, and the metadata that PyTorch's tools read (record_param_comms).

#ifndef PYTHON_LOCKSTEP_TORCH_CSRC_EVENTS_H_
#define PYTHON_LOCKSTEP_TORCH_CSRC_EVENTS_H_

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "work.h"

#ifndef RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP  // a release of PyTorch that does not record whether a call is asynchronous
#define RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(seq, name, inputs, outputs, rank, collective, in, out, dtype, in_splits, \
                                              out_splits, start, stride, size, asynchronous)                           \
  RECORD_PARAM_COMMS_DATA(seq, name, inputs, outputs, rank, collective, in, out, dtype, in_splits, out_splits, start,  \
                          stride, size)
#endif

namespace lockstep_torch {

using c10d::OpType;

// The name of the profiler's event, in Gloo's words. The name of the collective comes after the colon.
inline const char* Title(OpType type) {
  switch (type) {
    case OpType::BROADCAST:
      return "lockstep:broadcast";
    case OpType::ALLREDUCE:
    case OpType::ALLREDUCE_COALESCED:
      return "lockstep:all_reduce";
    case OpType::_ALLREDUCE_SPARSE:
      return "lockstep:sparse_all_reduce";
    case OpType::REDUCE:
      return "lockstep:reduce";
    case OpType::ALLGATHER:
    case OpType::_ALLGATHER_BASE:
    case OpType::ALLGATHER_COALESCED:
      return "lockstep:all_gather";
    case OpType::GATHER:
      return "lockstep:gather";
    case OpType::SCATTER:
      return "lockstep:scatter";
    case OpType::REDUCE_SCATTER:
    case OpType::_REDUCE_SCATTER_BASE:
      return "lockstep:reduce_scatter";
    case OpType::ALLTOALL:
    case OpType::ALLTOALL_BASE:
      return "lockstep:all_to_all";
    case OpType::SEND:
      return "lockstep:send";
    case OpType::RECV:
      return "lockstep:recv";
    case OpType::RECVANYSOURCE:
      return "lockstep:recvAnySource";
    case OpType::BARRIER:
      return "lockstep:barrier";
    default:
      return "lockstep:coalesced";
  }
}

inline int64_t Elements(const Tensors& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  return total;
}

// call(), in the profiler's event with the metadata of a collective. group_ranks: empty for the world.
template <typename Call>
void InParamComms(const Operation& operation, const c10d::Backend& backend, uint64_t sequence, const std::string& uid,
                  const std::string& description, const std::vector<uint64_t>& group_ranks, const Call& call) {
  if (!at::hasCallbacks()) return call();
  const int first = group_ranks.empty() ? 0 : static_cast<int>(group_ranks[0]);
  const int stride = group_ranks.size() < 2 ? 1 : static_cast<int>(group_ranks[1] - group_ranks[0]);
  // As with NCCL: the rank of a message is its peer's, and an all_to_all with splits has its own name.
  const bool message = operation.IsMessage();
  const bool splits = !operation.input_splits.empty() || !operation.output_splits.empty();
  const char* const name = splits ? "all_to_allv" : strchr(Title(operation.type), ':') + 1;
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      std::make_tuple(static_cast<int64_t>(sequence), message), std::make_tuple(uid, description), operation.inputs,
      operation.results, message ? operation.peer : backend.getRank(), name, Elements(operation.inputs),
      Elements(operation.results), operation.inputs.empty() ? at::kByte : operation.inputs[0].scalar_type(),
      operation.input_splits, operation.output_splits, first, stride, backend.getSize(), operation.asynchronous);
  call();
}

}  // namespace lockstep_torch

#endif  // PYTHON_LOCKSTEP_TORCH_CSRC_EVENTS_H_

#include "tests/fake_nccl_calls.h"

#include <utility>

#include "base/types/reduce_op.h"
#include "kernels/reference_testing.h"

namespace lockstep {
namespace nccl {
namespace {

// The sum, or the like, of `count` elements from `offset` on of all ranks' inputs.
std::vector<char> Reduced(const Meeting& meeting, size_t offset, size_t count) {
  const Call& first = meeting.calls.begin()->second;
  const DType dtype = DTypeOf(first.type);
  const size_t bytes = SizeOf(dtype);
  const int size = static_cast<int>(meeting.calls.size());
  static constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin};
  const bool average = first.op == kAvg;
  std::vector<char> result;
  for (const auto& [rank, call] : meeting.calls) {
    std::vector<char> term(call.input + offset * bytes, call.input + (offset + count) * bytes);
    const double factor = average && !IsInteger(dtype) ? 1.0 / size : call.factor;
    if (factor != 1) kernels::ReferenceScale(dtype, term.data(), term.data(), count, factor);
    if (result.empty() && rank == meeting.calls.begin()->first) {
      result = std::move(term);
    } else {
      const ReduceOp op = first.op < kAvg ? kOps[first.op] : ReduceOp::kSum;
      kernels::ReferenceCombine(dtype, op, result.data(), result.data(), term.data(), count);
    }
  }
  if (average && IsInteger(dtype)) kernels::ReferenceDivideTowardZero(dtype, result.data(), count, size);
  return result;
}

}  // namespace

DType DTypeOf(DataType type) {
  static constexpr DType kTypes[] = {DType::kI8,  DType::kU8,   DType::kI32,    DType::kU32,
                                     DType::kI64, DType::kU64,  DType::kF16,    DType::kF32,
                                     DType::kF64, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};
  return kTypes[type];
}

bool SameCall(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && (a.op == b.op || a.op >= kFirstOperator) &&
         a.peer == b.peer;
}

std::vector<char> OutputOf(const Meeting& meeting, int rank) {
  const Call& call = meeting.calls.at(rank);
  const size_t bytes = call.count * SizeOf(DTypeOf(call.type));
  switch (call.kind) {
    case Kind::kAllReduce:
      return Reduced(meeting, 0, call.count);
    case Kind::kReduce:
      return rank == call.peer ? Reduced(meeting, 0, call.count) : std::vector<char>();
    case Kind::kReduceScatter:
      return Reduced(meeting, rank * call.count, call.count);
    case Kind::kBroadcast: {
      const char* const input = meeting.calls.at(call.peer).input;
      return std::vector<char>(input, input + bytes);
    }
    case Kind::kAllGather: {
      std::vector<char> all;
      for (const auto& [r, other] : meeting.calls) all.insert(all.end(), other.input, other.input + bytes);
      return all;
    }
    case Kind::kSend:
    case Kind::kReceive:
      break;
  }
  return {};
}

}  // namespace nccl
}  // namespace lockstep

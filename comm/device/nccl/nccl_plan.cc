#include "comm/device/nccl/nccl_plan.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/types/bfloat16.h"
#include "base/types/float16.h"
#include "base/types/float8.h"

namespace lockstep {
namespace {

using Kind = NcclCall::Kind;

// What NCCL adds up: `parts` of these make an element.
struct Elements {
  nccl::DataType type;
  int parts = 1;
};

Elements ElementsOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return {nccl::kUint8};
    case DType::kI8:
      return {nccl::kInt8};
    case DType::kI32:
      return {nccl::kInt32};
    case DType::kU32:
      return {nccl::kUint32};
    case DType::kI64:
      return {nccl::kInt64};
    case DType::kU64:
      return {nccl::kUint64};
    case DType::kF16:
      return {nccl::kFloat16};
    case DType::kBF16:
      return {nccl::kBfloat16};
    case DType::kF32:
      return {nccl::kFloat32};
    case DType::kF64:
      return {nccl::kFloat64};
    case DType::kF8E4M3:
      return {nccl::kFloat8e4m3};
    case DType::kF8E5M2:
      return {nccl::kFloat8e5m2};
    case DType::kComplex64:
      return {nccl::kFloat32, 2};
    case DType::kComplex128:
      return {nccl::kFloat64, 2};
  }
  return {nccl::kUint8};
}

nccl::RedOp OpOf(DType dtype, ReduceOp op) {
  const bool is_bool = dtype == DType::kBool;
  switch (op) {
    case ReduceOp::kAvg:
      return nccl::kAvg;
    case ReduceOp::kProd:
      return is_bool ? nccl::kMin : nccl::kProd;
    case ReduceOp::kAnd:
    case ReduceOp::kMin:
      return nccl::kMin;
    case ReduceOp::kOr:
    case ReduceOp::kMax:
      return nccl::kMax;
    case ReduceOp::kSum:
    case ReduceOp::kPremulSum:
    case ReduceOp::kXor:
      break;
  }
  return is_bool ? nccl::kMax : nccl::kSum;
}

template <typename T>
void Store(T value, NcclCall* call) {
  static_assert(sizeof(value) <= sizeof(call->factor));
  std::memcpy(call->factor.data(), &value, sizeof(value));
}

void StoreFactor(double factor, NcclCall* call) {
  call->scaled = true;
  switch (call->type) {
    case nccl::kFloat64:
      return Store(factor, call);
    case nccl::kFloat16:
      return Store(Float16(static_cast<float>(factor)), call);
    case nccl::kBfloat16:
      return Store(BFloat16(static_cast<float>(factor)), call);
    case nccl::kFloat8e4m3:
      return Store(Float8E4M3(static_cast<float>(factor)), call);
    case nccl::kFloat8e5m2:
      return Store(Float8E5M2(static_cast<float>(factor)), call);
    case nccl::kFloat32:
    case nccl::kInt8:
    case nccl::kUint8:
    case nccl::kInt32:
    case nccl::kUint32:
    case nccl::kInt64:
    case nccl::kUint64:
      break;
  }
  Store(static_cast<float>(factor), call);
}

char* At(void* vector, int64_t offset) { return static_cast<char*>(vector) + offset; }
const char* At(const void* vector, int64_t offset) { return static_cast<const char*>(vector) + offset; }

class Planner {
 public:
  Planner(const CollectiveRequest& request, Rank rank, int size, std::vector<NcclCall>* calls)
      : request_(request), rank_(rank.value()), size_(size), element_bytes_(SizeOf(request.dtype)), calls_(calls) {}

  void Plan() {
    const bool equal = request_.counts.empty();
    switch (request_.collective) {
      case Collective::kAllReduce:
        return Reduce(Kind::kAllReduce, request_.input, request_.output, request_.count, /*root=*/0);
      case Collective::kReduce:
        return Reduce(Kind::kReduce, request_.input, request_.output, request_.count, request_.root.value());
      case Collective::kReduceScatter:
        return equal ? Reduce(Kind::kReduceScatter, request_.input, request_.output, request_.count / size_, /*root=*/0)
                     : ReduceBlocks();
      case Collective::kBroadcast:
        return Move(Kind::kBroadcast, request_.input, request_.output, Bytes(request_.count), request_.root.value());
      case Collective::kAllGather:
        return equal
                   ? Move(Kind::kAllGather, request_.input, request_.output, Bytes(request_.count / size_), /*peer=*/0)
                   : BroadcastBlocks();
      case Collective::kGather:
        return Gather();
      case Collective::kScatter:
        return Scatter();
      case Collective::kAllToAll:
        return Exchange();
      case Collective::kBarrier:
        calls_->push_back({Kind::kAllReduce, request_.input, request_.output, /*count=*/1});
        return;
    }
  }

 private:
  int64_t Bytes(int64_t count) const { return count * element_bytes_; }
  // Bytes of a block of the vector, or of what goes to or comes from a rank.
  int64_t InputBytes(int r) const {
    return Bytes(request_.counts.empty() ? request_.count / size_ : request_.counts[r]);
  }
  int64_t OutputBytes(int r) const {
    return request_.output_counts.empty() ? InputBytes(r) : Bytes(request_.output_counts[r]);
  }

  void Reduce(Kind kind, const void* input, void* output, size_t count, int root) {
    const Elements elements = ElementsOf(request_.dtype);
    NcclCall call;
    call.kind = kind;
    call.input = input;
    call.output = output;
    call.count = count * elements.parts;
    call.type = elements.type;
    call.op = OpOf(request_.dtype, request_.op);
    call.peer = root;
    if (request_.op == ReduceOp::kPremulSum) StoreFactor(request_.factor, &call);
    calls_->push_back(call);
  }
  void Move(Kind kind, const void* input, void* output, int64_t bytes, int peer) {
    calls_->push_back({kind, input, output, static_cast<size_t>(bytes), nccl::kUint8, nccl::kSum, peer});
  }
  void Send(const void* data, int64_t bytes, int peer) {
    if (bytes > 0) Move(Kind::kSend, data, nullptr, bytes, peer);
  }
  void Receive(void* data, int64_t bytes, int peer) {
    if (bytes > 0) Move(Kind::kReceive, nullptr, data, bytes, peer);
  }

  void ReduceBlocks() {
    int64_t offset = 0;
    for (int r = 0; r < size_; offset += InputBytes(r++)) {
      if (request_.counts[r] == 0) continue;
      Reduce(Kind::kReduce, At(request_.input, offset), request_.output, request_.counts[r], r);
    }
  }
  void BroadcastBlocks() {
    int64_t offset = 0;
    for (int r = 0; r < size_; offset += InputBytes(r++)) {
      char* const block = At(request_.output, offset);
      if (request_.counts[r] > 0) Move(Kind::kBroadcast, r == rank_ ? request_.input : block, block, InputBytes(r), r);
    }
  }
  void Gather() {
    // In place the root's block is where it belongs.
    const int root = request_.root.value();
    int64_t offset = 0;
    bool in_place = false;
    for (int r = 0; r < size_ && rank_ == root; offset += InputBytes(r++)) {
      char* const block = At(request_.output, offset);
      if (r == rank_ && block == request_.input) {
        in_place = true;
      } else {
        Receive(block, InputBytes(r), r);
      }
    }
    if (!in_place) Send(request_.input, InputBytes(rank_), root);
  }
  void Scatter() {
    const int root = request_.root.value();
    int64_t offset = 0;
    bool in_place = false;
    for (int r = 0; r < size_ && rank_ == root; offset += InputBytes(r++)) {
      const char* const block = At(request_.input, offset);
      if (r == rank_ && block == request_.output) {
        in_place = true;
      } else {
        Send(block, InputBytes(r), r);
      }
    }
    if (!in_place) Receive(request_.output, InputBytes(rank_), root);
  }
  void Exchange() {
    int64_t input = 0;
    int64_t output = 0;
    for (int r = 0; r < size_; ++r) {
      Send(At(request_.input, input), InputBytes(r), r);
      Receive(At(request_.output, output), OutputBytes(r), r);
      input += InputBytes(r);
      output += OutputBytes(r);
    }
  }

  const CollectiveRequest& request_;
  const int rank_;
  const int size_;
  const int64_t element_bytes_;
  std::vector<NcclCall>* const calls_;
};

}  // namespace

absl::Status NcclSupports(Collective collective, DType dtype, ReduceOp op, bool has_float8) {
  if (!HasReduction(collective)) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(dtype, op));
  const bool bitwise = op == ReduceOp::kXor || (IsInteger(dtype) && (op == ReduceOp::kAnd || op == ReduceOp::kOr));
  const bool is_float8 = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
  const bool scales_float8 = is_float8 && (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum);
  const bool new_float8 = is_float8 && !has_float8;
  if (bitwise || scales_float8 || new_float8 || (IsComplex(dtype) && op == ReduceOp::kProd)) {
    return absl::UnimplementedError(absl::StrCat(Name(collective), ": NCCL has no ", Name(op), " of ", Name(dtype),
                                                 new_float8 && !scales_float8 ? " before 2.24" : ""));
  }
  return absl::OkStatus();
}

void AppendNcclCalls(const CollectiveRequest& request, Rank rank, int size, std::vector<NcclCall>* calls) {
  Planner(request, rank, size, calls).Plan();
}

void AppendNcclCalls(const SendRequest& request, std::vector<NcclCall>* calls) {
  calls->push_back(
      {Kind::kSend, request.data, nullptr, request.bytes, nccl::kUint8, nccl::kSum, request.target.value()});
}

void AppendNcclCalls(const ReceiveRequest& request, std::vector<NcclCall>* calls) {
  calls->push_back(
      {Kind::kReceive, nullptr, request.data, request.bytes, nccl::kUint8, nccl::kSum, request.source.value()});
}

}  // namespace lockstep

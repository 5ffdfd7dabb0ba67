#include "comm/plan/collectives.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/ref.h"
#include "base/status.h"
#include "comm/pieces.h"
#include "comm/plan/call_plan.h"

namespace lockstep {
namespace {

absl::Status CheckTensor(const TensorView& tensor, const char* name) {
  if (!tensor.contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " ", tensor.ToString(), " is not contiguous"));
  }
  return absl::OkStatus();
}

absl::Status CheckAlike(const TensorView& input, const TensorView& output) {
  if (input.dtype() != output.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input is ", Name(input.dtype()), " and output is ", Name(output.dtype())));
  }
  if (input.device() == output.device() || input.elements() == 0 || output.elements() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input is on ", Name(input.device()), " and output is on ", Name(output.device())));
}

absl::Status CheckRoot(const Communicator& communicator, Rank root) {
  if (root.value() >= 0 && root.value() < communicator.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("root ", root.value(), " is not a rank of a world of ", communicator.size()));
}

// The elements of all blocks, of which this rank's has those of `part`.
absl::StatusOr<size_t> CheckPart(const Communicator& communicator, const TensorView& part, const char* part_name,
                                 absl::Span<const int64_t> counts) {
  size_t whole = 0;
  if (counts.empty()) {
    if (!__builtin_mul_overflow(part.elements(), communicator.size(), &whole)) return whole;
    return absl::InvalidArgumentError(absl::StrCat(part_name, " has ", part.elements(), " elements, which times ",
                                                   communicator.size(), " are more than can be addressed"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(whole, SumOfCounts(counts, "counts", communicator.size()));
  const int rank = communicator.rank().value();
  if (static_cast<uint64_t>(counts[rank]) == part.elements()) return whole;
  return absl::InvalidArgumentError(absl::StrCat(part_name, " has ", part.elements(), " elements, and counts[", rank,
                                                 "] (this rank's) is ", counts[rank]));
}

// `whole` is all blocks, of `count` elements, and shares memory with `part` exactly as this rank's block or not at all.
absl::Status CheckWhole(const Communicator& communicator, const TensorView& part, const char* part_name,
                        const TensorView& whole, const char* whole_name, size_t count,
                        absl::Span<const int64_t> counts) {
  const int rank = communicator.rank().value();
  if (whole.elements() != count) {
    return absl::InvalidArgumentError(
        counts.empty()
            ? absl::StrCat(whole_name, " has ", whole.elements(), " elements, which is not ", communicator.size(),
                           " (world size) x ", part.elements(), " (elements of ", part_name, ")")
            : absl::StrCat(whole_name, " has ", whole.elements(), " elements, and the counts add up to ", count));
  }
  const int64_t before = counts.empty() ? part.elements() * rank : std::accumulate(&counts[0], &counts[rank], 0L);
  const char* const block = static_cast<const char*>(whole.data()) + before * SizeOf(whole.dtype());
  if (Overlap(part, whole) && part.data() != block) {
    return absl::InvalidArgumentError(absl::StrCat(part_name, " overlaps ", whole_name, " elsewhere than at block ",
                                                   rank, " (this rank's), which would be in place"));
  }
  return absl::OkStatus();
}

CollectiveRequest Request(Collective collective, const TensorView& whole) {
  CollectiveRequest request;
  request.collective = collective;
  request.dtype = whole.dtype();
  request.count = whole.elements();
  request.device = whole.device();
  return request;
}

// All-gather and gather make the whole from everyone's part; reduce-scatter and scatter make everyone's part from the
// whole. Where there is a root, the whole is looked at there alone.
absl::StatusOr<CollectiveRequest> RequestByRank(Collective collective, const Communicator& communicator,
                                                const TensorView& input, const TensorView& output,
                                                absl::Span<const int64_t> counts, Rank root = Rank(0)) {
  const bool gathers = collective == Collective::kAllGather || collective == Collective::kGather;
  const TensorView& part = gathers ? input : output;
  const TensorView& whole = gathers ? output : input;
  const char* const part_name = gathers ? "input" : "output";
  const char* const whole_name = gathers ? "output" : "input";
  const bool has_whole = !HasRoot(collective) || communicator.rank() == root;
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(part, part_name));
  if (HasRoot(collective)) LOCKSTEP_RETURN_IF_ERROR(CheckRoot(communicator, root));
  CollectiveRequest request = Request(collective, part);
  LOCKSTEP_ASSIGN_OR_RETURN(request.count, CheckPart(communicator, part, part_name, counts));
  request.counts = counts;
  request.root = root;
  if (has_whole) {
    LOCKSTEP_RETURN_IF_ERROR(CheckTensor(whole, whole_name));
    LOCKSTEP_RETURN_IF_ERROR(CheckAlike(input, output));
    LOCKSTEP_RETURN_IF_ERROR(CheckWhole(communicator, part, part_name, whole, whole_name, request.count, counts));
  }
  if (gathers || has_whole) request.input = input.data();
  if (!gathers || has_whole) request.output = output.data();
  return request;
}

absl::Status CheckElementwise(const TensorView& input, const TensorView& output) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(output, "output"));
  LOCKSTEP_RETURN_IF_ERROR(CheckAlike(input, output));
  if (input.elements() != output.elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input has ", input.elements(), " elements and output has ", output.elements()));
  }
  if (input.data() != output.data() && Overlap(input, output)) {
    return absl::InvalidArgumentError("input and output overlap without being the same memory");
  }
  return absl::OkStatus();
}

// ---- Several calls as one

// Elements of each block in one of a call's windows.
size_t BlockElements(const CollectiveRequest& call, int size) {
  return IsByRank(call.collective) ? call.count / size : call.count;
}

int BlocksIn(const CollectiveRequest& call, Window window, int size) {
  return IsByRank(call.collective) && !IsOwnBlock(call.collective, window) ? size : 1;
}

char* BeginOf(const CollectiveRequest& call, Window window) {
  return static_cast<char*>(window == Window::kInput ? const_cast<void*>(call.input) : call.output);
}

// A call's input or output, or both where it is in place.
struct Range {
  const char* begin;
  const char* end;
  const char* name;
  size_t call;

  std::string ToString() const { return absl::StrCat(name, " ", call); }
};

// Each call has been checked by itself: its input and output are in place or apart.
absl::Status CheckApart(absl::Span<const CollectiveRequest> calls, int size) {
  std::vector<Range> ranges;
  ranges.reserve(2 * calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const CollectiveRequest& call = calls[i];
    if (call.count == 0) continue;
    const auto range = [&](Window window, const char* name) -> Range {
      const char* const begin = BeginOf(call, window);
      const size_t elements = BlocksIn(call, window, size) * BlockElements(call, size);
      return {begin, begin + elements * SizeOf(call.dtype), name, i};
    };
    const Range input = range(Window::kInput, "input");
    const Range output = range(Window::kOutput, "output");
    if (input.begin < output.end && output.begin < input.end) {
      ranges.push_back({std::min(input.begin, output.begin), std::max(input.end, output.end), "tensor", i});
    } else {
      ranges.insert(ranges.end(), {input, output});
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  // If two ranges overlap, the first of them overlaps the one that begins next.
  const auto overlap = std::adjacent_find(ranges.begin(), ranges.end(),
                                          [](const Range& a, const Range& next) { return next.begin < a.end; });
  if (overlap == ranges.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(overlap[0].ToString(), " and ", overlap[1].ToString(), " of the list overlap"));
}

Ref<const Pieces> PiecesOf(absl::Span<const CollectiveRequest> calls, Window window, int size) {
  const Ref<Pieces> pieces = MakeRef<Pieces>(calls[0].dtype);
  for (int block = 0; block < BlocksIn(calls[0], window, size); ++block) {
    for (const CollectiveRequest& call : calls) {
      const size_t elements = BlockElements(call, size);
      pieces->AddPlain(BeginOf(call, window) + block * elements * SizeOf(call.dtype), elements);
    }
  }
  return pieces;
}

// Whether all ranks map a window of the call.
bool Shares(const Communicator& communicator, const CollectiveRequest& call, Window window) {
  const Ref<const Pieces>& pieces = window == Window::kInput ? call.input_pieces : call.output_pieces;
  if (pieces == nullptr) {
    const int size = communicator.size();
    const size_t elements = BlocksIn(call, window, size) * BlockElements(call, size);
    return communicator.Shares(BeginOf(call, window), elements * SizeOf(call.dtype));
  }
  if (pieces->pieces() > Pieces::kSharedMax) return false;
  for (size_t position = 0; position < pieces->bytes();) {
    const Pieces::Run run = pieces->At(position);
    if (!communicator.Shares(run.data, run.bytes)) return false;
    position += run.bytes;
  }
  return true;
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
                                                   const TensorView& output, absl::Span<const int64_t> counts) {
  return RequestByRank(Collective::kAllGather, communicator, input, output, counts);
}

absl::StatusOr<CollectiveRequest> ReduceScatterRequest(const Communicator& communicator, const TensorView& input,
                                                       const TensorView& output, ReduceOp op,
                                                       absl::Span<const int64_t> counts) {
  LOCKSTEP_ASSIGN_OR_RETURN(CollectiveRequest request,
                            RequestByRank(Collective::kReduceScatter, communicator, input, output, counts));
  LOCKSTEP_RETURN_IF_ERROR(CheckDefined(request.dtype, op));
  request.op = op;
  return request;
}

absl::StatusOr<CollectiveRequest> GatherRequest(const Communicator& communicator, const TensorView& input,
                                                const TensorView& output, Rank root, absl::Span<const int64_t> counts) {
  return RequestByRank(Collective::kGather, communicator, input, output, counts, root);
}

absl::StatusOr<CollectiveRequest> ScatterRequest(const Communicator& communicator, const TensorView& input,
                                                 const TensorView& output, Rank root,
                                                 absl::Span<const int64_t> counts) {
  return RequestByRank(Collective::kScatter, communicator, input, output, counts, root);
}

absl::StatusOr<CollectiveRequest> AllToAllRequest(const Communicator& communicator, const TensorView& input,
                                                  const TensorView& output, absl::Span<const int64_t> input_counts,
                                                  absl::Span<const int64_t> output_counts) {
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(input, "input"));
  LOCKSTEP_RETURN_IF_ERROR(CheckTensor(output, "output"));
  LOCKSTEP_RETURN_IF_ERROR(CheckAlike(input, output));
  if (Overlap(input, output) && input.data() != output.data()) {
    return absl::InvalidArgumentError("input and output overlap without being the same memory");
  }
  CollectiveRequest request = Request(Collective::kAllToAll, input);
  request.counts = input_counts;
  request.output_counts = output_counts;
  request.input = input.data();
  request.output = output.data();
  if (!input_counts.empty() || !output_counts.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t in, SumOfCounts(input_counts, "input_counts", communicator.size()));
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t out, SumOfCounts(output_counts, "output_counts", communicator.size()));
    if (static_cast<uint64_t>(in) == input.elements() && static_cast<uint64_t>(out) == output.elements()) {
      return request;
    }
    return absl::InvalidArgumentError(absl::StrCat("input and output have ", input.elements(), " and ",
                                                   output.elements(), " elements, and their counts add up to ", in,
                                                   " and ", out));
  }
  if (input.elements() != output.elements() || input.elements() % communicator.size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("input has ", input.elements(), " elements and output has ",
                                                   output.elements(), ", which are not equal multiples of ",
                                                   communicator.size(), " (world size)"));
  }
  return request;
}

CollectiveRequest BarrierRequest() { return CollectiveRequest(); }

absl::StatusOr<std::vector<CollectiveRequest>> CoalescedRequests(const Communicator& communicator,
                                                                 std::vector<CollectiveRequest> calls) {
  const int size = communicator.size();
  CollectiveRequest whole = calls[0];
  whole.count = 0;
  bool in_place = !IsByRank(whole.collective);
  for (size_t i = 0; i < calls.size(); ++i) {
    const CollectiveRequest& call = calls[i];
    if (call.dtype != whole.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("tensor 0 is ", Name(whole.dtype), " and tensor ", i, " is ",
                                                     Name(call.dtype), ": a list has one dtype"));
    }
    if (call.device != whole.device) {
      return absl::InvalidArgumentError(absl::StrCat("tensor 0 is on ", Name(whole.device), " and tensor ", i,
                                                     " is on ", Name(call.device), ": a list is in one place"));
    }
    whole.count += call.count;
    in_place = in_place && call.input == call.output;
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckApart(calls, size));
  if (whole.device.kind != DeviceKind::kHost) return calls;
  whole.input_pieces = PiecesOf(calls, Window::kInput, size);
  whole.output_pieces = in_place ? whole.input_pieces : PiecesOf(calls, Window::kOutput, size);
  whole.input = whole.input_pieces->contiguous();
  whole.output = whole.output_pieces->contiguous();
  if (whole.input != nullptr || whole.count == 0) whole.input_pieces = nullptr;
  if (whole.output != nullptr || whole.count == 0) whole.output_pieces = nullptr;
  if (whole.input_pieces != nullptr || whole.output_pieces != nullptr) {
    whole.shared_pieces =
        Shares(communicator, whole, Window::kInput) && (in_place || Shares(communicator, whole, Window::kOutput));
  }
  calls.assign(1, std::move(whole));
  return calls;
}

}  // namespace lockstep

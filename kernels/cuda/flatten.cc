#include "kernels/cuda/flatten.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_error.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/tensor_view.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/transfer.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

constexpr size_t kEntryMax = std::numeric_limits<uint32_t>::max();

// A call of either direction.
struct Call {
  absl::Span<const BucketPiece> pieces;
  absl::Span<const BucketEntry> entries;
  char* flat;
  DType flat_dtype;
  double factor;
  const BucketGate* gate;
  bool to_flat;
  uint64_t entry_base = 0;  // the index of the first of the entries, in real parts

  bool divides_by_live() const { return gate != nullptr && gate->divide_by_live; }
};

// Nothing to be done for a view that is the flat array's memory.
bool IsInPlace(const Call& call, const BucketPiece& piece) {
  return piece.view->dense() && piece.view->dtype() == call.flat_dtype && call.factor == 1 && !call.divides_by_live() &&
         piece.view->data() == call.flat + piece.offset * SizeOf(call.flat_dtype);
}

// What each of the launches has to do.
struct Totals {
  size_t dense = 0;
  size_t strided = 0;
};

using TotalsByDType = Totals[kDTypeCount];

absl::Status CheckPiece(const Call& call, const BucketPiece& piece, const Executor& executor) {
  const TensorView& view = *piece.view;
  // Any factor but 1 stands for one that is known only to the device.
  const double factor = call.divides_by_live() && call.factor == 1 ? 0.5 : call.factor;
  LOCKSTEP_RETURN_IF_ERROR(call.to_flat ? CheckCast(call.flat_dtype, view.dtype(), factor)
                                        : CheckCast(view.dtype(), call.flat_dtype, factor));
  if (view.elements() > 0 && view.device() != executor.device()) {
    return absl::InvalidArgumentError(
        absl::StrCat(view.ToString(), " is not memory of ", Name(executor.device()), ", where the stream is"));
  }
  if (call.gate != nullptr && piece.entry > kEntryMax) {
    return absl::InvalidArgumentError(absl::StrCat("no trailer has an entry ", piece.entry));
  }
  return absl::OkStatus();
}

absl::Status CheckPieces(const Call& call, const Executor& executor, TotalsByDType& totals) {
  for (size_t i = 0; i < call.pieces.size(); ++i) {
    const BucketPiece& piece = call.pieces[i];
    if (piece.view == nullptr) {
      if (!call.to_flat) return absl::InvalidArgumentError(absl::StrCat("piece ", i, " has no view to write to"));
      continue;
    }
    absl::Status status = CheckPiece(call, piece, executor);
    if (!status.ok()) return Annotate(status, absl::StrCat("piece ", i, " of ", call.pieces.size()));
    if (piece.view->elements() == 0 || IsInPlace(call, piece)) continue;
    Totals& total = totals[static_cast<int>(piece.view->dtype())];
    ++(piece.view->dense() ? total.dense : total.strided);
  }
  return absl::OkStatus();
}

// A device would fault at an address that is not aligned.
absl::Status CheckAligned(const char* what, const void* array, DType dtype) {
  const size_t alignment = SizeOf(RealFormOf(dtype).dtype);
  if (reinterpret_cast<uintptr_t>(array) % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s at %p is not aligned to %d bytes", what, array, alignment));
}

absl::Status CheckGate(const BucketGate& gate) {
  if (gate.trailer == nullptr || !(IsFloat(gate.dtype) || IsComplex(gate.dtype)) || gate.closed_by > kEntryMax ||
      gate.joined > kEntryMax || gate.ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("no gate: a trailer of ", Name(gate.dtype), " with entries ",
                                                   gate.closed_by, " and ", gate.joined, " of ", gate.ranks, " ranks"));
  }
  return CheckAligned("a trailer", gate.trailer, gate.dtype);
}

TransferSetup SetupOf(const Call& call, DType dtype) {
  TransferSetup setup = {};
  setup.to = RealFormOf(call.to_flat ? call.flat_dtype : dtype).dtype;
  setup.from = RealFormOf(call.to_flat ? dtype : call.flat_dtype).dtype;
  setup.header.flat = call.flat;
  setup.header.factor = call.factor;
  setup.header.entry_base = call.entry_base;
  setup.header.to_flat = call.to_flat;
  if (call.gate != nullptr) {
    const BucketGate& gate = *call.gate;
    setup.header.gate = {gate.trailer,
                         gate.dtype,
                         gate.divide_by_live,
                         static_cast<uint32_t>(gate.closed_by),
                         static_cast<uint32_t>(gate.joined),
                         gate.ranks,
                         gate.count_max};
  }
  return setup;
}

absl::Status CheckEntries(Call& call) {
  if (call.entries.empty()) return absl::OkStatus();
  if (!IsFloat(call.flat_dtype) && !IsComplex(call.flat_dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("cannot put float values into an array of ", Name(call.flat_dtype)));
  }
  const auto by_index = [](const BucketEntry& a, const BucketEntry& b) { return a.index < b.index; };
  const auto ends = std::minmax_element(call.entries.begin(), call.entries.end(), by_index);
  const uint32_t parts = RealFormOf(call.flat_dtype).parts;
  call.entry_base = parts * ends.first->index;
  if (ends.second->index - ends.first->index < kEntryMax / parts) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("entries ", ends.first->index, " and ", ends.second->index,
                                                 " are too far apart for one array of arguments"));
}

// Values with indices counted from entry_base.
template <typename Batch>
absl::Status AddEntries(const Call& call, Batch& batch) {
  const uint32_t parts = RealFormOf(call.flat_dtype).parts;
  for (const BucketEntry& entry : call.entries) {
    const auto index = static_cast<uint32_t>(parts * entry.index - call.entry_base);
    LOCKSTEP_RETURN_IF_ERROR(batch.AddEntry(index, entry.value));
    if (parts == 2) LOCKSTEP_RETURN_IF_ERROR(batch.AddEntry(index + 1, 0));
  }
  return absl::OkStatus();
}

// The views of one dtype, in its launch or launches; with zeros and entries if they are to go along.
absl::Status TransferDense(const Call& call, DType dtype, const Totals& totals, bool with_the_rest,
                           Executor& executor) {
  TransferSetup setup = SetupOf(call, dtype);
  const uint32_t parts = RealFormOf(dtype).parts;
  setup.pieces = totals.dense;
  if (with_the_rest) {
    setup.entries = parts * call.entries.size();
    for (const BucketPiece& piece : call.pieces) {
      if (piece.view == nullptr) ++setup.pieces;
    }
  }
  return RunTransfer(setup, executor, [&](auto& batch) {
    for (const BucketPiece& piece : call.pieces) {
      if (piece.view == nullptr) {
        if (with_the_rest) {
          LOCKSTEP_RETURN_IF_ERROR(batch.Add(nullptr, parts * piece.offset, parts * piece.count, 0));
        }
        continue;
      }
      const TensorView& view = *piece.view;
      if (view.dtype() != dtype || !view.dense() || IsInPlace(call, piece)) continue;
      LOCKSTEP_RETURN_IF_ERROR(
          batch.Add(view.data(), parts * piece.offset, parts * view.elements(), static_cast<uint32_t>(piece.entry)));
    }
    return with_the_rest ? AddEntries(call, batch) : absl::OkStatus();
  });
}

// Dimensions of one element left out, and those merged that are one to the next.
absl::InlinedVector<Dimension, 8> DimensionsOf(const TensorView& view) {
  const RealForm form = RealFormOf(view.dtype());
  absl::InlinedVector<Dimension, 8> dimensions;
  const auto add = [&](uint64_t extent, uint64_t stride) {
    if (extent == 1) return;
    if (!dimensions.empty() && dimensions.back().stride == extent * stride) {
      dimensions.back() = {dimensions.back().extent * extent, stride};
    } else {
      dimensions.push_back({extent, stride});
    }
  };
  for (size_t d = 0; d < view.shape().size(); ++d) add(view.shape()[d], view.strides()[d] * form.parts);
  add(form.parts, 1);
  return dimensions;
}

absl::Status TransferStrided(const Call& call, DType dtype, const Totals& totals, Executor& executor) {
  TransferSetup setup = SetupOf(call, dtype);
  const uint32_t parts = RealFormOf(dtype).parts;
  StridedBatch batch(setup, executor);
  for (const BucketPiece& piece : call.pieces) {
    if (piece.view == nullptr || piece.view->dtype() != dtype || piece.view->dense()) continue;
    const TensorView& view = *piece.view;
    LOCKSTEP_RETURN_IF_ERROR(
        batch.Add({view.data(), parts * piece.offset, parts * view.elements(), 0, static_cast<uint32_t>(piece.entry)},
                  DimensionsOf(view)));
  }
  return batch.Flush();
}

absl::Status Run(Call call, Executor& executor) {
  TotalsByDType totals;
  LOCKSTEP_RETURN_IF_ERROR(CheckPieces(call, executor, totals));
  LOCKSTEP_RETURN_IF_ERROR(CheckAligned("a flat array", call.flat, call.flat_dtype));
  if (call.gate != nullptr) LOCKSTEP_RETURN_IF_ERROR(CheckGate(*call.gate));
  LOCKSTEP_RETURN_IF_ERROR(CheckEntries(call));
  // Zeros and entries need no dtype: they go with the first pieces that have the flat array's parts, or by themselves.
  bool rest_is_done = false;
  for (const DType dtype : kAllDTypes) {
    const Totals& total = totals[static_cast<int>(dtype)];
    if (total.dense > 0) {
      LOCKSTEP_RETURN_IF_ERROR(TransferDense(call, dtype, total, !rest_is_done, executor));
      rest_is_done = true;
    }
    if (total.strided > 0) LOCKSTEP_RETURN_IF_ERROR(TransferStrided(call, dtype, total, executor));
  }
  return rest_is_done ? absl::OkStatus() : TransferDense(call, call.flat_dtype, Totals(), true, executor);
}

}  // namespace

namespace internal {

absl::Status FlattenViews(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                          DType flat_dtype, double factor, Executor& executor) {
  return Run({pieces, entries, static_cast<char*>(flat), flat_dtype, factor, nullptr, true}, executor);
}

absl::Status UnflattenViews(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const BucketGate* gate, Executor& executor) {
  // Written only through views that are its own memory.
  char* const array = static_cast<char*>(const_cast<void*>(flat));
  return Run({pieces, {}, array, flat_dtype, factor, gate, false}, executor);
}

absl::Status Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum, Executor& executor) {
  if (bytes == 0) return absl::OkStatus();
  const HashArguments arguments = {data, bytes, first_word, sum};
  constexpr size_t kBlockBytes = kHashWordsPerBlock * sizeof(uint64_t);
  const size_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
  return executor.Launch(executor.kernels().hash, static_cast<uint32_t>(blocks), &arguments);
}

}  // namespace internal

absl::Status FlattenViews(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                          DType flat_dtype, double factor, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::FlattenViews(pieces, entries, flat, flat_dtype, factor, executor);
}

absl::Status UnflattenViews(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                            const BucketGate* gate, Stream& stream) {
  LOCKSTEP_ASSIGN_OR_RETURN(StreamExecutor executor, StreamExecutor::Create(stream));
  return internal::UnflattenViews(pieces, flat, flat_dtype, factor, gate, executor);
}

absl::Status Preload(int device) {
  const CudaGuard guard(TheCudaApi(), device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  return CudaStatus(LoadKernels(), "cudaFuncGetAttributes of the kernels", device);
}

}  // namespace cuda

namespace {

class Cuda final : public BucketKernels {
 public:
  absl::Status Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                      DType flat_dtype, double factor, Stream& stream) const override {
    return cuda::FlattenViews(pieces, entries, flat, flat_dtype, factor, stream);
  }

  absl::Status Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const BucketGate& gate, Stream& stream) const override {
    return cuda::UnflattenViews(pieces, flat, flat_dtype, factor, &gate, stream);
  }

  absl::Status Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum, Stream& stream) const override {
    LOCKSTEP_ASSIGN_OR_RETURN(cuda::StreamExecutor executor, cuda::StreamExecutor::Create(stream));
    return cuda::internal::Hash(data, bytes, first_word, sum, executor);
  }
};

}  // namespace

const BucketKernels* CudaBucketKernels() {
  static const Cuda* const kernels = new Cuda;
  return kernels;
}

}  // namespace kernels
}  // namespace lockstep

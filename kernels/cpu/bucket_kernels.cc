#include "kernels/cpu/bucket_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"
#include "kernels/hash_word.h"

namespace lockstep::kernels {
namespace {

// What a closure keeps of a piece, addressed as the host does.
struct KeptPiece {
  TensorView view;
  bool zeros = false;
  size_t offset = 0;
  size_t count = 0;
  size_t entry = 0;
};

std::vector<KeptPiece> Keep(absl::Span<const BucketPiece> pieces) {
  std::vector<KeptPiece> kept;
  for (const BucketPiece& piece : pieces) {
    TensorView view;
    if (const TensorView* const on_device = piece.view; on_device != nullptr) {
      view = TensorView::Create(on_device->data(), on_device->dtype(), on_device->shape(), on_device->strides(),
                                DeviceId())
                 .value();
    }
    kept.push_back({std::move(view), piece.view == nullptr, piece.offset, piece.count, piece.entry});
  }
  return kept;
}

char* At(void* base, size_t index, DType dtype) { return static_cast<char*>(base) + index * SizeOf(dtype); }
const char* At(const void* base, size_t index, DType dtype) {
  return static_cast<const char*>(base) + index * SizeOf(dtype);
}

absl::Status GatherNow(const std::vector<KeptPiece>& pieces, const std::vector<BucketEntry>& entries, void* flat,
                       DType flat_dtype, double factor) {
  for (const KeptPiece& piece : pieces) {
    if (piece.zeros) {
      std::memset(At(flat, piece.offset, flat_dtype), 0, piece.count * SizeOf(flat_dtype));
    } else if (piece.view.data() != At(flat, piece.offset, flat_dtype)) {
      LOCKSTEP_RETURN_IF_ERROR(FlattenViews({{&piece.view, piece.offset}}, flat, flat_dtype, factor));
    } else if (factor != 1) {
      LOCKSTEP_RETURN_IF_ERROR(
          CastScaled(flat_dtype, piece.view.data(), flat_dtype, piece.view.data(), piece.count, factor));
    }
  }
  for (const BucketEntry& entry : entries) {
    char* const target = At(flat, entry.index, flat_dtype);
    std::memset(target, 0, SizeOf(flat_dtype));
    LOCKSTEP_RETURN_IF_ERROR(CastScaled(RealOf(flat_dtype), target, DType::kF32, &entry.value, 1, 1.0));
  }
  return absl::OkStatus();
}

// Ranks, as far as they can be told; -1 for what is no number.
absl::StatusOr<double> Count(const BucketGate& gate, size_t entry) {
  double count = 0;
  LOCKSTEP_RETURN_IF_ERROR(
      CastScaled(DType::kF64, &count, RealOf(gate.dtype), At(gate.trailer, entry, gate.dtype), 1, 1.0));
  return std::isnan(count) ? -1 : count;
}

absl::Status SpreadNow(const std::vector<KeptPiece>& pieces, const void* flat, DType flat_dtype, double factor,
                       const BucketGate& gate) {
  LOCKSTEP_ASSIGN_OR_RETURN(const double closed, Count(gate, gate.closed_by));
  if (closed != 0) return absl::OkStatus();
  if (gate.divide_by_live) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double counted, Count(gate, gate.joined));
    const int joined =
        counted == 0 ? 0 : std::max(1, static_cast<int>(std::lround(std::min<double>(counted, gate.count_max))));
    if (joined > 0) factor = factor * gate.ranks / std::max(1, gate.ranks - joined);
  }
  for (const KeptPiece& piece : pieces) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double used, Count(gate, piece.entry));
    if (used == 0) continue;
    const char* const source = At(flat, piece.offset, flat_dtype);
    if (piece.view.data() != source) {
      LOCKSTEP_RETURN_IF_ERROR(UnflattenViews({{&piece.view, piece.offset}}, flat, flat_dtype, factor));
    } else if (factor != 1) {
      LOCKSTEP_RETURN_IF_ERROR(CastScaled(flat_dtype, piece.view.data(), flat_dtype, source, piece.count, factor));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status HostKernels::Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries,
                                 void* flat, DType flat_dtype, double factor, Stream& stream) const {
  for (const BucketPiece& piece : pieces) {
    if (piece.view != nullptr) LOCKSTEP_RETURN_IF_ERROR(CheckCast(flat_dtype, piece.view->dtype(), factor));
  }
  auto gather = [pieces = Keep(pieces), entries = std::vector<BucketEntry>(entries.begin(), entries.end()), flat,
                 flat_dtype, factor] { return GatherNow(pieces, entries, flat, flat_dtype, factor); };
  return Issue(std::move(gather), stream);
}

absl::Status HostKernels::Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype,
                                 double factor, const BucketGate& gate, Stream& stream) const {
  for (const BucketPiece& piece : pieces) {
    LOCKSTEP_RETURN_IF_ERROR(CheckCast(piece.view->dtype(), flat_dtype, factor));
  }
  auto spread = [pieces = Keep(pieces), flat, flat_dtype, factor, gate] {
    return SpreadNow(pieces, flat, flat_dtype, factor, gate);
  };
  return Issue(std::move(spread), stream);
}

absl::Status HostKernels::Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum,
                               Stream& stream) const {
  const auto hash = [data = static_cast<const char*>(data), bytes, first_word, sum] {
    for (size_t begin = 0; begin < bytes; begin += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, data + begin, std::min(sizeof(word), bytes - begin));
      *sum += HashWord(word, first_word + begin / sizeof(word));
    }
    return absl::OkStatus();
  };
  return Issue(hash, stream);
}

const BucketKernels* HostBucketKernels() {
  static const auto* const host = new HostKernels;
  return host;
}

}  // namespace lockstep::kernels

#include "comm/pieces.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/flatten.h"

namespace lockstep {
namespace {

constexpr int32_t kPlain = -1;
constexpr int32_t kNothing = -2;

// memcpy, but that of a short piece is not called: a list may have many.
inline void Copy(char* target, const char* source, size_t bytes) {
  constexpr size_t kUnit = 16;
  constexpr size_t kShort = 256;
  if (bytes < kUnit || bytes > kShort) {
    std::memcpy(target, source, bytes);
    return;
  }
  // The last unit may overlap the one before.
  for (size_t at = 0; at + kUnit < bytes; at += kUnit) std::memcpy(target + at, source + at, kUnit);
  std::memcpy(target + bytes - kUnit, source + bytes - kUnit, kUnit);
}

}  // namespace

bool HasValuesOf(DType to, DType from) {
  if (to == from) return true;
  if (!IsFloat(to) || !IsFloat(from)) return false;
  const FloatFormat wide = FormatOf(to);
  const FloatFormat narrow = FormatOf(from);
  return wide.exponent_bits >= narrow.exponent_bits && wide.mantissa_bits >= narrow.mantissa_bits &&
         (wide.has_infinity || !narrow.has_infinity);
}

void Pieces::Clear() {
  bytes_ = 0;
  others_ = 0;
  losses_ = 0;
  pieces_.clear();
  tensors_.clear();
}

void Pieces::Append(char* data, int32_t tensor, size_t elements) {
  if (elements == 0) return;
  const size_t begin = bytes_;
  bytes_ += elements * element_bytes_;
  if (tensor != kPlain) {
    ++others_;
  } else if (!pieces_.empty() && pieces_.back().tensor == kPlain &&
             pieces_.back().data + (begin - pieces_.back().begin) == data) {
    return;  // the piece before goes on
  }
  pieces_.push_back({begin, data, tensor});
}

absl::Status Pieces::Add(const TensorView& tensor) {
  if (tensor.device().kind != DeviceKind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.ToString(), " is not memory of the host"));
  }
  if (tensor.dtype() == dtype_ && tensor.dense() && factor_ == 1) {
    AddPlain(tensor.data(), tensor.elements());
    return absl::OkStatus();
  }
  LOCKSTEP_RETURN_IF_ERROR(kernels::CheckCast(dtype_, tensor.dtype(), factor_));
  if (!HasValuesOf(tensor.dtype(), dtype_)) ++losses_;
  tensors_.push_back(tensor);
  Append(nullptr, static_cast<int32_t>(tensors_.size()) - 1, tensor.elements());
  return absl::OkStatus();
}

void Pieces::AddPlain(void* data, size_t elements) { Append(static_cast<char*>(data), kPlain, elements); }

void Pieces::AddNothing(size_t elements, bool of_all_ranks) {
  if (!of_all_ranks && elements > 0) ++losses_;
  Append(nullptr, kNothing, elements);
}

size_t Pieces::Find(size_t position) const {
  // Short vectors are worked on from their beginning.
  if (pieces_.size() == 1 || position < pieces_[1].begin) return 0;
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), position,
                                      [](size_t at, const Piece& piece) { return at < piece.begin; });
  return static_cast<size_t>(after - pieces_.begin()) - 1;
}

Pieces::Run Pieces::At(size_t position) const {
  const size_t index = Find(position);
  const Piece& piece = pieces_[index];
  return {piece.tensor == kPlain ? piece.data + (position - piece.begin) : nullptr, EndOf(index) - position};
}

template <typename Visit>
void Pieces::Walk(size_t position, size_t bytes, Visit visit) const {
  for (size_t index = bytes == 0 ? 0 : Find(position); bytes > 0; ++index) {
    const size_t part = std::min(bytes, EndOf(index) - position);
    visit(pieces_[index], position - pieces_[index].begin, part);
    position += part;
    bytes -= part;
  }
}

bool Pieces::AppendRuns(size_t position, size_t bytes, size_t max, std::vector<iovec>* runs) const {
  bool all = true;
  Walk(position, bytes, [&](const Piece& piece, size_t at, size_t part) {
    all = all && piece.tensor == kPlain && runs->size() < max;
    if (all) runs->push_back({piece.data + at, part});
  });
  return all;
}

void Pieces::Read(size_t position, size_t bytes, char* target) const {
  Walk(position, bytes, [&](const Piece& piece, size_t at, size_t part) {
    if (piece.tensor == kPlain) {
      Copy(target, piece.data + at, part);
    } else if (piece.tensor == kNothing) {
      std::memset(target, 0, part);
    } else {
      kernels::ReadElements(tensors_[piece.tensor], at / element_bytes_, part / element_bytes_, target, dtype_,
                            factor_);
    }
    target += part;
  });
}

void Pieces::Write(size_t position, size_t bytes, const char* source) const {
  Walk(position, bytes, [&](const Piece& piece, size_t at, size_t part) {
    if (piece.tensor == kPlain) {
      Copy(piece.data + at, source, part);
    } else if (piece.tensor != kNothing) {
      kernels::WriteElements(tensors_[piece.tensor], at / element_bytes_, part / element_bytes_, source, dtype_,
                             factor_);
    }
    source += part;
  });
}

}  // namespace lockstep

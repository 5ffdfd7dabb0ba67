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
  others_ = 0;
  losses_ = 0;
  blocks_.assign(1, {});
  kinds_.clear();
  tensors_.clear();
}

void Pieces::Append(char* data, int32_t tensor, size_t elements) {
  if (elements == 0) return;
  const size_t begin = bytes();
  const size_t end = begin + elements * element_bytes_;
  if (tensor != kPlain) ++others_;
  if (tensor == kPlain && !kinds_.empty() && kinds_.back() == kPlain) {
    const kernels::Block& before = blocks_[kinds_.size() - 1];
    if (before.data + (begin - before.begin) == data) {
      blocks_.back().begin = end;
      return;
    }
  }
  blocks_.back().data = data;
  blocks_.push_back({end, nullptr});
  kinds_.push_back(tensor);
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
  if (position < blocks_[1].begin) return 0;
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), position,
                                      [](size_t at, const kernels::Block& block) { return at < block.begin; });
  return static_cast<size_t>(after - blocks_.begin()) - 1;
}

Pieces::Run Pieces::At(size_t position) const {
  const size_t index = Find(position);
  const kernels::Block& block = blocks_[index];
  return {block.data == nullptr ? nullptr : block.data + (position - block.begin), EndOf(index) - position};
}

template <typename Visit>
void Pieces::Walk(size_t position, size_t bytes, Visit visit) const {
  for (size_t index = bytes == 0 ? 0 : Find(position); bytes > 0; ++index) {
    const size_t part = std::min(bytes, EndOf(index) - position);
    visit(index, position - blocks_[index].begin, part);
    position += part;
    bytes -= part;
  }
}

template <typename Part, typename Whole>
void Pieces::WalkPlain(size_t position, size_t bytes, Part part, Whole whole) const {
  const size_t end = position + bytes;
  size_t index = Find(position);
  if (position > blocks_[index].begin || end < EndOf(index)) {
    const size_t first = std::min(bytes, EndOf(index) - position);
    part(blocks_[index].data + (position - blocks_[index].begin), first);
    position += first;
    if (position == end) return;
    ++index;
  }
  const size_t last = end == this->bytes() ? pieces() : Find(end);
  whole(&blocks_[index], last - index);
  if (end > blocks_[last].begin) part(blocks_[last].data, end - blocks_[last].begin);
}

bool Pieces::AppendRuns(size_t position, size_t bytes, size_t max, std::vector<iovec>* runs) const {
  for (size_t part = 0; bytes > 0; position += part, bytes -= part) {
    const Run run = At(position);
    if (run.data == nullptr || runs->size() == max) return false;
    part = std::min(bytes, run.bytes);
    runs->push_back({run.data, part});
  }
  return true;
}

void Pieces::Read(size_t position, size_t bytes, char* target) const {
  if (bytes == 0) return;
  if (plain()) {
    const auto read = [&](const char* data, size_t part) {
      std::memcpy(target, data, part);
      target += part;
    };
    return WalkPlain(position, bytes, read, [&](const kernels::Block* blocks, size_t count) {
      kernels::GatherBlocks(blocks, count, target);
      target += blocks[count].begin - blocks[0].begin;
    });
  }
  Walk(position, bytes, [&](size_t index, size_t at, size_t part) {
    if (kinds_[index] == kPlain) {
      std::memcpy(target, blocks_[index].data + at, part);
    } else if (kinds_[index] == kNothing) {
      std::memset(target, 0, part);
    } else {
      kernels::ReadElements(tensors_[kinds_[index]], at / element_bytes_, part / element_bytes_, target, dtype_,
                            factor_);
    }
    target += part;
  });
}

void Pieces::Write(size_t position, size_t bytes, const char* source) const {
  if (bytes == 0) return;
  if (plain()) {
    const auto write = [&](char* data, size_t part) {
      std::memcpy(data, source, part);
      source += part;
    };
    return WalkPlain(position, bytes, write, [&](const kernels::Block* blocks, size_t count) {
      kernels::ScatterBlocks(blocks, count, source);
      source += blocks[count].begin - blocks[0].begin;
    });
  }
  Walk(position, bytes, [&](size_t index, size_t at, size_t part) {
    if (kinds_[index] == kPlain) {
      std::memcpy(blocks_[index].data + at, source, part);
    } else if (kinds_[index] != kNothing) {
      kernels::WriteElements(tensors_[kinds_[index]], at / element_bytes_, part / element_bytes_, source, dtype_,
                             factor_);
    }
    source += part;
  });
}

}  // namespace lockstep

#include "kernels/arrays_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/reference_testing.h"

namespace lockstep::kernels {
namespace {

constexpr uint8_t kPattern = 0xA5;

int BitsOf(DType dtype) { return 8 * static_cast<int>(SizeOf(RealOf(dtype))); }

uint8_t* AlignedBegin(std::vector<uint8_t>& storage, size_t guard, size_t offset) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(storage.data()) + guard;
  return reinterpret_cast<uint8_t*>((begin + 63) / 64 * 64 + offset);
}

}  // namespace

std::vector<uint64_t> SpecialCodes(DType dtype) {
  const DType part = RealOf(dtype);
  const int bits = BitsOf(dtype);
  const uint64_t top = uint64_t{1} << (bits - 1);
  const uint64_t all = top | (top - 1);
  if (!IsFloat(part)) return {0, 1, 2, 3, top - 1, top, top + 1, all - 1, all};
  std::vector<uint64_t> codes;
  const uint64_t one = ReferenceEncode(part, 1.0);
  const uint64_t infinity = ReferenceEncode(part, INFINITY);            // NaN in f8e4m3
  const uint64_t hidden = uint64_t{1} << FormatOf(part).mantissa_bits;  // the smallest normal
  const uint64_t quiet = hidden >> 1;
  for (uint64_t code :
       {uint64_t{0}, uint64_t{1}, uint64_t{2}, hidden - 1, hidden, hidden + 1, one - 1, one, one + 1, infinity - 2,
        infinity - 1, infinity, infinity + 1, infinity + 2, infinity | quiet, infinity | quiet | 1, top - 1}) {
    codes.push_back(code & (top - 1));
    codes.push_back((code & (top - 1)) | top);
  }
  return codes;
}

std::vector<uint8_t> TestElements(DType dtype, size_t count, std::mt19937_64& random) {
  const DType part = RealOf(dtype);
  const size_t part_bytes = SizeOf(part);
  const std::vector<uint64_t> special = SpecialCodes(dtype);
  std::vector<uint8_t> elements(count * SizeOf(dtype));
  for (size_t i = 0; i < elements.size() / part_bytes; ++i) {
    const uint64_t bits = random();
    uint64_t code = 0;
    switch (random() % 4) {
      case 0:
        code = special[bits % special.size()];
        break;
      case 1:
        code = bits;
        break;
      default:
        // Uniform in [-8, 8), or small whole numbers.
        code =
            IsFloat(part) ? ReferenceEncode(part, (static_cast<double>(bits >> 11) * 0x1p-53 - 0.5) * 16) : bits % 16;
    }
    PutCode(elements, i, part_bytes, code);
  }
  return elements;
}

void PutCode(std::vector<uint8_t>& array, size_t index, size_t bytes, uint64_t code) {
  std::memcpy(array.data() + index * bytes, &code, bytes);
}

GuardedBytes::GuardedBytes(size_t bytes, size_t offset)
    : bytes_(bytes),
      storage_(bytes + offset + 2 * kGuard + 64, kPattern),
      data_(AlignedBegin(storage_, kGuard, offset)) {}

void GuardedBytes::Fill(const uint8_t* source) {
  if (bytes_ != 0) std::memcpy(data_, source, bytes_);
}

bool GuardedBytes::GuardsIntact() const {
  const auto is_pattern = [](uint8_t byte) { return byte == kPattern; };
  const uint8_t* const begin = storage_.data();
  return std::all_of(begin, static_cast<const uint8_t*>(data_), is_pattern) &&
         std::all_of(static_cast<const uint8_t*>(data_) + bytes_, begin + storage_.size(), is_pattern);
}

}  // namespace lockstep::kernels

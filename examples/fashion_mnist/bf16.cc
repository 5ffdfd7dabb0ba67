#include "examples/fashion_mnist/bf16.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fashion_mnist {
namespace {

float Round(float value) {
  if (value != value) return value;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

}  // namespace

void RoundToBf16(const std::vector<float>& source, std::vector<float>* target) {
  for (size_t i = 0; i < source.size(); ++i) (*target)[i] = Round(source[i]);
}

}  // namespace fashion_mnist

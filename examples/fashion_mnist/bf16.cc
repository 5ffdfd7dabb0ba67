#include "examples/fashion_mnist/bf16.h"

#include <cstring>

namespace fashion_mnist {

uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value)
    return static_cast<uint16_t>((bits >> 16) | 0x40);  // a NaN whose payload is cut off must not be infinite
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromBf16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

void ToBf16(const std::vector<float>& source, std::vector<uint16_t>* target) {
  for (size_t i = 0; i < source.size(); ++i) (*target)[i] = ToBf16(source[i]);
}

void RoundToBf16(const std::vector<float>& source, std::vector<float>* target) {
  for (size_t i = 0; i < source.size(); ++i) (*target)[i] = FromBf16(ToBf16(source[i]));
}

}  // namespace fashion_mnist

// target[i] = source[i] * factor, and the integer division that an integer average ends with.
// See lanes_inl.h for who includes this and why everything is internal.

#ifndef KERNELS_CPU_SCALE_INL_H_
#define KERNELS_CPU_SCALE_INL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/lanes_inl.h"
#include "kernels/cpu/narrow_inl.h"

namespace lockstep {
namespace kernels {
namespace {

// float or double, the factor rounded to it.
template <typename T>
struct FloatScaleKernel {
  using Factor = T;
  static constexpr size_t kSourceBytes = sizeof(T);
  static constexpr size_t kTargetBytes = sizeof(T);
  static constexpr size_t kStep = kVectorBytes / sizeof(T);

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, T factor) {
    Store(target, Canonical<T>(Load<T>(source) * factor));
  }
};

// A format of narrow_inl.h, in float32.
template <typename Format>
struct NarrowScaleKernel {
  using Factor = float;
  static constexpr size_t kSourceBytes = Format::kBytes;
  static constexpr size_t kTargetBytes = Format::kBytes;
  static constexpr size_t kStep = Format::kStep;

  static LOCKSTEP_LANES_INLINE void Step(uint8_t* target, const uint8_t* source, float factor) {
    auto parts = Format::LoadParts(source);
    for (int p = 0; p < Format::kParts; ++p) parts.part[p] *= factor;
    Format::StoreParts(target, parts);
  }
};

template <typename Kernel>
void ScaleAll(void* target, const void* source, size_t count, double factor) {
  ForEachScaled<Kernel>(target, source, count, factor);
}

// Both components of a complex number.
template <typename T>
void ScaleComplex(void* target, const void* source, size_t count, double factor) {
  ForEachScaled<FloatScaleKernel<T>>(target, source, 2 * count, factor);
}

// Up to 32 bits, through double: exact operands, and a quotient that is not whole is at least 1 / divisor away from the
// next whole number, farther than rounding reaches. A divisor beyond T's range leaves zeros, as it should.
template <typename T>
void DivideSmall(void* data, size_t count, int64_t divisor) {
  auto* bytes = static_cast<uint8_t*>(data);
  const auto by = static_cast<double>(divisor);
  for (size_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    value = static_cast<T>(static_cast<double>(value) / by);
    __builtin_memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
}

// The divisor is positive, so the one overflow of integer division cannot happen.
template <typename T>
void DivideWide(void* data, size_t count, int64_t divisor) {
  auto* bytes = static_cast<uint8_t*>(data);
  const auto by = static_cast<T>(divisor);
  for (size_t i = 0; i < count; ++i) {
    T value;
    __builtin_memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    value /= by;
    __builtin_memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_SCALE_INL_H_

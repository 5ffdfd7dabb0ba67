// Element types of tensors: the rows of base/types/dtypes.inc.

#ifndef BASE_TYPES_DTYPE_H_
#define BASE_TYPES_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

enum class DType : uint8_t {
#define LOCKSTEP_DTYPE(number, id, name, Kind) k##id = number,
#include "base/types/dtypes.inc"
};

// All of them, and those of some kinds, by number.
inline constexpr DType kAllDTypes[] = {
#define LOCKSTEP_DTYPE(number, id, name, Kind) DType::k##id,
#include "base/types/dtypes.inc"
};
inline constexpr int kDTypeCount = sizeof(kAllDTypes) / sizeof(DType);
inline constexpr DType kNarrowDTypes[] = {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) DType::k##id,
#include "base/types/dtypes.inc"
};
inline constexpr DType kFloatDTypes[] = {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) DType::k##id,
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
};
// What gradients may be.
inline constexpr DType kFloatAndComplexDTypes[] = {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) DType::k##id,
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#define LOCKSTEP_DTYPE_COMPLEX(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#include "base/types/dtypes.inc"
};

bool IsValid(DType dtype);

// Bytes of one element; 0 for a value that is no dtype.
size_t SizeOf(DType dtype);

// "f32", "bf16", "complex64", ...; "dtype(200)" for a value that is no dtype.
std::string Name(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);

bool IsFloat(DType dtype);    // f16, bf16, f32, f64, f8e4m3, f8e5m2
bool IsInteger(DType dtype);  // u8, i8, i32, u32, i64, u64
bool IsComplex(DType dtype);  // complex64, complex128

// The dtype of a complex dtype's parts, f32 or f64. Any other dtype itself.
DType RealOf(DType dtype);

// How a float is stored; from the top bit: sign, exponent, mantissa. With has_infinity, codes with an all-ones exponent
// are infinity and NaNs, as in IEEE 754. Without it, only the all-ones code is a NaN.
struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  bool has_infinity = true;

  constexpr int bits() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr uint64_t sign() const { return uint64_t{1} << (exponent_bits + mantissa_bits); }
  constexpr uint64_t all_ones_exponent() const { return sign() - (uint64_t{1} << mantissa_bits); }
  // The canonical NaN: positive, quiet and without a payload.
  constexpr uint64_t nan() const {
    return has_infinity ? all_ones_exponent() + (uint64_t{1} << (mantissa_bits - 1)) : sign() - 1;
  }
  // The first code after the largest finite one: infinity, or NaN if the format has no infinity.
  constexpr uint64_t overflow() const { return has_infinity ? all_ones_exponent() : nan(); }
  // All whole numbers from 0 to this have a code.
  constexpr int64_t whole_max() const { return int64_t{2} << mantissa_bits; }
};

// REQUIRES  a float dtype
constexpr FloatFormat FormatOf(DType dtype) {
  switch (dtype) {
#define LOCKSTEP_DTYPE_NARROW(number, id, name, Type, exponent_bits, mantissa_bits, has_infinity, dlpack) \
  case DType::k##id:                                                                                      \
    return {exponent_bits, mantissa_bits, has_infinity};
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#define LOCKSTEP_DTYPE(number, id, name, Kind) \
  case DType::k##id:                           \
    break;
#include "base/types/dtypes.inc"
  }
  return {};
}

}  // namespace lockstep

#endif  // BASE_TYPES_DTYPE_H_

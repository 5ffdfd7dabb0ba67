// Element types of tensors. The numbers are part of the wire format and of the C ABI: append, never reorder.

#ifndef BASE_TYPES_DTYPE_H_
#define BASE_TYPES_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

enum class DType : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kI32 = 3,
  kU32 = 4,
  kI64 = 5,
  kU64 = 6,
  kF16 = 7,
  kBF16 = 8,
  kF32 = 9,
  kF64 = 10,
  kF8E4M3 = 11,  // OCP 8-bit float E4M3 (finite and NaN, no infinity)
  kF8E5M2 = 12,  // OCP 8-bit float E5M2
  kComplex64 = 13,
  kComplex128 = 14,
};

inline constexpr int kDTypeCount = 15;
inline constexpr DType kAllDTypes[kDTypeCount] = {DType::kBool,   DType::kU8,        DType::kI8,        DType::kI32,
                                                  DType::kU32,    DType::kI64,       DType::kU64,       DType::kF16,
                                                  DType::kBF16,   DType::kF32,       DType::kF64,       DType::kF8E4M3,
                                                  DType::kF8E5M2, DType::kComplex64, DType::kComplex128};

bool IsValid(DType dtype);

// Bytes of one element; 0 for a value that is no dtype.
size_t SizeOf(DType dtype);

// "f32", "bf16", "complex64", ...; "dtype(200)" for a value that is no dtype.
std::string Name(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);

bool IsFloat(DType dtype);    // f16, bf16, f32, f64, f8e4m3, f8e5m2
bool IsInteger(DType dtype);  // u8, i8, i32, u32, i64, u64
bool IsComplex(DType dtype);  // complex64, complex128

// Of a complex dtype that of its parts, f32 or f64; others stay what they are.
DType RealOf(DType dtype);

}  // namespace lockstep

#endif  // BASE_TYPES_DTYPE_H_

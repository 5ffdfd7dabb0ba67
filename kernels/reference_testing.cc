#include "kernels/reference_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace lockstep::kernels {
namespace {

template <typename T>
T LoadAt(const void* array, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(void* array, size_t index, T value) {
  std::memcpy(static_cast<char*>(array) + index * sizeof(T), &value, sizeof(T));
}

double LoadFloatAt(DType dtype, const void* array, size_t index) {
  uint64_t code = 0;
  std::memcpy(&code, static_cast<const char*>(array) + index * SizeOf(dtype), SizeOf(dtype));
  return ReferenceDecode(dtype, code);
}

void StoreFloatAt(DType dtype, void* array, size_t index, double value) {
  const uint64_t code = ReferenceEncode(dtype, value);
  std::memcpy(static_cast<char*>(array) + index * SizeOf(dtype), &code, SizeOf(dtype));
}

double RoundToFloat32(double value) { return static_cast<float>(value); }

double Minimum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

double Maximum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return NAN;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// The exact sum or product of two float32 values rounded to double and then to float32 is what one rounding gives: a
// product fits double, and for a sum 53 bits are more than twice 24 and two.
double CombineFloat(DType dtype, ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
      return dtype == DType::kF64 ? a + b : RoundToFloat32(a + b);
    case ReduceOp::kProd:
      return dtype == DType::kF64 ? a * b : RoundToFloat32(a * b);
    case ReduceOp::kMin:
      return Minimum(a, b);
    case ReduceOp::kMax:
      return Maximum(a, b);
    default:
      break;
  }
  LOCKSTEP_CHECK(false) << Name(op) << " of floats";
  return 0;
}

template <typename T>
T CombineInteger(ReduceOp op, T a, T b) {
  // 64 bits, unsigned: wraps around without undefined behaviour, and the low bits are those of any narrower type.
  const auto wide_a = static_cast<uint64_t>(a);
  const auto wide_b = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(wide_a + wide_b);
    case ReduceOp::kProd:
      return static_cast<T>(wide_a * wide_b);
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kAnd:
      return static_cast<T>(a & b);
    case ReduceOp::kOr:
      return static_cast<T>(a | b);
    case ReduceOp::kXor:
      return static_cast<T>(a ^ b);
    default:
      break;
  }
  LOCKSTEP_CHECK(false) << Name(op) << " of integers";
  return 0;
}

bool CombineBool(ReduceOp op, bool a, bool b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kOr:
      return a || b;
    case ReduceOp::kProd:
    case ReduceOp::kMin:
    case ReduceOp::kAnd:
      return a && b;
    case ReduceOp::kXor:
      return a != b;
    default:
      break;
  }
  LOCKSTEP_CHECK(false) << Name(op) << " of bool";
  return false;
}

void CombineComplexAt(DType part, ReduceOp op, void* target, const void* left, const void* right, size_t index) {
  const double a = LoadFloatAt(part, left, 2 * index);
  const double b = LoadFloatAt(part, left, 2 * index + 1);
  const double c = LoadFloatAt(part, right, 2 * index);
  const double d = LoadFloatAt(part, right, 2 * index + 1);
  double real = 0;
  double imaginary = 0;
  if (op == ReduceOp::kSum) {
    real = CombineFloat(part, op, a, c);
    imaginary = CombineFloat(part, op, b, d);
  } else {
    const auto times = [part](double x, double y) { return CombineFloat(part, ReduceOp::kProd, x, y); };
    real = CombineFloat(part, ReduceOp::kSum, times(a, c), -times(b, d));
    imaginary = CombineFloat(part, ReduceOp::kSum, times(a, d), times(b, c));
  }
  StoreFloatAt(part, target, 2 * index, real);
  StoreFloatAt(part, target, 2 * index + 1, imaginary);
}

// Calls visit with a value of the dtype's C++ type.
template <typename Visitor>
void VisitInteger(DType dtype, Visitor visit) {
  switch (dtype) {
#define LOCKSTEP_DTYPE_INTEGER(number, id, name, Type) \
  case DType::k##id:                                   \
    return visit(Type{});
#define LOCKSTEP_DTYPE(number, id, name, Kind) \
  case DType::k##id:                           \
    break;
#include "base/types/dtypes.inc"
  }
  LOCKSTEP_CHECK(false) << Name(dtype) << " is no integer";
}

}  // namespace

double ReferenceDecode(DType dtype, uint64_t code) {
  LOCKSTEP_CHECK(IsFloat(dtype)) << Name(dtype) << " is no float";
  const FloatFormat format = FormatOf(dtype);
  const uint64_t all_ones = format.all_ones_exponent() >> format.mantissa_bits;
  const uint64_t exponent = code >> format.mantissa_bits & all_ones;
  const uint64_t mantissa = code & ((uint64_t{1} << format.mantissa_bits) - 1);
  const double sign = (code & format.sign()) != 0 ? -1.0 : 1.0;
  if (format.has_infinity && exponent == all_ones) return mantissa == 0 ? sign * INFINITY : NAN;
  if (!format.has_infinity && (code & (format.sign() - 1)) == format.sign() - 1) return NAN;
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<double>(mantissa), 1 - format.bias() - format.mantissa_bits);
  }
  const uint64_t significand = mantissa + (uint64_t{1} << format.mantissa_bits);
  return sign * std::ldexp(static_cast<double>(significand),
                           static_cast<int>(exponent) - format.bias() - format.mantissa_bits);
}

uint64_t ReferenceEncode(DType dtype, double value) {
  LOCKSTEP_CHECK(IsFloat(dtype)) << Name(dtype) << " is no float";
  const FloatFormat format = FormatOf(dtype);
  if (std::isnan(value)) return format.nan();
  const uint64_t sign = std::signbit(value) ? format.sign() : 0;
  const uint64_t overflow = format.has_infinity ? sign | format.overflow() : format.nan();
  if (std::isinf(value)) return overflow;

  // The value in units of the last place that its binade has in the format; subnormals share the lowest binade's.
  const double magnitude = std::fabs(value);
  const int lowest = 1 - format.bias();
  const int exponent = magnitude == 0 ? lowest : std::max(std::ilogb(magnitude), lowest);
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Codes are consecutive: a mantissa that rounds up to the next power of two carries into the exponent. `units`
  // includes the implicit bit, which is the one that is taken off the exponent.
  const uint64_t binade = static_cast<uint64_t>(exponent + format.bias() - 1) << format.mantissa_bits;
  const uint64_t code = binade + static_cast<uint64_t>(units);
  return code >= format.overflow() ? overflow : sign | code;
}

void ReferenceCombine(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (dtype == DType::kBool) {
      const bool a = LoadAt<uint8_t>(left, i) != 0;
      const bool b = LoadAt<uint8_t>(right, i) != 0;
      StoreAt<uint8_t>(target, i, CombineBool(op, a, b) ? 1 : 0);
    } else if (IsFloat(dtype)) {
      const double a = LoadFloatAt(dtype, left, i);
      const double b = LoadFloatAt(dtype, right, i);
      StoreFloatAt(dtype, target, i, CombineFloat(dtype, op, a, b));
    } else if (IsComplex(dtype)) {
      CombineComplexAt(RealOf(dtype), op, target, left, right, i);
    } else {
      VisitInteger(dtype, [&](auto zero) {
        using T = decltype(zero);
        StoreAt<T>(target, i, CombineInteger<T>(op, LoadAt<T>(left, i), LoadAt<T>(right, i)));
      });
    }
  }
}

void ReferenceReduceMany(DType dtype, ReduceOp op, void* target, const void* const* sources, size_t source_count,
                         size_t count) {
  const size_t size = SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) {
    char folded[16];
    std::memcpy(folded, static_cast<const char*>(sources[0]) + i * size, size);
    if (IsFloat(dtype) && source_count > 1) {
      double value = LoadFloatAt(dtype, sources[0], i);
      for (size_t s = 1; s < source_count; ++s)
        value = CombineFloat(dtype, op, value, LoadFloatAt(dtype, sources[s], i));
      StoreFloatAt(dtype, folded, 0, value);
    } else {
      for (size_t s = 1; s < source_count; ++s) {
        ReferenceCombine(dtype, op, folded, folded, static_cast<const char*>(sources[s]) + i * size, 1);
      }
    }
    std::memcpy(static_cast<char*>(target) + i * size, folded, size);
  }
}

void ReferenceScale(DType dtype, void* target, const void* source, size_t count, double factor) {
  if (IsComplex(dtype)) return ReferenceCast(RealOf(dtype), target, RealOf(dtype), source, 2 * count, factor);
  ReferenceCast(dtype, target, dtype, source, count, factor);
}

void ReferenceDivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor) {
  VisitInteger(dtype, [&](auto zero) {
    using T = decltype(zero);
    // A type that holds every T and every divisor.
    using Wide = __int128;
    for (size_t i = 0; i < count; ++i) {
      StoreAt<T>(data, i, static_cast<T>(static_cast<Wide>(LoadAt<T>(data, i)) / static_cast<Wide>(divisor)));
    }
  });
}

void ReferenceCast(DType to, void* target, DType from, const void* source, size_t count, double factor) {
  const bool in_double = to == DType::kF64 || from == DType::kF64;
  const double rounded_factor = in_double ? factor : RoundToFloat32(factor);
  for (size_t i = 0; i < count; ++i) {
    const double product = LoadFloatAt(from, source, i) * rounded_factor;
    StoreFloatAt(to, target, i, in_double ? product : RoundToFloat32(product));
  }
}

}  // namespace lockstep::kernels

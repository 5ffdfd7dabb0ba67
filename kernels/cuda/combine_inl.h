// How two elements become one, for every dtype and operation: kernels/cpu/combine_inl.h one element at a time, to the
// bit. See execution_inl.h for who includes this.
//
// A combination offers
//   Bits                  an element in memory
//   Value                 what it is while elements are being combined; may hold more than memory does
//   Read, Apply, Write    from memory; two into one; to memory, rounded once
// Complex sums are sums of twice as many reals.

#ifndef KERNELS_CUDA_COMBINE_INL_H_
#define KERNELS_CUDA_COMBINE_INL_H_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/execution_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

struct Add {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a + b;
  }
};
struct Multiply {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a * b;
  }
};
struct Lesser {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a < b ? a : b;
  }
};
struct Greater {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a > b ? a : b;
  }
};
struct And {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  static LOCKSTEP_BODY T Apply(T a, T b) {
    return a ^ b;
  }
};

// Computed in at least 32 bits. Sums and products take the unsigned type of their size, which wraps around; min and max
// the real one.
template <typename T, typename Op>
struct CombineIntegers {
  using Bits = T;
  using Value = std::conditional_t<sizeof(T) < 4, std::conditional_t<std::is_signed<T>::value, int32_t, uint32_t>, T>;
  static LOCKSTEP_BODY Value Read(Bits bits) { return bits; }
  static LOCKSTEP_BODY Value Apply(Value a, Value b) { return Op::Apply(a, b); }
  static LOCKSTEP_BODY Bits Write(Value value) { return static_cast<Bits>(value); }
};

// Any value but 0 is true and the result is 0 or 1.
template <typename Op>
struct CombineBools {
  using Bits = uint8_t;
  using Value = uint32_t;
  static LOCKSTEP_BODY Value Read(Bits bits) { return bits != 0 ? 1 : 0; }
  static LOCKSTEP_BODY Value Apply(Value a, Value b) { return Op::Apply(a, b); }
  static LOCKSTEP_BODY Bits Write(Value value) { return static_cast<Bits>(value); }
};

// Sum or product: of formats narrower than float in float, rounded once.
template <typename Format, typename Op>
struct CombineFloats {
  using Bits = typename Format::Bits;
  using Value = typename Format::Wide;
  static LOCKSTEP_BODY Value Read(Bits bits) { return Format::Decode(bits); }
  static LOCKSTEP_BODY Value Apply(Value a, Value b) { return Op::Apply(a, b); }
  static LOCKSTEP_BODY Bits Write(Value value) { return Format::Encode(value); }
};

// The same of sources that are scaled first, each rounded as a scaling would have left it in memory.
template <typename Format>
struct SumScaled : CombineFloats<Format, Add> {
  static LOCKSTEP_BODY typename Format::Wide Read(typename Format::Bits bits, typename Format::Wide factor) {
    return Format::Decode(Conversion<Format, Format>::Apply(bits, factor));
  }
};

// IEEE 754-2019 minimum and maximum on the codes: with the magnitude of negative numbers inverted they order as signed
// integers, -0 right below +0. NaN propagates, so a NaN's key is the extreme that wins.
template <typename Format, typename Op>
struct OrderFloats {
  using Bits = typename Format::Bits;
  using Value = std::conditional_t<sizeof(Bits) == 8, int64_t, int32_t>;
  static constexpr bool kLesser = std::is_same<Op, Lesser>::value;
  static constexpr Value kNan =
      kLesser ? (sizeof(Bits) == 8 ? INT64_MIN : INT32_MIN) : (sizeof(Bits) == 8 ? INT64_MAX : INT32_MAX);
  static LOCKSTEP_BODY Value Read(Bits bits) {
    const Bits magnitude = bits & Format::kMagnitude;
    if (magnitude >= Format::kSmallestNan) return kNan;
    return bits == magnitude ? static_cast<Value>(magnitude) : ~static_cast<Value>(magnitude);
  }
  static LOCKSTEP_BODY Value Apply(Value a, Value b) { return Op::Apply(a, b); }
  static LOCKSTEP_BODY Bits Write(Value value) {
    constexpr Bits kSign = static_cast<Bits>(~Format::kMagnitude);
    if (value == kNan) return Format::Encode(__builtin_nanf(""));
    return value >= 0 ? static_cast<Bits>(value) : static_cast<Bits>(~value) | kSign;
  }
};

template <typename T>
struct ComplexBits {
  T real;
  T imaginary;
};

// (a + bi)(c + di) = (ac - bd) + (ad + bc)i, each product and sum rounded.
template <typename Format>
struct MultiplyComplex {
  using Wide = typename Format::Wide;
  using Bits = ComplexBits<typename Format::Bits>;
  using Value = ComplexBits<Wide>;
  static LOCKSTEP_BODY Value Read(Bits bits) { return {Format::Decode(bits.real), Format::Decode(bits.imaginary)}; }
  static LOCKSTEP_BODY Value Apply(Value a, Value b) {
    return {a.real * b.real - a.imaginary * b.imaginary, a.real * b.imaginary + a.imaginary * b.real};
  }
  static LOCKSTEP_BODY Bits Write(Value value) { return {Format::Encode(value.real), Format::Encode(value.imaginary)}; }
};

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_COMBINE_INL_H_

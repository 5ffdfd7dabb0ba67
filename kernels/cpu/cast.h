// On the CPU: conversion between float formats with a factor, multiplication by a factor, and division of integers. NaN and
// rounding as in kernels/cpu/reduce.h.

#ifndef KERNELS_CPU_CAST_H_
#define KERNELS_CPU_CAST_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/types/dtype.h"

namespace lockstep::kernels {

// target[i] = to(source[i] * factor). The product is computed in float32 (with the factor rounded to float32), or in
// double if either side is f64. It is rounded once, to nearest even: f64 becomes f16 without a step in float32.
// Overflow becomes infinity, or NaN in f8e4m3, which has none.
//
// From a dtype to itself: a factor of 1 copies the bytes, NaN payloads and all; another factor is Scale.
// `target` may equal `source` exactly if the elements have one size, and overlaps it in no other way. Pointers need no
// alignment beyond a byte. INVALID_ARGUMENT for what CheckCast refuses.
absl::Status CastScaled(DType to, void* target, DType from, const void* source, size_t count, double factor);

// Whether CastScaled can: INVALID_ARGUMENT between different dtypes that are not both floats, and for a factor other
// than 1 on integers and bool.
absl::Status CheckCast(DType to, DType from, double factor);

// target[i] = source[i] * factor. `target` may equal `source` exactly and overlaps it in no other way; pointers need no
// alignment beyond a byte.
//
// f32 and narrower multiply in float32 by the factor rounded to it, then round to the dtype; f64 in double; complex
// numbers component by component, in float32 and double. INVALID_ARGUMENT for integers (see DivideTowardZero) and bool.
absl::Status Scale(DType dtype, void* target, const void* source, size_t count, double factor);

// data[i] = data[i] / divisor, rounded toward zero: how an integer average ends. INVALID_ARGUMENT when the dtype is no
// integer or the divisor is not positive.
absl::Status DivideTowardZero(DType dtype, void* data, size_t count, int64_t divisor);

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_CAST_H_

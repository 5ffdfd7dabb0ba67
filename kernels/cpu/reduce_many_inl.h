// targets[t][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., written to every target in the same pass, with
// the kernels of combine_inl.h. See lanes_inl.h for who includes this and why everything is internal.
//
// All sources are walked side by side, a few vectors of each at a time, so the sum never leaves the registers. Folding
// block by block instead, with the sum in first-level cache, is no faster before there are more sources than the
// processor's prefetchers follow (16 and up, by 1.2 at most), and slower below.

#ifndef KERNELS_CPU_REDUCE_MANY_INL_H_
#define KERNELS_CPU_REDUCE_MANY_INL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/lanes_inl.h"

namespace lockstep {
namespace kernels {
namespace {

// Reads kSteps steps of every source, then writes as many of every target. Several steps at once, because one alone
// would wait for each addition before the next, and pay for the loops over the pointers every time.
template <typename Kernel, int kSteps>
LOCKSTEP_LANES_INLINE void ReduceSteps(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                       size_t source_count, size_t offset) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  typename Kernel::Values values[kSteps];
  LOCKSTEP_LANES_UNROLL
  for (int i = 0; i < kSteps; ++i) values[i] = Kernel::Read(sources[0] + offset + i * kStepBytes);
  for (size_t s = 1; s < source_count; ++s) {
    const uint8_t* const source = sources[s] + offset;
    LOCKSTEP_LANES_UNROLL
    for (int i = 0; i < kSteps; ++i) values[i] = Kernel::Apply(values[i], Kernel::Read(source + i * kStepBytes));
  }
  for (size_t t = 0; t < target_count; ++t) {
    uint8_t* const target = targets[t] + offset;
    LOCKSTEP_LANES_UNROLL
    for (int i = 0; i < kSteps; ++i) Kernel::Write(target + i * kStepBytes, values[i]);
  }
}

// As memcpy, without the call where there are so few bytes as in a loss or two.
LOCKSTEP_LANES_INLINE void CopyRest(uint8_t* target, const uint8_t* source, size_t bytes) {
  switch (bytes) {
    case 4:
      __builtin_memcpy(target, source, 4);
      break;
    case 8:
      __builtin_memcpy(target, source, 8);
      break;
    default:
      __builtin_memcpy(target, source, bytes);
  }
}

// The last, partial step: on copies, so that nothing beyond the arrays is touched.
template <typename Kernel>
LOCKSTEP_LANES_INLINE void ReduceRest(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                      size_t source_count, size_t offset, size_t rest) {
  uint8_t piece[Kernel::kStep * Kernel::kElementBytes] = {};
  CopyRest(piece, sources[0] + offset, rest);
  auto values = Kernel::Read(piece);
  for (size_t s = 1; s < source_count; ++s) {
    CopyRest(piece, sources[s] + offset, rest);
    values = Kernel::Apply(values, Kernel::Read(piece));
  }
  Kernel::Write(piece, values);
  for (size_t t = 0; t < target_count; ++t) CopyRest(targets[t] + offset, piece, rest);
}

template <typename Kernel>
void ReduceMany(void* const* targets, size_t target_count, const void* const* sources, size_t source_count,
                size_t count) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  // A narrow format's step is several vectors already.
  constexpr int kSteps = sizeof(typename Kernel::Values) > 2 * kVectorBytes ? 1 : 4;
  auto* const* t = reinterpret_cast<uint8_t* const*>(targets);
  auto* const* s = reinterpret_cast<const uint8_t* const*>(sources);
  const size_t bytes = count * Kernel::kElementBytes;
  if (source_count == 1) {
    // No arithmetic: the bits as they are.
    for (size_t i = 0; i < target_count; ++i) {
      if (bytes > 0 && t[i] != s[0]) __builtin_memcpy(t[i], s[0], bytes);
    }
    return;
  }
  size_t offset = 0;
  for (; bytes - offset >= kSteps * kStepBytes; offset += kSteps * kStepBytes) {
    ReduceSteps<Kernel, kSteps>(t, target_count, s, source_count, offset);
  }
  for (; bytes - offset >= kStepBytes; offset += kStepBytes) {
    ReduceSteps<Kernel, 1>(t, target_count, s, source_count, offset);
  }
  if (offset < bytes) ReduceRest<Kernel>(t, target_count, s, source_count, offset, bytes - offset);
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_REDUCE_MANY_INL_H_

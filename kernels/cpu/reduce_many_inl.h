// targets[t][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ..., written to every target in the same pass, with
// the kernels of combine_inl.h, of the sources as they are or scaled with those of scale_inl.h as they are read. See
// lanes_inl.h for who includes this and why everything is internal.
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

// How a step of a source becomes values: as it is,
template <typename Kernel>
struct PlainReader {
  LOCKSTEP_LANES_INLINE typename Kernel::Values operator()(const uint8_t* source) const { return Kernel::Read(source); }
};

// or as a scaling would have left it in memory, which it does not reach: the compilers keep `scaled` in registers.
template <typename Kernel, typename Scaling>
struct ScalingReader {
  static constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  static_assert(kStepBytes == Scaling::kStep * Scaling::kSourceBytes, "one step of the one is one of the other");

  LOCKSTEP_LANES_INLINE typename Kernel::Values operator()(const uint8_t* source) const {
    uint8_t scaled[kStepBytes];
    Scaling::Step(scaled, source, factor);
    return Kernel::Read(scaled);
  }

  typename Scaling::Factor factor;
};

// Reads kSteps steps of every source, then writes as many of every target. Several steps at once, because one alone
// would wait for each addition before the next, and pay for the loops over the pointers every time.
template <typename Kernel, int kSteps, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceSteps(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                       size_t source_count, size_t offset, const Reader& read) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  typename Kernel::Values values[kSteps];
  LOCKSTEP_LANES_UNROLL
  for (int i = 0; i < kSteps; ++i) values[i] = read(sources[0] + offset + i * kStepBytes);
  for (size_t s = 1; s < source_count; ++s) {
    const uint8_t* const source = sources[s] + offset;
    LOCKSTEP_LANES_UNROLL
    for (int i = 0; i < kSteps; ++i) values[i] = Kernel::Apply(values[i], read(source + i * kStepBytes));
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
template <typename Kernel, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceRest(uint8_t* const* targets, size_t target_count, const uint8_t* const* sources,
                                      size_t source_count, size_t offset, size_t rest, const Reader& read) {
  uint8_t piece[Kernel::kStep * Kernel::kElementBytes] = {};
  CopyRest(piece, sources[0] + offset, rest);
  auto values = read(piece);
  for (size_t s = 1; s < source_count; ++s) {
    CopyRest(piece, sources[s] + offset, rest);
    values = Kernel::Apply(values, read(piece));
  }
  Kernel::Write(piece, values);
  for (size_t t = 0; t < target_count; ++t) CopyRest(targets[t] + offset, piece, rest);
}

template <typename Kernel, typename Reader>
LOCKSTEP_LANES_INLINE void ReduceAll(void* const* targets, size_t target_count, const void* const* sources,
                                     size_t source_count, size_t count, const Reader& read) {
  constexpr size_t kStepBytes = Kernel::kStep * Kernel::kElementBytes;
  // A narrow format's step is several vectors already.
  constexpr int kSteps = sizeof(typename Kernel::Values) > 2 * kVectorBytes ? 1 : 4;
  auto* const* t = reinterpret_cast<uint8_t* const*>(targets);
  auto* const* s = reinterpret_cast<const uint8_t* const*>(sources);
  const size_t bytes = count * Kernel::kElementBytes;
  size_t offset = 0;
  for (; bytes - offset >= kSteps * kStepBytes; offset += kSteps * kStepBytes) {
    ReduceSteps<Kernel, kSteps>(t, target_count, s, source_count, offset, read);
  }
  for (; bytes - offset >= kStepBytes; offset += kStepBytes) {
    ReduceSteps<Kernel, 1>(t, target_count, s, source_count, offset, read);
  }
  if (offset < bytes) ReduceRest<Kernel>(t, target_count, s, source_count, offset, bytes - offset, read);
}

template <typename Kernel>
void ReduceMany(void* const* targets, size_t target_count, const void* const* sources, size_t source_count,
                size_t count) {
  if (source_count == 1) {
    // No arithmetic: the bits as they are.
    const size_t bytes = count * Kernel::kElementBytes;
    for (size_t i = 0; i < target_count; ++i) {
      if (bytes > 0 && targets[i] != sources[0]) __builtin_memcpy(targets[i], sources[0], bytes);
    }
    return;
  }
  ReduceAll<Kernel>(targets, target_count, sources, source_count, count, PlainReader<Kernel>());
}

template <typename Kernel, typename Scaling>
void SumScaled(void* const* targets, size_t target_count, const void* const* sources, size_t source_count, size_t count,
               double factor) {
  const ScalingReader<Kernel, Scaling> read = {static_cast<typename Scaling::Factor>(factor)};
  ReduceAll<Kernel>(targets, target_count, sources, source_count, count, read);
}

}  // namespace
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_REDUCE_MANY_INL_H_

// Copying between blocks and contiguous memory. See lanes_inl.h for who includes this.

#ifndef KERNELS_CPU_BLOCKS_INL_H_
#define KERNELS_CPU_BLOCKS_INL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/lanes_inl.h"

namespace lockstep::kernels {
namespace {

// From here on a call of memcpy costs less than what it saves.
inline constexpr size_t kCalledBytesMin = 512;

template <size_t kBytes>
LOCKSTEP_LANES_INLINE void Move(char* target, const char* source) {
  Store(target, Load<uint8_t, kBytes>(source));
}

// Vectors of `kBytes`, the last of which may overlap the one before.
template <size_t kBytes>
LOCKSTEP_LANES_INLINE void MoveBy(char* target, const char* source, size_t bytes) {
  for (size_t at = 0; at + kBytes < bytes; at += kBytes) Move<kBytes>(target + at, source + at);
  Move<kBytes>(target + bytes - kBytes, source + bytes - kBytes);
}

LOCKSTEP_LANES_INLINE void CopyBlock(char* target, const char* source, size_t bytes) {
  if (bytes == kVectorBytes) return Move<kVectorBytes>(target, source);
  if (bytes >= kCalledBytesMin || bytes < 16) {
    __builtin_memcpy(target, source, bytes);
    return;
  }
  if (bytes > kVectorBytes) return MoveBy<kVectorBytes>(target, source, bytes);
  if constexpr (kVectorBytes > 32) {
    if (bytes >= 32) return MoveBy<32>(target, source, bytes);
  }
  MoveBy<16>(target, source, bytes);
}

// Calls copy(block's data, where it is in contiguous memory, bytes) for each. Short ones take about as long as reading where they lie.
template <typename Copy>
LOCKSTEP_LANES_INLINE void ForEachBlock(const Block* blocks, size_t count, Copy copy) {
  size_t begin = blocks->begin;
  const size_t first = begin;
  for (const Block* const end = blocks + count; blocks != end; ++blocks) {
    const size_t next = blocks[1].begin;
    copy(blocks->data, begin - first, next - begin);
    begin = next;
  }
}

inline void Gather(const Block* blocks, size_t count, char* flat) {
  ForEachBlock(blocks, count, [=](const char* data, size_t at, size_t bytes) { CopyBlock(flat + at, data, bytes); });
}

inline void Scatter(const Block* blocks, size_t count, const char* flat) {
  ForEachBlock(blocks, count, [=](char* data, size_t at, size_t bytes) { CopyBlock(data, flat + at, bytes); });
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_BLOCKS_INL_H_

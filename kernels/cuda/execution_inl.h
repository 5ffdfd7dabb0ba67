// What a kernel body may know of the machine that runs it: nothing but these few wrappers.
//
// A body is a function of (arguments, block, thread) that nvcc compiles for devices and any C++ compiler for the host,
// where tests run it thread by thread, block by block: indices, trailers and arithmetic are then proven without a device.
// So bodies share no memory between threads but by AddToSum, and what differs between the two is here and, for speed, in a few
// conversions of elements_inl.h.
//
// Headers named *_inl.h are included by a device_*.cu or by rig_testing.cc and nothing else; all in them is internal.

#ifndef KERNELS_CUDA_EXECUTION_INL_H_
#define KERNELS_CUDA_EXECUTION_INL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define LOCKSTEP_BODY __device__ __forceinline__
#define LOCKSTEP_UNROLL _Pragma("unroll")
#define LOCKSTEP_UNROLL_BY_4 _Pragma("unroll 4")
#else
#include "base/check.h"
#define LOCKSTEP_BODY inline
#define LOCKSTEP_UNROLL
#define LOCKSTEP_UNROLL_BY_4
#endif

namespace lockstep::kernels::cuda {
namespace {

// `kLanes` neighbouring elements, moved as one: sizeof is 1, 2, 4, 8 or 16 bytes, which is also the alignment that the
// hardware insists on (and the host checks).
template <typename Bits, int kLanes>
struct alignas(sizeof(Bits) * kLanes) Vector {
  Bits lane[kLanes];
};

#if defined(__CUDACC__)

template <size_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = unsigned char;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};
template <>
struct WordOf<4> {
  using Type = unsigned int;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};
template <>
struct WordOf<16> {
  using Type = uint4;
};

// Read once: evicted first, so that what is kept in the cache is what was written, which somebody reads next.
template <typename V>
LOCKSTEP_BODY V Load(const V* source) {
  using Word = typename WordOf<sizeof(V)>::Type;
  const Word word = __ldcs(reinterpret_cast<const Word*>(source));
  V value;
  memcpy(&value, &word, sizeof(V));
  return value;
}

template <typename V>
LOCKSTEP_BODY void Store(V* target, const V& value) {
  using Word = typename WordOf<sizeof(V)>::Type;
  Word word;
  memcpy(&word, &value, sizeof(V));
  *reinterpret_cast<Word*>(target) = word;
}

// *sum += value. All threads of the block call it: each warp adds once.
LOCKSTEP_BODY void AddToSum(uint64_t* sum, uint64_t value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(0xFFFFFFFFu, value, distance);
  if (threadIdx.x % 32 == 0) atomicAdd(reinterpret_cast<unsigned long long*>(sum), value);
}

#else

LOCKSTEP_BODY void AddToSum(uint64_t* sum, uint64_t value) { *sum += value; }

template <typename V>
LOCKSTEP_BODY void CheckAligned(const V* address) {
  LOCKSTEP_CHECK(reinterpret_cast<uintptr_t>(address) % sizeof(V) == 0) << "a device would fault at " << address;
}

template <typename V>
LOCKSTEP_BODY V Load(const V* source) {
  CheckAligned(source);
  V value;
  std::memcpy(&value, source, sizeof(V));
  return value;
}

template <typename V>
LOCKSTEP_BODY void Store(V* target, const V& value) {
  CheckAligned(target);
  std::memcpy(target, &value, sizeof(V));
}

#endif

// How many elements before `address` is a multiple of `alignment` bytes, both multiples of the element's size.
template <typename Bits>
LOCKSTEP_BODY uint32_t ElementsToAlignment(const Bits* address, uint32_t alignment) {
  const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address));
  return ((0u - low) & (alignment - 1)) / static_cast<uint32_t>(sizeof(Bits));
}

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_EXECUTION_INL_H_

// Vectors of the width that the including translation unit is compiled for.
//
// How one source becomes all variants: every *_inl.h here is included by table_scalar.cc, table_avx2.cc and the like, which
// differ in their compiler flags (and so in kVectorBytes and in the instructions that exist) and each export one
// KernelTable. On arm64 the compiler also makes NEON instructions of the scalar variant. LOCKSTEP_NEON is defined for the
// variants that use NEON's intrinsics as well.
// Everything else has internal linkage, and no function of a library is instantiated here: an inline function compiled
// with AVX-512 would otherwise be a candidate when the linker picks the one copy for the whole program.
//
// The compilers' vector extension (GCC and Clang) is used rather than auto-vectorised loops because those give up, or
// fall back to their scalar version at run time, where the target is one of the operands: our usual case. Intrinsics
// appear only where an instruction has no other spelling.

#ifndef KERNELS_CPU_LANES_INL_H_
#define KERNELS_CPU_LANES_INL_H_

#include <cstddef>
#include <cstdint>

#define LOCKSTEP_LANES_INLINE inline __attribute__((always_inline))

// Independent iterations in flight: enough to hide the latency of an addition behind the loads.
#if defined(__clang__)
#define LOCKSTEP_LANES_UNROLL _Pragma("clang loop unroll_count(4)")
#else
#define LOCKSTEP_LANES_UNROLL _Pragma("GCC unroll 4")
#endif

namespace lockstep::kernels {
namespace {

#if defined(__AVX512F__)
inline constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif

// Float32 lanes of one vector: the step of everything that computes in float32.
inline constexpr size_t kFloatLanes = kVectorBytes / sizeof(float);

template <typename T, size_t kBytes>
struct VectorType {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <typename T, size_t kBytes = kVectorBytes>
using Vec = typename VectorType<T, kBytes>::type;

using F32 = Vec<float>;
using U32 = Vec<uint32_t>;
using I32 = Vec<int32_t>;

// Memory needs no alignment beyond a byte.
template <typename T, size_t kBytes = kVectorBytes>
LOCKSTEP_LANES_INLINE Vec<T, kBytes> Load(const void* source) {
  Vec<T, kBytes> lanes;
  __builtin_memcpy(&lanes, source, sizeof(lanes));
  return lanes;
}

template <typename V>
LOCKSTEP_LANES_INLINE void Store(void* target, V lanes) {
  __builtin_memcpy(target, &lanes, sizeof(lanes));
}

// The same bits as lanes of another type; the sizes are the same.
template <typename T, typename V>
LOCKSTEP_LANES_INLINE Vec<T, sizeof(V)> As(V lanes) {
  return reinterpret_cast<Vec<T, sizeof(V)>>(lanes);
}

// Integers only.
template <typename T>
LOCKSTEP_LANES_INLINE Vec<T> Splat(T value) {
  return value + Vec<T>{};
}

// x86 makes NaNs with the sign bit set, arm64 without, and both pass payloads on by operand order, so a NaN that depends on neither the
// order nor the instruction is put in its place.
template <typename T>
LOCKSTEP_LANES_INLINE Vec<T> Canonical(Vec<T> lanes);

template <>
LOCKSTEP_LANES_INLINE Vec<float> Canonical<float>(Vec<float> lanes) {
  return lanes == lanes ? lanes : As<float>(Splat<uint32_t>(0x7FC00000));
}

template <>
LOCKSTEP_LANES_INLINE Vec<double> Canonical<double>(Vec<double> lanes) {
  return lanes == lanes ? lanes : As<double>(Splat<uint64_t>(0x7FF8000000000000));
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_LANES_INL_H_

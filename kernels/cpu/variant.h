// Which instruction set the CPU kernels use. All variants give the same bits, so this is a matter of speed alone.

#ifndef KERNELS_CPU_VARIANT_H_
#define KERNELS_CPU_VARIANT_H_

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/cpu/kernel_table.h"

namespace lockstep::kernels {

// In the order of preference: a higher one is faster. No processor has variants of both arm64 and x86-64.
enum class Variant {
  kScalar = 0,    // what the compiler makes of portable code for the baseline processor
  kNeon = 1,      // arm64: NEON, which every processor has
  kNeonFp16 = 2,  // and arithmetic on f16 (FEAT_FP16)
  kNeonBf16 = 3,  // and conversions to bf16 (FEAT_BF16)
  kAvx2 = 4,      // x86-64: AVX2 and F16C
  kAvx512 = 5,    // AVX-512 F, BW, VL and DQ
};

inline constexpr Variant kAllVariants[] = {Variant::kScalar,   Variant::kNeon, Variant::kNeonFp16,
                                           Variant::kNeonBf16, Variant::kAvx2, Variant::kAvx512};

// "scalar", "neon", "neon_fp16", "neon_bf16", "avx2", "avx512": what the environment variable LOCKSTEP_CPU takes.
const char* Name(Variant variant);

// The variant in LOCKSTEP_CPU. INVALID_ARGUMENT for another value.
absl::StatusOr<absl::optional<Variant>> VariantOfEnvironment();

// The variant that the kernels of this process use: the highest that LOCKSTEP_CPU allows and that the processor and the
// operating system (which must save the registers) support. Decided at the first call. An unknown value of the variable
// is ignored here, but creating a world fails. Thread-safe.
Variant ActiveVariant();

// The active variant's kernels.
const KernelTable& ActiveTable();

// A given variant's kernels, whatever the environment says; null if this program or the processor does not have it. For
// tests and benchmarks.
const KernelTable* TableOf(Variant variant);

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_VARIANT_H_

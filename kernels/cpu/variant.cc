#include "kernels/cpu/variant.h"

#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace lockstep::kernels {
namespace {

Variant HighestSupported() {
#if defined(__x86_64__)
  // The builtin asks XGETBV too, so a yes means that the operating system saves the registers. Not every compiler's
  // builtin knows "f16c"; its registers are AVX's.
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2")) return Variant::kScalar;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return avx512 ? Variant::kAvx512 : Variant::kAvx2;
#elif defined(__aarch64__)
  constexpr unsigned long kFp16 = HWCAP_FPHP | HWCAP_ASIMDHP;
  if ((getauxval(AT_HWCAP) & kFp16) != kFp16) return Variant::kNeon;
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) == 0 ? Variant::kNeonFp16 : Variant::kNeonBf16;
#else
  return Variant::kScalar;
#endif
}

Variant ChooseVariant() {
  const Variant supported = HighestSupported();
  const absl::StatusOr<absl::optional<Variant>> allowed = VariantOfEnvironment();
  if (!allowed.ok()) LOCKSTEP_LOG(kError) << allowed.status().message() << "; using " << Name(supported);
  if (!allowed.ok() || !allowed->has_value()) return supported;
  // One of the other architecture allows what is below it.
  Variant variant = **allowed;
  while (TableOf(variant) == nullptr) variant = static_cast<Variant>(static_cast<int>(variant) - 1);
  return variant;
}

}  // namespace

const char* Name(Variant variant) {
  static constexpr const char* kNames[] = {"scalar", "neon", "neon_fp16", "neon_bf16", "avx2", "avx512"};
  return kNames[static_cast<int>(variant)];
}

absl::StatusOr<absl::optional<Variant>> VariantOfEnvironment() {
  std::vector<const char*> names;
  for (const Variant variant : kAllVariants) names.push_back(Name(variant));
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int> index, GetEnvWord("LOCKSTEP_CPU", names));
  if (!index.has_value()) return absl::optional<Variant>();
  return absl::make_optional(kAllVariants[*index]);
}

Variant ActiveVariant() {
  static const Variant variant = ChooseVariant();
  return variant;
}

const KernelTable& ActiveTable() {
  static const KernelTable& table = *TableOf(ActiveVariant());
  return table;
}

const KernelTable* TableOf(Variant variant) {
  static const Variant supported = HighestSupported();
#if defined(__x86_64__)
  static constexpr const KernelTable* kTables[] = {&kScalarTable, nullptr,     nullptr,
                                                   nullptr,       &kAvx2Table, &kAvx512Table};
#elif defined(__aarch64__)
  static constexpr const KernelTable* kTables[] = {&kScalarTable, &kNeonTable, &kNeonFp16Table, &kNeonBf16Table};
#else
  static constexpr const KernelTable* kTables[] = {&kScalarTable};
#endif
  return variant > supported ? nullptr : kTables[static_cast<int>(variant)];
}

}  // namespace lockstep::kernels

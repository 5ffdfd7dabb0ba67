#include "kernels/cpu/variant.h"

#include <vector>

#include "base/env.h"
#include "base/log.h"
#include "base/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep {
namespace kernels {
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
#else
  return Variant::kScalar;
#endif
}

Variant ChooseVariant() {
  const Variant supported = HighestSupported();
  const absl::StatusOr<absl::optional<Variant>> allowed = VariantOfEnvironment();
  if (!allowed.ok()) LOCKSTEP_LOG(kError) << allowed.status().message() << "; using " << Name(supported);
  if (!allowed.ok() || !allowed->has_value()) return supported;
  return **allowed < supported ? **allowed : supported;
}

}  // namespace

const char* Name(Variant variant) {
  switch (variant) {
    case Variant::kScalar:
      return "scalar";
    case Variant::kAvx2:
      return "avx2";
    case Variant::kAvx512:
      return "avx512";
  }
  return "unknown";
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
  if (variant > supported) return nullptr;
  switch (variant) {
    case Variant::kScalar:
      return &kScalarTable;
#if defined(__x86_64__)
    case Variant::kAvx2:
      return &kAvx2Table;
    case Variant::kAvx512:
      return &kAvx512Table;
#else
    case Variant::kAvx2:
    case Variant::kAvx512:
      break;
#endif
  }
  return nullptr;
}

}  // namespace kernels
}  // namespace lockstep

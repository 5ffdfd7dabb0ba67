#include "transport/secure/ipsec_mb_library.h"

#include <dlfcn.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

std::string NameOf(unsigned version) {
  return absl::StrCat("ipsec-mb ", version >> 16, ".", version >> 8 & 0xff, ".", version & 0xff);
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Finds every entry point. Returns the first that is missing, or "".
std::string Bind(void* library, ipsec_mb::Api* api) {
  std::string missing;
  const auto need = [&](const char* name, auto* function) {
    if (!Find(library, name, function) && missing.empty()) missing = name;
  };
  need("aes_gcm_pre_256_vaes_avx512", &api->gcm_pre);
  need("aes_gcm_init_256_vaes_avx512", &api->gcm_init);
  need("aes_gcm_enc_256_update_vaes_avx512", &api->gcm_enc_update);
  need("aes_gcm_enc_256_finalize_vaes_avx512", &api->gcm_enc_finalize);
  need("aes_gcm_dec_256_update_vaes_avx512", &api->gcm_dec_update);
  need("aes_gcm_dec_256_finalize_vaes_avx512", &api->gcm_dec_finalize);
  need("imb_aes_gmac_init_256_vaes_avx512", &api->gmac_init);
  need("imb_aes_gmac_update_256_vaes_avx512", &api->gmac_update);
  need("imb_aes_gmac_finalize_256_vaes_avx512", &api->gmac_finalize);
  return missing;
}

// "" and *api filled, or why not.
std::string ReasonAgainst(void* library, ipsec_mb::Api* api) {
  if (!Find(library, "imb_get_version", &api->get_version)) return "has no imb_get_version";
  const unsigned version = api->get_version();
  if (version < IpsecMbLibrary::kOldest || version >= IpsecMbLibrary::kTooNew) {
    return absl::StrCat("is ", NameOf(version), ", and only versions 1.x are supported");
  }
  const std::string missing = Bind(library, api);
  return missing.empty() ? "" : absl::StrCat(NameOf(version), " has no ", missing);
}

}  // namespace

// What the library itself asks before it uses them (IMB_CPUFLAGS_AVX512_T2), save for hashes.
absl::Status IpsecMbLibrary::CheckProcessor() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kVaes = 1 << 9;  // not every compiler knows its name
  const bool vaes = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & kVaes) != 0;
  if (vaes && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("gfni") &&
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("bmi2")) {
    return absl::OkStatus();
  }
#endif
  return absl::UnavailableError("ipsec-mb is of use only to a processor with VAES, VPCLMULQDQ and AVX-512");
}

absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>> IpsecMbLibrary::Load(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return absl::UnavailableError(error != nullptr ? error : absl::StrCat(file, ": dlopen failed"));
  }
  std::unique_ptr<IpsecMbLibrary> loaded(new IpsecMbLibrary());
  const std::string reason = ReasonAgainst(library, &loaded->api_);
  if (reason.empty()) return loaded;
  dlclose(library);
  return absl::UnavailableError(absl::StrCat(file, ": ", reason));
}

std::string IpsecMbLibrary::VersionName() const { return NameOf(api_.get_version()); }

}  // namespace lockstep

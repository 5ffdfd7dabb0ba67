#include "transport/ofi/ofi_library.h"

#include <dlfcn.h>
#include <rdma/fi_errno.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

template <typename Function>
bool Bind(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case FI_ECONNREFUSED:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_EHOSTUNREACH:
    case FI_ENETUNREACH:
    case FI_ENETDOWN:
    case FI_EHOSTDOWN:
    case FI_ETIMEDOUT:
    case FI_EIO:
    case FI_ENODATA:
      return absl::StatusCode::kUnavailable;
    case FI_ENOMEM:
    case FI_EMFILE:
    case FI_ENOSPC:
    case FI_ENOBUFS:
      return absl::StatusCode::kResourceExhausted;
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return absl::StatusCode::kUnimplemented;
    case FI_ECANCELED:
      return absl::StatusCode::kCancelled;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string OfiLibrary::Describe() const {
  const uint32_t version = api.version();
  return absl::StrCat("libfabric ", FI_MAJOR(version), ".", FI_MINOR(version), " (", path, ")");
}

absl::StatusOr<OfiLibrary> LoadOfiLibrary(const std::string& file) {
  const auto unavailable = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("no usable libfabric (LOCKSTEP_OFI_LIBRARY may name one): ", file, ": ", why));
  };
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return unavailable(error != nullptr ? error : "dlopen failed");
  }
  OfiLibrary result;
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto* function) {
    if (!Bind(library, name, function) && missing == nullptr) missing = name;
  };
  need("fi_getinfo", &result.api.getinfo);
  need("fi_freeinfo", &result.api.freeinfo);
  need("fi_dupinfo", &result.api.dupinfo);
  need("fi_fabric", &result.api.fabric);
  need("fi_version", &result.api.version);
  need("fi_strerror", &result.api.strerror);
  std::string why;
  if (missing != nullptr) {
    why = absl::StrCat("has no ", missing);
  } else if (const uint32_t version = result.api.version(); version < kOfiVersion) {
    why = absl::StrCat(FI_MAJOR(version), ".", FI_MINOR(version), " is too old: ", FI_MAJOR(kOfiVersion), ".",
                       FI_MINOR(kOfiVersion), " is the oldest supported");
  }
  if (!why.empty()) {
    dlclose(library);
    return unavailable(why);
  }
  Dl_info place = {};
  const bool found = dladdr(reinterpret_cast<const void*>(result.api.getinfo), &place) != 0;
  result.path = found && place.dli_fname != nullptr ? place.dli_fname : file;
  return result;
}

absl::StatusOr<const OfiLibrary*> Ofi() {
  static Mutex* const mu = new Mutex();
  static const OfiLibrary* library = nullptr;
  MutexLock lock(mu);
  if (library == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(OfiLibrary loaded,
                              LoadOfiLibrary(GetEnv("LOCKSTEP_OFI_LIBRARY").value_or("libfabric.so.1")));
    library = new OfiLibrary(std::move(loaded));
  }
  return library;
}

absl::Status OfiStatus(const OfiApi& api, int64_t result, absl::string_view attempt) {
  const int error = static_cast<int>(result < 0 ? -result : result);
  return absl::Status(CodeOf(error), absl::StrCat(attempt, ": ", api.strerror(error), " (", error, ")"));
}

}  // namespace lockstep

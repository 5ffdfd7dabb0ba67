#include "transport/ofi/ofi_library.h"

#include <dlfcn.h>
#include <rdma/fi_errno.h>

#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

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

absl::StatusOr<OfiApi> LoadOfiLibrary(const std::string& file) {
  const auto unavailable = [&](absl::string_view why) {
    return absl::UnavailableError(
        absl::StrCat("no usable libfabric (LOCKSTEP_OFI_LIBRARY may name one): ", file, ": ", why));
  };
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const error = dlerror();
    return unavailable(error != nullptr ? error : "dlopen failed");
  }
  OfiApi api;
  std::string why;
  const auto need = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr && why.empty()) why = absl::StrCat("has no ", name);
  };
  need("fi_getinfo", &api.getinfo);
  need("fi_freeinfo", &api.freeinfo);
  need("fi_dupinfo", &api.dupinfo);
  need("fi_fabric", &api.fabric);
  need("fi_version", &api.version);
  need("fi_strerror", &api.strerror);
  if (why.empty() && api.version() < kOfiVersion) {
    why = absl::StrCat(FI_MAJOR(api.version()), ".", FI_MINOR(api.version()), " is too old: ", FI_MAJOR(kOfiVersion),
                       ".", FI_MINOR(kOfiVersion), " is the oldest supported");
  }
  if (why.empty()) return api;
  dlclose(library);
  return unavailable(why);
}

absl::StatusOr<const OfiApi*> Ofi() {
  static Mutex* const mu = new Mutex();
  static const OfiApi* api = nullptr;
  MutexLock lock(mu);
  if (api == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const OfiApi loaded,
                              LoadOfiLibrary(GetEnv("LOCKSTEP_OFI_LIBRARY").value_or("libfabric.so.1")));
    api = new OfiApi(loaded);
  }
  return api;
}

absl::Status OfiStatus(const OfiApi& api, int64_t result, absl::string_view attempt) {
  const int error = static_cast<int>(result < 0 ? -result : result);
  return absl::Status(CodeOf(error), absl::StrCat(attempt, ": ", api.strerror(error), " (", error, ")"));
}

}  // namespace lockstep

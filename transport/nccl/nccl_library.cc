#include "transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

std::string NameOf(int version) {
  return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// Finds every entry point; the first that is missing and must be there is named in `missing`.
class Binder {
 public:
  explicit Binder(void* library) : library_(library) {}

  template <typename Function>
  void Need(const char* name, Function* function) {
    May(name, function);
    if (*function == nullptr && missing_.empty()) missing_ = name;
  }
  template <typename Function>
  void May(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

std::string Bind(void* library, nccl::Api* api) {
  Binder binder(library);
  binder.Need("ncclGetUniqueId", &api->GetUniqueId);
  binder.Need("ncclCommInitRankConfig", &api->CommInitRankConfig);
  binder.Need("ncclCommDestroy", &api->CommDestroy);
  binder.Need("ncclCommAbort", &api->CommAbort);
  binder.Need("ncclCommGetAsyncError", &api->CommGetAsyncError);
  binder.Need("ncclGetErrorString", &api->GetErrorString);
  binder.Need("ncclGetLastError", &api->GetLastError);
  binder.Need("ncclRedOpCreatePreMulSum", &api->RedOpCreatePreMulSum);
  binder.Need("ncclRedOpDestroy", &api->RedOpDestroy);
  binder.Need("ncclReduce", &api->Reduce);
  binder.Need("ncclBroadcast", &api->Broadcast);
  binder.Need("ncclAllReduce", &api->AllReduce);
  binder.Need("ncclReduceScatter", &api->ReduceScatter);
  binder.Need("ncclAllGather", &api->AllGather);
  binder.Need("ncclSend", &api->Send);
  binder.Need("ncclRecv", &api->Recv);
  binder.Need("ncclGroupStart", &api->GroupStart);
  binder.Need("ncclGroupEnd", &api->GroupEnd);
  binder.May("ncclCommSplit", &api->CommSplit);
  binder.May("ncclMemAlloc", &api->MemAlloc);
  binder.May("ncclMemFree", &api->MemFree);
  binder.May("ncclCommRegister", &api->CommRegister);
  binder.May("ncclCommDeregister", &api->CommDeregister);
  return binder.missing();
}

// Where the code of an entry point came from.
std::string PathOf(const void* entry) {
  Dl_info info = {};
  return dladdr(entry, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// "" and *api, *version filled, or why not.
std::string LoadOne(const NcclPlace& place, nccl::Api* api, int* version) {
  // Local: the symbols of a framework's own NCCL stay what they are.
  void* const library = dlopen(place.file.c_str(), RTLD_NOW | RTLD_LOCAL | (place.present ? RTLD_NOLOAD : 0));
  if (library == nullptr) {
    const char* const error = dlerror();
    return place.present ? "not loaded" : error != nullptr ? error : "dlopen failed";
  }
  std::string reason;
  Binder(library).Need("ncclGetVersion", &api->GetVersion);
  if (api->GetVersion == nullptr) {
    reason = "has no ncclGetVersion";
  } else if (const nccl::Result result = api->GetVersion(version); result != nccl::kSuccess) {
    reason = absl::StrCat("ncclGetVersion fails (", result, ")");
  } else if (*version < NcclLibrary::kOldest) {
    reason = absl::StrCat(NameOf(*version), " is too old: ", NameOf(NcclLibrary::kOldest), " is the oldest supported");
  } else if (const std::string missing = Bind(library, api); !missing.empty()) {
    reason = absl::StrCat(NameOf(*version), " has no ", missing);
  }
  if (!reason.empty()) dlclose(library);
  return reason;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const NcclLibrary>> NcclLibrary::Load(absl::Span<const NcclPlace> places) {
  std::vector<std::string> tried;
  for (const NcclPlace& place : places) {
    std::unique_ptr<NcclLibrary> library(new NcclLibrary());
    const std::string reason = LoadOne(place, &library->api_, &library->version_);
    if (reason.empty()) {
      library->path_ = PathOf(reinterpret_cast<const void*>(library->api_.GetVersion));
      library->reason_ = place.reason;
      return library;
    }
    tried.push_back(absl::StrCat(place.file, " (", place.reason, "): ", reason));
  }
  return absl::UnavailableError(
      absl::StrCat("no usable NCCL (LOCKSTEP_NCCL_LIBRARY may name one): ", absl::StrJoin(tried, "; ")));
}

std::string NcclLibrary::VersionName() const { return NameOf(version_); }

std::string NcclLibrary::Describe() const { return absl::StrCat(VersionName(), " (", path_, ": ", reason_, ")"); }

nccl::Config NcclLibrary::MakeConfig() const {
  nccl::Config config;
  config.blocking = 0;
  if (version_ >= nccl::VersionCode(2, 18, 0)) return config;
  // What came later lies behind what this version had; it takes a structure of no other size than its own.
  const bool has_ctas_only = has_ctas();
  config.size = has_ctas_only ? offsetof(nccl::Config, split_share) : offsetof(nccl::Config, min_ctas);
  config.version = has_ctas_only ? nccl::VersionCode(2, 17, 0) : nccl::VersionCode(2, 14, 0);
  return config;
}

absl::StatusOr<const NcclLibrary*> Nccl() {
  static Mutex* const mu = new Mutex();
  static const NcclLibrary* library = nullptr;
  MutexLock lock(mu);
  if (library == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<const NcclLibrary> loaded, NcclLibrary::Load(NcclPlaces()));
    library = loaded.release();
  }
  return library;
}

}  // namespace lockstep

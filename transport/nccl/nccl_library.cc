#include "transport/nccl/nccl_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/env.h"
#include "base/mutex.h"
#include "base/status.h"

namespace lockstep {
namespace {

std::string NameOf(int version) {
  return absl::StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Finds every entry point. Returns the first that is missing and must be there, or "".
std::string Bind(void* library, nccl::Api* api) {
  std::string missing;
  const auto need = [&](const char* name, auto* function) {
    if (!Find(library, name, function) && missing.empty()) missing = name;
  };
  need("ncclGetUniqueId", &api->GetUniqueId);
  need("ncclCommInitRankConfig", &api->CommInitRankConfig);
  need("ncclCommDestroy", &api->CommDestroy);
  need("ncclCommAbort", &api->CommAbort);
  need("ncclCommGetAsyncError", &api->CommGetAsyncError);
  need("ncclGetErrorString", &api->GetErrorString);
  need("ncclGetLastError", &api->GetLastError);
  need("ncclRedOpCreatePreMulSum", &api->RedOpCreatePreMulSum);
  need("ncclRedOpDestroy", &api->RedOpDestroy);
  need("ncclReduce", &api->Reduce);
  need("ncclBroadcast", &api->Broadcast);
  need("ncclAllReduce", &api->AllReduce);
  need("ncclReduceScatter", &api->ReduceScatter);
  need("ncclAllGather", &api->AllGather);
  need("ncclSend", &api->Send);
  need("ncclRecv", &api->Recv);
  need("ncclGroupStart", &api->GroupStart);
  need("ncclGroupEnd", &api->GroupEnd);
  Find(library, "ncclCommSplit", &api->CommSplit);
  Find(library, "ncclMemAlloc", &api->MemAlloc);
  Find(library, "ncclMemFree", &api->MemFree);
  Find(library, "ncclCommRegister", &api->CommRegister);
  Find(library, "ncclCommDeregister", &api->CommDeregister);
  return missing;
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
  if (!Find(library, "ncclGetVersion", &api->GetVersion)) {
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

constexpr char kName[] = "libnccl.so.2";
// Debian's Python calls its folder dist-packages.
constexpr absl::string_view kPackages[] = {"lib/python3*/site-packages", "lib/python3*/dist-packages"};

std::vector<std::string> Glob(const std::string& pattern) {
  std::vector<std::string> paths;
  glob_t found = {};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return paths;
}

// The folder above the one that the path's file is in.
std::string PrefixOf(std::string path) {
  for (int levels = 0; levels < 2; ++levels) path.resize(std::min(path.rfind('/'), path.size()));
  return path;
}

// Of the first python3 on PATH, as it is found there (a virtual environment's own) and with links followed.
std::vector<std::string> PrefixesOfPython() {
  for (const absl::string_view folder : absl::StrSplit(GetEnv("PATH").value_or(""), ':', absl::SkipEmpty())) {
    const std::string path = absl::StrCat(folder, "/python3");
    if (access(path.c_str(), X_OK) != 0) continue;
    std::vector<std::string> prefixes = {PrefixOf(path)};
    char* const real = realpath(path.c_str(), nullptr);
    if (real != nullptr) prefixes.push_back(PrefixOf(real));
    free(real);
    return prefixes;
  }
  return {};
}

class Collector {
 public:
  void Add(std::string file, absl::string_view reason, bool present = false) {
    for (const NcclPlace& place : places_) {
      if (place.file == file && place.present == present) return;
    }
    places_.push_back({std::move(file), std::string(reason), present});
  }
  // Of the Python package in one folder of packages, which may be a pattern.
  void AddPackage(absl::string_view packages, absl::string_view reason) {
    for (std::string& path : Glob(absl::StrCat(packages, "/nvidia/nccl/lib/", kName))) Add(std::move(path), reason);
  }
  void AddPrefix(absl::string_view prefix, absl::string_view reason) {
    for (const absl::string_view packages : kPackages) AddPackage(absl::StrCat(prefix, "/", packages), reason);
  }
  std::vector<NcclPlace> Take() { return std::move(places_); }

 private:
  std::vector<NcclPlace> places_;
};

}  // namespace

std::vector<NcclPlace> NcclPlaces() {
  Collector places;
  if (const auto named = GetEnv("LOCKSTEP_NCCL_LIBRARY")) {
    places.Add(*named, "LOCKSTEP_NCCL_LIBRARY");
    return places.Take();
  }
  places.Add(kName, "in this process already", /*present=*/true);
  places.Add(kName, "the loader's path");
  for (const char* home : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto folder = GetEnv(home)) places.Add(absl::StrCat(*folder, "/lib64/", kName), home);
  }
  places.Add(absl::StrCat("/usr/local/cuda/lib64/", kName), "CUDA's folder");
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto prefix = GetEnv(variable)) places.AddPrefix(*prefix, variable);
  }
  const std::string python_path = GetEnv("PYTHONPATH").value_or("");
  for (const absl::string_view folder : absl::StrSplit(python_path, ':', absl::SkipEmpty())) {
    places.AddPackage(folder, "PYTHONPATH");
  }
  for (const std::string& prefix : PrefixesOfPython()) places.AddPrefix(prefix, "python3 on PATH");
  places.AddPrefix("/usr/local", "Python's packages");  // where Debian's Python installs to, whose prefix is /usr
  if (const auto home = GetEnv("HOME"))
    places.AddPrefix(absl::StrCat(*home, "/.local"), "Python's packages of this user");
  return places.Take();
}

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

absl::StatusOr<std::unique_ptr<NcclMemory>> NcclMemory::Allocate(const NcclLibrary* library, int device, size_t bytes) {
  const CudaGuard guard(TheCudaApi(), device);
  LOCKSTEP_RETURN_IF_ERROR(guard.status());
  void* data = nullptr;
  const nccl::Result result = library->api().MemAlloc(&data, bytes);
  if (result != nccl::kSuccess) {
    // NCCL's code for it is that of any failed call of CUDA's.
    return absl::ResourceExhaustedError(
        absl::StrCat("ncclMemAlloc of ", bytes, " bytes on cuda:", device, ": ", library->VersionName(), ": ",
                     library->api().GetErrorString(result), ": ", library->api().GetLastError(nullptr)));
  }
  return std::unique_ptr<NcclMemory>(new NcclMemory(library, device, static_cast<char*>(data), bytes));
}

NcclMemory::~NcclMemory() {
  const CudaGuard guard(TheCudaApi(), device_);
  if (guard.status().ok()) library_->api().MemFree(data_);
}

}  // namespace lockstep

#include "transport/nccl/nccl_places.h"

#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/env.h"

namespace lockstep {
namespace {

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

}  // namespace lockstep

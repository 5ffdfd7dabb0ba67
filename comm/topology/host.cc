#include "comm/topology/host.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/env.h"

namespace lockstep {
namespace {

// More cores than any system has: where a growing mask stops growing.
constexpr int kCoresMax = 1 << 16;

}  // namespace

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

std::string HostId() {
  if (const absl::optional<std::string> given = GetEnv("LOCKSTEP_HOST_ID"); given.has_value()) return *given;
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  struct stat network = {};
  (void)stat("/proc/self/ns/net", &network);
  return absl::StrCat(boot_id.empty() ? HostName() : boot_id, "/", network.st_ino);
}

CoreSet CoresOfThisThread() {
  // The kernel refuses a mask that is shorter than its own, whose length it does not tell.
  for (int cores = 1024; cores <= kCoresMax; cores *= 2) {
    cpu_set_t* const mask = CPU_ALLOC(cores);
    const size_t bytes = CPU_ALLOC_SIZE(cores);
    CPU_ZERO_S(bytes, mask);
    const int result = sched_getaffinity(0, bytes, mask);
    const bool too_short = result != 0 && errno == EINVAL;
    CoreSet found;
    for (int core = 0; result == 0 && core < cores; ++core) {
      if (!CPU_ISSET_S(core, bytes, mask)) continue;
      found.resize(core / 64 + 1);
      found[core / 64] |= uint64_t{1} << (core % 64);
    }
    CPU_FREE(mask);
    if (!too_short) return found;
  }
  return {};
}

void AddCores(const CoreSet& added, CoreSet* cores) {
  cores->resize(std::max(cores->size(), added.size()));
  for (size_t word = 0; word < added.size(); ++word) (*cores)[word] |= added[word];
}

int CountCores(const CoreSet& cores) {
  int count = 0;
  for (const uint64_t word : cores) count += __builtin_popcountll(word);
  return count;
}

}  // namespace lockstep

#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {
namespace {

// More cores than any system has: where a growing mask stops growing.
constexpr int kCoresMax = 1 << 16;

}  // namespace

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

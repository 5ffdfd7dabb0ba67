// What the system leaves to this process, and which limit says so: memory, address space, threads.
//
// Read from the kernel at each call. What cannot be read (no /proc, no control groups) limits nothing.

#ifndef BASE_LIMITS_H_
#define BASE_LIMITS_H_

#include <cstdint>
#include <string>

namespace lockstep {

// Where the kernel shows it.
struct LimitFiles {
  std::string proc = "/proc";
  std::string groups = "/sys/fs/cgroup";
};
// For tests, before anything is read on another thread: folders that say something else.
void SetLimitFilesForTesting(LimitFiles files);

// How much more memory can be touched before the kernel ends processes. Memory that the kernel can take back (the page cache) and
// swap count as left.
struct MemoryLeft {
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  // To all processes of this machine: MemAvailable and SwapFree.
  uint64_t machine = kUnknown;
  // To all processes of the control group, of this process's and those above it, that leaves least: memory.max of version 2,
  // memory.limit_in_bytes of version 1. From inside a container its own group is usually the top.
  uint64_t group = kUnknown;
  uint64_t group_id = 0;   // the same for all processes of that group on one machine, 0 without a group
  std::string group_file;  // that states the limit
};
MemoryLeft ReadMemoryLeft();

// Why `machine_bytes` more cannot be touched on this machine, of them `group_bytes` in the group: "1048576 bytes are left by
// /sys/fs/cgroup/memory.max". Empty when they can, as far as is known.
std::string WhyNoMemory(const MemoryLeft& left, uint64_t machine_bytes, uint64_t group_bytes);
// Of this process alone.
std::string WhyNoMemory(uint64_t bytes);

// For errors: what may be in the way of more memory or mappings ("RLIMIT_AS allows 1073741824 bytes of address space, 1003741824 are
// in use"), and of another thread ("RLIMIT_NPROC allows 96365 threads of this user").
std::string LimitsOnMemory();
std::string LimitsOnThreads();

}  // namespace lockstep

#endif  // BASE_LIMITS_H_

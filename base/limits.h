// The memory, address space, threads and cores that the system leaves to this process, and the limits that apply.
//
// Read from the kernel at each call. What cannot be read (no /proc, no control groups) limits nothing.

#ifndef BASE_LIMITS_H_
#define BASE_LIMITS_H_

#include <cstdint>
#include <string>

namespace lockstep {

// The kernel's folders.
struct LimitFiles {
  std::string proc = "/proc";
  std::string groups = "/sys/fs/cgroup";
};
// For tests, before another thread reads anything: other folders.
void SetLimitFilesForTesting(LimitFiles files);

// How much more memory processes can touch before the kernel kills one. The page cache and swap count as left.
struct MemoryLeft {
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  // To all processes of this machine: MemAvailable and SwapFree.
  uint64_t machine = kUnknown;
  // To all processes of a control group. Of this process's group and the groups above it, this is about the one that
  // leaves least. memory.max in version 2, memory.limit_in_bytes in version 1. Inside a container, its own group is
  // usually the top.
  uint64_t group = kUnknown;
  uint64_t group_id = 0;   // equal for all processes of that group on one machine, 0 without a group
  std::string group_file;  // that states the limit
};
MemoryLeft ReadMemoryLeft();

// Says why processes of this machine cannot touch `machine_bytes` more, `group_bytes` of them in the group: "1048576
// bytes are left by /sys/fs/cgroup/memory.max". Empty if nothing known prevents it.
std::string WhyNoMemory(const MemoryLeft& left, uint64_t machine_bytes, uint64_t group_bytes);
// Of this process alone.
std::string WhyNoMemory(uint64_t bytes);

// Says why a file may not have this size: "RLIMIT_FSIZE allows 4096". Empty if it may. Writing beyond that limit raises SIGXFSZ, which ends
// the process.
std::string WhyNoFile(uint64_t bytes);

// For errors: the limits that may prevent more memory or mappings ("RLIMIT_AS allows 1073741824 bytes of address space,
// 1003741824 are in use"), or another thread ("RLIMIT_NPROC allows 96365 threads of this user"). If
// there is no memory for a thread's stack, those on memory.
std::string LimitsOnMemory();
std::string LimitsOnThreads();

// How many processes the kernel has killed because this process's control group, or one above it, was out of memory.
uint64_t OutOfMemoryKills();

// Returns how many cores this process can keep busy, at least 1: the cores of its affinity mask, or fewer if a control group limits its
// processor time (cpu.max in version 2, cpu.cfs_quota_us in version 1). A fraction of a core is dropped.
int UsableCores();

}  // namespace lockstep

#endif  // BASE_LIMITS_H_

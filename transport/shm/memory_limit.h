// The memory that a container leaves to its processes: the limit of this process's control group, or of one above it where that is
// smaller and can be seen here (from inside a container its own is usually the top).

#ifndef TRANSPORT_SHM_MEMORY_LIMIT_H_
#define TRANSPORT_SHM_MEMORY_LIMIT_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace lockstep {

struct MemoryLimit {
  uint64_t bytes = 0;
  std::string file;  // that says so
};

// memory.max of cgroup v2, or memory.limit_in_bytes of v1; none where neither is there or set. Says nothing of what is in use: much of
// that the kernel gives back when it must.
absl::optional<MemoryLimit> ContainerMemoryLimit(const std::string& membership = "/proc/self/cgroup",
                                                 const std::string& mount = "/sys/fs/cgroup");

}  // namespace lockstep

#endif  // TRANSPORT_SHM_MEMORY_LIMIT_H_

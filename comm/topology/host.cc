#include "comm/topology/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/env.h"

namespace lockstep {

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

}  // namespace lockstep

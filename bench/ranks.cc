#include "bench/ranks.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/launcher.h"

namespace lockstep {
namespace bench {

bool IsRank() { return getenv("LOCKSTEP_RANK") != nullptr; }

int RunAsRanks(int ranks, char** argv) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length < 0) {
    std::perror("read /proc/self/exe");
    return 1;
  }
  LaunchOptions options;
  options.world_size = ranks;
  options.command.emplace_back(path, length);
  for (char** word = argv + 1; *word != nullptr; ++word) options.command.emplace_back(*word);
  options.foreground_rank = 0;
  const absl::StatusOr<LaunchResult> result = Launch(options);
  if (!result.ok()) {
    std::fprintf(stderr, "start %d ranks: %s\n", ranks, std::string(result.status().message()).c_str());
    return 1;
  }
  if (!result->report.empty()) std::fprintf(stderr, "%s\n", result->report.c_str());
  return result->exit_status;
}

absl::Status PinToCore(int rank, int local_ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return ErrnoStatus(errno, "sched_getaffinity");
  if (local_ranks > CPU_COUNT(&allowed)) {
    return absl::FailedPreconditionError(
        absl::StrCat(local_ranks, " ranks share ", CPU_COUNT(&allowed), " cores, so none is pinned"));
  }
  int core = 0;
  for (int passed = 0; !CPU_ISSET(core, &allowed) || passed++ < rank;) ++core;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  if (sched_setaffinity(0, sizeof(own), &own) != 0) return ErrnoStatus(errno, "sched_setaffinity");
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep

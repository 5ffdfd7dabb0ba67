#include "examples/fashion_mnist/launch.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace fashion_mnist {
namespace {

absl::StatusOr<std::string> OwnPath() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length < 0) return absl::InternalError(absl::StrCat("read /proc/self/exe: ", strerror(errno)));
  return std::string(path, length);
}

// Where lockstep-run may be, best first. The last one is looked up in PATH by execvp().
std::vector<std::string> Candidates(const std::string& own_path, const char* started_as) {
  if (const char* path = getenv("LOCKSTEP_RUN")) return {path};
  const std::string folder = own_path.substr(0, own_path.rfind('/'));
  const std::string runfile = "lockstep/comm/lockstep-run";
  std::vector<std::string> candidates;
  if (const char* runfiles = getenv("RUNFILES_DIR")) candidates.push_back(absl::StrCat(runfiles, "/", runfile));
  candidates.push_back(absl::StrCat(started_as, ".runfiles/", runfile));
  candidates.push_back(absl::StrCat(own_path, ".runfiles/", runfile));
  candidates.push_back(absl::StrCat(folder, "/../../comm/lockstep-run"));
  candidates.push_back(absl::StrCat(folder, "/lockstep-run"));
  candidates.push_back("lockstep-run");
  return candidates;
}

}  // namespace

bool StartedByLauncher() {
  return getenv("LOCKSTEP_RANK") != nullptr || (getenv("RANK") != nullptr && getenv("WORLD_SIZE") != nullptr) ||
         getenv("OMPI_COMM_WORLD_RANK") != nullptr || getenv("PMI_RANK") != nullptr;
}

int LaunchedRank() {
  for (const char* name : {"LOCKSTEP_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    int rank;
    if (const char* value = getenv(name); value != nullptr && absl::SimpleAtoi(value, &rank)) return rank;
  }
  return 0;
}

absl::Status BecomeLauncher(int processes, char** argv) {
  const absl::StatusOr<std::string> own_path = OwnPath();
  if (!own_path.ok()) return own_path.status();
  std::vector<std::string> command = {"lockstep-run", "-n", absl::StrCat(processes), "--foreground", "0", *own_path};
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(&word[0]);
  for (char** word = argv + 1; *word != nullptr; ++word) arguments.push_back(*word);
  arguments.push_back(nullptr);

  // The processes share the cores; each computes on its own.
  setenv("OPENBLAS_NUM_THREADS", "1", 0);
  const std::vector<std::string> candidates = Candidates(*own_path, argv[0]);
  for (const std::string& candidate : candidates) {
    execvp(candidate.c_str(), arguments.data());
    if (errno != ENOENT && errno != ENOTDIR) {
      return absl::FailedPreconditionError(absl::StrCat("run ", candidate, ": ", strerror(errno)));
    }
  }
  return absl::NotFoundError(absl::StrCat("found no lockstep-run to start ", processes, " processes with; tried ",
                                          absl::StrJoin(candidates, ", "), ". Set LOCKSTEP_RUN, or use --nproc 1"));
}

}  // namespace fashion_mnist

#include "launch/job_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/env.h"
#include "base/status.h"
#include "transport/secure/secret.h"

namespace lockstep {
namespace {

absl::StatusOr<UniqueFd> FileOf(const Secret& secret) {
  UniqueFd file(memfd_create("lockstep-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  std::string hex = secret.Hex();
  const WipedAtEnd hex_wiped(&hex);
  std::string text = absl::StrCat(hex, "\n");
  const WipedAtEnd text_wiped(&text);
  const bool made = file.valid() && fchmod(file.get(), 0600) == 0 &&
                    write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                    fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0;
  if (!made) return ErrnoStatus(errno, "a file in memory for the job's secret");
  return file;
}

std::string PathOf(int pid, int fd) { return absl::StrCat("/proc/", pid, "/fd/", fd); }

// Whether a launcher has made the path for the job of which this process is a rank.
bool IsOfAnotherJob(const std::string& path) {
  int pid, fd;
  return GetEnv("LOCKSTEP_RANK").has_value() && std::sscanf(path.c_str(), "/proc/%d/fd/%d", &pid, &fd) == 2 &&
         path == PathOf(pid, fd);
}

}  // namespace

absl::StatusOr<JobSecret> MakeJobSecret(bool serves) {
  JobSecret job;
  LOCKSTEP_ASSIGN_OR_RETURN(job.credentials.level, SecurityLevelOfEnvironment());
  if (job.credentials.level == SecurityLevel::kNone) return job;
  const absl::optional<std::string> given = GetEnv("LOCKSTEP_SECRET_FILE");
  // A store that is not ours may be that of the other job.
  if (given.has_value() && !(serves && IsOfAnotherJob(*given))) {
    job.credentials.source = absl::StrCat("LOCKSTEP_SECRET_FILE=", *given);
    if (!serves) return job;
    auto secret = Secret::ReadFile(*given);
    if (!secret.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("LOCKSTEP_SECRET_FILE: ", secret.status().message()));
    }
    job.credentials.secret = *std::move(secret);
    return job;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(job.credentials.secret, Secret::Draw());
  job.credentials.source = "lockstep-run";
  LOCKSTEP_ASSIGN_OR_RETURN(job.file, FileOf(*job.credentials.secret));
  job.path = PathOf(getpid(), job.file.get());
  return job;
}

}  // namespace lockstep

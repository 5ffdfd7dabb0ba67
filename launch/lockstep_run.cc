// lockstep-run: starts a program as the ranks of one world on this host. See --help.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/launcher.h"

namespace lockstep {
namespace {

int ExitStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
      return 126;
    case absl::StatusCode::kNotFound:
      return 127;
    default:
      return 125;
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "lockstep-run: %s\n", std::string(status.message()).c_str());
  return ExitStatus(status);
}

// A program started with stdout closed would find one of our pipes at its number.
void OpenStandardDescriptors() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

int Main(int argc, char** argv) {
  OpenStandardDescriptors();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<LauncherFlags> flags = ParseLauncherFlags(arguments);
  if (!flags.ok()) return Fail(flags.status());
  if (flags->help) {
    std::fputs(kLauncherHelp, stdout);
    return 0;
  }
  const absl::StatusOr<LaunchResult> result = Launch(flags->options);
  if (!result.ok()) return Fail(result.status());
  for (const std::string& line : result->others) std::fprintf(stderr, "lockstep-run: %s\n", line.c_str());
  if (!result->report.empty()) std::fprintf(stderr, "lockstep-run: %s\n", result->report.c_str());
  std::fputs(result->traceback.c_str(), stderr);
  return result->exit_status;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }

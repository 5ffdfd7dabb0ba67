// The command line of lockstep-run.
//
//   lockstep-run [option...] program [argument...]
//
// The first word that is not an option is the program. All words after it are its arguments.

#ifndef LAUNCH_LAUNCHER_FLAGS_H_
#define LAUNCH_LAUNCHER_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/launcher.h"

namespace lockstep {

struct LauncherFlags {
  bool help = false;
  LaunchOptions options;
};

// `arguments` without the launcher's own name. INVALID_ARGUMENT names the option and what it takes.
absl::StatusOr<LauncherFlags> ParseLauncherFlags(absl::Span<const std::string> arguments);

extern const char kLauncherHelp[];

}  // namespace lockstep

#endif  // LAUNCH_LAUNCHER_FLAGS_H_

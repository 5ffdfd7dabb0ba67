// The launcher: runs a program as the ranks of one world on this host. What `lockstep-run` does, as a library.
//
// Each rank has LOCKSTEP_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_WORLD_SIZE, _STORE and _JOB_ID in its environment, and RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_ERROR_FILE as torchrun sets them. The launcher also sets
// LOCKSTEP_REPORT_FOLDER (rank_report.h), OMP_NUM_THREADS (LaunchOptions::threads) and, unless it has found the user's LOCKSTEP_SECRET_FILE
// or LOCKSTEP_SECURITY=none in its own environment, LOCKSTEP_SECRET_FILE (job_secret.h).
//
// Each rank is a process group of its own. Each line of its output is printed with the prefix "[rank] ". Signals are passed on. The first
// rank that fails ends the job, once the rank that it blames (culprit.h) has ended or some seconds have passed: all others get SIGTERM
// and, after a grace period, SIGKILL. Processes that a rank leaves behind in its group when it exits are ended the same way. Nothing of
// the job outlives the launcher, even if SIGKILL ends the launcher. Only a process that leaves its rank's group on purpose (setsid) stays.

#ifndef LAUNCH_LAUNCHER_H_
#define LAUNCH_LAUNCHER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace lockstep {

inline constexpr int kLauncherRanksMax = 4096;

struct LaunchOptions {
  int world_size = 1;
  std::vector<std::string> command;  // the program and its arguments
  // This rank gets the launcher's own stdout and stderr, with no prefix, and its stdin unless that is a terminal. Other
  // ranks read from /dev/null.
  absl::optional<int> foreground_rank;
  // OMP_NUM_THREADS of each rank. 0: an equal share of this process's usable cores (UsableCores), unless the environment sets
  // OMP_NUM_THREADS or MKL_NUM_THREADS already.
  int threads = 0;
  int64_t grace_ms = 5000;  // from SIGTERM to SIGKILL
  // How long a rank that others blame may take to end by itself: an interpreter with frameworks takes a second or two.
  int64_t blame_ms = 3000;
  std::string job_id;     // empty: random
  std::string store_url;  // empty: the launcher serves a store on the loopback interface
  // Where output goes; borrowed.
  int stdout_fd = 1;
  int stderr_fd = 2;
};

struct RankEnd {
  pid_t pid = 0;
  int wait_status = 0;  // of waitpid()
};

struct LaunchResult {
  std::vector<RankEnd> ranks;
  absl::optional<int> first_failed;  // the rank that failed first, to which the others' blame leads
  // 0, or of the first failed rank: its exit status, or 128 + the signal that killed it. If the launcher had to end that rank: of the
  // rank whose end was noticed first. 1 if no rank failed, but output could not be written.
  int exit_status = 0;
  // A line for each other rank that did not end with status 0, at most 16 and one with the number of the rest. Then, if there are any,
  // the folder of the flight records and of all ranks' reports.
  std::vector<std::string> others;
  // "rank 2 (pid 71) was killed by signal 9 (SIGKILL)"; empty when all is well.
  std::string report;
  std::string traceback;  // the first failed rank's, each line with its prefix; or empty
};

// Runs the job. Returns when every rank has ended and all output is written.
// ERRORS  The job did not start, and nothing is left of it:
//         INVALID_ARGUMENT              options out of range; about LOCKSTEP_SECURITY or LOCKSTEP_SECRET_FILE
//         NOT_FOUND, PERMISSION_DENIED  about the program
//         FAILED_PRECONDITION           the program cannot run here, or another launch is under way in this process
//
// While it runs, it takes over the process's SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCHLD on all threads,
// and reaps all children of the process. The terminal's signals and SIGTERM go to whole groups, SIGUSR1 and SIGUSR2 to the ranks
// alone. A second SIGINT ends the job as a failed rank does. If nobody reads the launcher's output any more (EPIPE), the ranks' own
// writes fail the same way.
absl::StatusOr<LaunchResult> Launch(const LaunchOptions& options);

// ---- The command line of lockstep-run.
//
//   lockstep-run [option...] program [argument...]
//
// The first word that is not an option is the program. All words after it are its arguments.

struct LauncherFlags {
  bool help = false;
  LaunchOptions options;
};

// `arguments` without the launcher's own name. INVALID_ARGUMENT names the option and what it takes.
absl::StatusOr<LauncherFlags> ParseLauncherFlags(absl::Span<const std::string> arguments);

extern const char kLauncherHelp[];

}  // namespace lockstep

#endif  // LAUNCH_LAUNCHER_H_

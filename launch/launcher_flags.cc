#include "launch/launcher.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr double kGraceSecondsMax = 86400;

absl::Status BadValue(absl::string_view option, absl::string_view value, absl::string_view takes) {
  return absl::InvalidArgumentError(absl::StrCat(option, " is '", value, "'; it takes ", takes));
}

absl::Status SetOption(absl::string_view option, absl::string_view value, LaunchOptions* options) {
  if (option == "-n" || option == "--nproc") {
    if (!absl::SimpleAtoi(value, &options->world_size) || options->world_size < 1 ||
        options->world_size > kLauncherRanksMax) {
      return BadValue(option, value, absl::StrCat("a number of ranks, 1 to ", kLauncherRanksMax));
    }
  } else if (option == "--threads") {
    if (!absl::SimpleAtoi(value, &options->threads) || options->threads < 1) {
      return BadValue(option, value, "a number of threads, 1 or more");
    }
  } else if (option == "--foreground") {
    int rank;
    if (!absl::SimpleAtoi(value, &rank) || rank < 0) return BadValue(option, value, "a rank");
    options->foreground_rank = rank;
  } else if (option == "--grace") {
    double seconds;
    // The comparison is false for NaN.
    if (!absl::SimpleAtod(value, &seconds) || !(seconds >= 0 && seconds <= kGraceSecondsMax)) {
      return BadValue(option, value, absl::StrCat("seconds, 0 to ", kGraceSecondsMax));
    }
    options->grace_ms = std::llround(seconds * 1000);
  } else if (option == "--job-id") {
    if (value.empty()) return BadValue(option, value, "a name");
    options->job_id = std::string(value);
  } else if (option == "--store") {
    if (value.empty()) return BadValue(option, value, "a URL");
    options->store_url = std::string(value);
  }
  return absl::OkStatus();
}

bool IsOption(absl::string_view word) {
  for (absl::string_view option : {"-n", "--nproc", "--threads", "--foreground", "--grace", "--job-id", "--store"}) {
    if (word == option) return true;
  }
  return false;
}

}  // namespace

const char kLauncherHelp[] =
    R"(usage: lockstep-run -n N [option...] program [argument...]

Runs N copies of a program on this host as the ranks of one world. Each finds its place in the variables
LOCKSTEP_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_WORLD_SIZE, _STORE and _JOB_ID; torchrun's RANK, MASTER_ADDR and
so on are set as well. Output lines begin with "[rank] ".

The ranks prove to each other that they belong to this job by a secret that is drawn for it; LOCKSTEP_SECRET_FILE is set to a
file that only processes of this user on this host can read. If it is set already, that file's secret is used, which is
what containers or other users among the ranks need. A job that a rank of another job starts has a secret of its own, but with
--store that job's. LOCKSTEP_SECURITY=none does without.

  -n N, --nproc N     how many ranks
  --threads N         threads per rank: sets OMP_NUM_THREADS. By default the ranks share this host's usable cores (affinity mask,
                      quota of the control group) equally; if OMP_NUM_THREADS or MKL_NUM_THREADS is set, it is kept
  --foreground RANK   this rank writes to the terminal directly, without a prefix (a progress bar, say)
  --grace SECONDS     from SIGTERM to SIGKILL when the job is ended (default 5)
  --store URL         use this store; by default one is served here, over loopback TCP
  --job-id NAME       default: random
  --help              this text

Options end at the program; what follows it is left alone. -- ends them too.

When a rank fails, the others are ended; one that they blame first has 3 s to end by itself. The last lines are about the rank that failed
first: how it ended and, if an exception ended a Python program that imports lockstep, its traceback. A line for each other rank comes
before, and one that names the folder of all ranks' reports and flight records (LOCKSTEP_REPORT_FOLDER says where such folders are made).
The exit status is that of the rank that failed first (or ended first, if the launcher had to end that one), or 128 + the signal that
killed it. SIGINT, SIGTERM, SIGHUP and SIGQUIT go to ranks and their children, SIGUSR1 and SIGUSR2 to ranks; a second SIGINT ends the job.
Exit status of the launcher's own: 2 wrong usage, 125 other failures, 126 program not executable, 127 not found.
)";

absl::StatusOr<LauncherFlags> ParseLauncherFlags(absl::Span<const std::string> arguments) {
  LauncherFlags flags;
  LaunchOptions& options = flags.options;
  options.world_size = 0;
  size_t next = 0;
  while (next < arguments.size()) {
    absl::string_view option = arguments[next];
    if (option.empty() || option[0] != '-') break;
    ++next;
    if (option == "--") break;
    if (option == "-h" || option == "--help") {
      flags.help = true;
      return flags;
    }
    absl::string_view value;
    const size_t equals = option.find('=');
    const bool attached = equals != absl::string_view::npos;
    if (attached) {
      value = option.substr(equals + 1);
      option = option.substr(0, equals);
    }
    if (!IsOption(option)) return absl::InvalidArgumentError(absl::StrCat("no option ", option, "; see --help"));
    if (!attached) {
      if (next == arguments.size())
        return absl::InvalidArgumentError(absl::StrCat(option, " needs a value; see --help"));
      value = arguments[next++];
    }
    LOCKSTEP_RETURN_IF_ERROR(SetOption(option, value, &options));
  }
  options.command.assign(arguments.begin() + next, arguments.end());
  if (options.world_size == 0) return absl::InvalidArgumentError("say how many ranks to start: -n N; see --help");
  if (options.command.empty()) return absl::InvalidArgumentError("say which program to run; see --help");
  return flags;
}

}  // namespace lockstep

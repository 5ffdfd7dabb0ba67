// All-reduce of Lockstep beside the limits of the machine and beside other libraries, in turn. See --help.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "bench/compare.h"
#include "bench/sweep.h"

ABSL_FLAG(int, nproc, 2, "ranks of each contender");
ABSL_FLAG(bool, pin, true,
          "keep the calling thread of each rank on one core, rank after rank, and round again where there are fewer");
ABSL_FLAG(std::string, peers, "all", "all, none, or some of gloo, openmpi, mpich, pytorch with commas between");
ABSL_FLAG(std::string, transports, "shm,tcp", "one contest for each: shm, tcp, ofi, with commas between");
ABSL_FLAG(std::string, sizes, "8,1K,8K,64K,256K,1M,4M,16M,25M,64M",
          "of the vector in bytes, with commas between; K, M and G are powers of 1024");
ABSL_FLAG(int, rounds, 15, "rounds, in which every contender is measured once");
ABSL_FLAG(int64_t, round_ms, 20, "how long one contender is measured in a round");
ABSL_FLAG(int64_t, patience_s, 30, "a contender that does not answer for so long is dropped");
ABSL_FLAG(bool, mpi_malloc, true, "MPI also with the malloc settings that keep its temporaries mapped");
ABSL_FLAG(std::string, congestion, "reno",
          "congestion control of the bare sockets: what Lockstep uses inside a host; empty: the system's default");
ABSL_FLAG(std::string, json, "", "also write the results, every round of them, to this file");
ABSL_FLAG(std::string, plot, "", "also draw bus bandwidth over size into this SVG file");

namespace lockstep {
namespace bench {
namespace {

absl::StatusOr<CompareOptions> OptionsFromFlags() {
  CompareOptions options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  options.pin = absl::GetFlag(FLAGS_pin);
  LOCKSTEP_ASSIGN_OR_RETURN(options.peers, ParsePeers(absl::GetFlag(FLAGS_peers)));
  options.transports = absl::StrSplit(absl::GetFlag(FLAGS_transports), ',');
  const std::string sizes = absl::GetFlag(FLAGS_sizes);
  for (const absl::string_view size : absl::StrSplit(sizes, ',')) {
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t bytes, ParseByteCount(size));
    options.sizes.push_back(bytes);
  }
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.patience = std::chrono::seconds(absl::GetFlag(FLAGS_patience_s));
  options.mpi_malloc = absl::GetFlag(FLAGS_mpi_malloc);
  options.congestion_control = absl::GetFlag(FLAGS_congestion);
  options.json = absl::GetFlag(FLAGS_json);
  options.plot = absl::GetFlag(FLAGS_plot);
  return options;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "runs Lockstep, prototypes of what the machine can do, and the peers that are installed, in turn round by round, "
      "over "
      "shared memory, TCP and libfabric; prints medians and the ratios of each round");
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    std::fprintf(stderr, "compare: '%s' is no flag; see --help\n", words[1]);
    return 2;
  }
  const absl::StatusOr<CompareOptions> options = OptionsFromFlags();
  if (!options.ok()) {
    std::fprintf(stderr, "compare: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  return RunCompare(*options);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

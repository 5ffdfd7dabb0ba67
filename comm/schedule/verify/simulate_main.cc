// Prints what every algorithm costs on a described network. See --help.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/schedule/verify/cost_table.h"

ABSL_FLAG(int, ranks, 8, "size of the world");
ABSL_FLAG(int, hosts, 1, "hosts that the ranks are on, equally many on each; must divide --ranks");
ABSL_FLAG(std::string, link, "10gbit", "bandwidth of a host's link to the others, each way; its ranks share it");
ABSL_FLAG(std::string, latency, "20us", "of a message between hosts, from one rank's memory to the other's");
ABSL_FLAG(int, cores, 0, "of each host, for its ranks; 0: as many as there are ranks");
ABSL_FLAG(std::string, local_link, "shared_memory", "inside a host: shared_memory, tcp, libfabric or loopback");
ABSL_FLAG(std::string, collective, "all",
          "all, or some of all_reduce, broadcast, reduce, all_gather, reduce_scatter, barrier, gather, scatter, "
          "all_to_all with commas between");
ABSL_FLAG(std::string, sizes, "8,1K,32K,1M,32M,1G",
          "bytes of the whole vector, with commas between; K, M and G are powers of 1024");
ABSL_FLAG(bool, step_by_step, false,
          "simulate the schedules of all ranks step by step, rather than take the closed forms that equal it");

namespace lockstep {
namespace {

absl::StatusOr<CostTableOptions> OptionsFromFlags() {
  CostTableOptions options;
  options.ranks = absl::GetFlag(FLAGS_ranks);
  const int hosts = absl::GetFlag(FLAGS_hosts);
  if (hosts < 1 || options.ranks < 1 || options.ranks % hosts != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--hosts=", hosts, " does not divide --ranks=", options.ranks, " into equal, positive parts"));
  }
  LinkCosts remote = kTcpBetweenHosts;
  LOCKSTEP_ASSIGN_OR_RETURN(remote.byte_ns, ParseBandwidth(absl::GetFlag(FLAGS_link)));
  LOCKSTEP_ASSIGN_OR_RETURN(remote.latency_ns, ParseLatency(absl::GetFlag(FLAGS_latency)));
  LOCKSTEP_ASSIGN_OR_RETURN(const LinkCosts local, ParseLocalLink(absl::GetFlag(FLAGS_local_link)));
  const int cores = absl::GetFlag(FLAGS_cores);
  if (cores < 0) return absl::InvalidArgumentError(absl::StrCat("--cores=", cores, " is no number of cores"));
  const int ranks_per_host = options.ranks / hosts;
  const double ranks_per_core = cores == 0 ? 1 : static_cast<double>(ranks_per_host) / cores;
  options.network = Crowded(MakeNetwork(local, remote, ranks_per_host), ranks_per_core);
  LOCKSTEP_ASSIGN_OR_RETURN(options.collectives, ParseCollectiveList(absl::GetFlag(FLAGS_collective)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.sizes, ParseSizeList(absl::GetFlag(FLAGS_sizes)));
  options.share_memory = absl::GetFlag(FLAGS_local_link) == "shared_memory";
  options.step_by_step = absl::GetFlag(FLAGS_step_by_step);
  return options;
}

absl::StatusOr<std::string> Tables() {
  LOCKSTEP_ASSIGN_OR_RETURN(const CostTableOptions options, OptionsFromFlags());
  return FormatCostTables(options);
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "prints what every algorithm of every collective costs on a described network, in microseconds, and marks with * "
      "the one that would be chosen, and with + the one for buffers of the communicator's allocator");
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    std::fprintf(stderr, "simulate: '%s' is no flag; see --help\n", words[1]);
    return 2;
  }
  const absl::StatusOr<std::string> tables = Tables();
  if (!tables.ok()) {
    std::fprintf(stderr, "simulate: %s\n", std::string(tables.status().message()).c_str());
    return 2;
  }
  std::fputs(tables->c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }

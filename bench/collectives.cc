// Times every collective over a range of sizes and prints the tables of nccl-tests. See --help.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "bench/exercise.h"
#include "bench/limits_comparison.h"
#include "bench/program.h"
#include "bench/sweep.h"

ABSL_FLAG(int, nproc, 2, "ranks to start");
ABSL_FLAG(
    std::string, collective, "all",
    "all, or some with commas between: all_reduce, broadcast, reduce, all_gather, reduce_scatter, barrier, gather, "
    "scatter, all_to_all; with unequal blocks all_gather_v, reduce_scatter_v, gather_v, scatter_v, all_to_all_v; and "
    "send_receive, from each rank to the next; all but that with --prepared");
ABSL_FLAG(std::string, begin, "8", "smallest size in bytes, of the whole vector; K, M and G are powers of 1024");
ABSL_FLAG(std::string, end, "64M", "largest size");
ABSL_FLAG(int64_t, factor, 4, "from one size to the next");
ABSL_FLAG(int64_t, iterations, 0, "calls in a round; 0: as many as fit in --round-ms");
ABSL_FLAG(int64_t, round_ms, 20, "how long a round takes, when --iterations is 0");
ABSL_FLAG(int64_t, warmup, 5, "calls before the first round");
ABSL_FLAG(int, rounds, 5, "rounds, whose median counts");
ABSL_FLAG(std::string, dtype, "f32", "element type");
ABSL_FLAG(std::string, op, "sum", "reduction");
ABSL_FLAG(int, root, 0, "of broadcast, reduce, gather and scatter");
ABSL_FLAG(bool, symmetric, false, "vectors lie in memory of the communicator's allocator");
ABSL_FLAG(std::string, algorithm, "",
          "for every collective that it carries out, or collective:algorithm;...; empty: chosen by size");
ABSL_FLAG(bool, async, false, "start calls and wait for them, several in flight, instead of blocking calls");
ABSL_FLAG(bool, group, false, "launch --in_flight calls together as a group and wait for it, again and again");
ABSL_FLAG(bool, prepared, false, "set collectives up once and start them again and again, blocking or with --async");
ABSL_FLAG(int, in_flight, 4, "how many, with --async or --group");
ABSL_FLAG(bool, pin, true, "keep each rank on a core of its own, where there are as many");
ABSL_FLAG(std::string, transport, "", "auto, tcp, shm or ofi; empty: as LOCKSTEP_TRANSPORT says");
ABSL_FLAG(bool, limits, false,
          "also print all_reduce beside bare sockets, or with --transport=ofi beside the bare provider; two ranks");
ABSL_FLAG(
    std::string, limits_congestion, "reno",
    "congestion control of the bare sockets; reno is what Lockstep uses on one host, empty: the system's default");
ABSL_FLAG(std::string, limits_host, "127.0.0.1", "where the bare sockets meet: rank 0's IPv4 address");
ABSL_FLAG(int, limits_rounds, 15, "rounds of that comparison");
ABSL_FLAG(std::string, json, "", "also write the results to this file; -: to stdout, and the tables to stderr");

namespace lockstep {
namespace bench {
namespace {

absl::StatusOr<ProgramOptions> OptionsFromFlags() {
  ProgramOptions options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  options.prepared = absl::GetFlag(FLAGS_prepared);
  LOCKSTEP_ASSIGN_OR_RETURN(options.exercises, ParseExercises(absl::GetFlag(FLAGS_collective)));
  if (options.prepared && absl::GetFlag(FLAGS_collective) == "all") {
    const auto is_message = [](const Exercise& exercise) { return exercise.messages; };
    options.exercises.erase(std::remove_if(options.exercises.begin(), options.exercises.end(), is_message),
                            options.exercises.end());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t begin, ParseByteCount(absl::GetFlag(FLAGS_begin)));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t end, ParseByteCount(absl::GetFlag(FLAGS_end)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.sizes, SweepSizes(begin, end, absl::GetFlag(FLAGS_factor)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.op, ParseReduceOp(absl::GetFlag(FLAGS_op)));
  options.root = absl::GetFlag(FLAGS_root);
  options.symmetric = absl::GetFlag(FLAGS_symmetric);
  options.algorithm = absl::GetFlag(FLAGS_algorithm);
  options.grouped = absl::GetFlag(FLAGS_group);
  options.in_flight = absl::GetFlag(FLAGS_async) || options.grouped ? absl::GetFlag(FLAGS_in_flight) : 0;
  options.measure.iterations = absl::GetFlag(FLAGS_iterations);
  options.measure.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.measure.warmup = absl::GetFlag(FLAGS_warmup);
  options.measure.rounds = absl::GetFlag(FLAGS_rounds);
  options.pin = absl::GetFlag(FLAGS_pin);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.limits = absl::GetFlag(FLAGS_limits);
  options.limit_rounds = absl::GetFlag(FLAGS_limits_rounds);
  options.limit_sizes = DefaultLimitSizes();
  options.limits_congestion_control = absl::GetFlag(FLAGS_limits_congestion);
  options.limits_host = absl::GetFlag(FLAGS_limits_host);
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "times collectives and messages between ranks that it starts on this machine, or that a launcher has started "
      "anywhere, over what LOCKSTEP_TRANSPORT says; checks every result, and prints the columns of nccl-tests");
  // Runs again as each rank with these same words, so they must stay as they are.
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    std::fprintf(stderr, "collectives: '%s' is no flag; see --help\n", words[1]);
    return 2;
  }
  const absl::StatusOr<ProgramOptions> options = OptionsFromFlags();
  if (!options.ok()) {
    std::fprintf(stderr, "collectives: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  return RunProgram(*options, argv);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

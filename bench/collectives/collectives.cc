// Times every collective over a range of sizes and prints the tables of nccl-tests. See --help.
//
// Started by a user it runs itself again as the ranks of one world on this host; as a rank it joins the world, measures, and on rank 0
// prints.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/collectives/case.h"
#include "bench/collectives/limits_comparison.h"
#include "bench/collectives/operation.h"
#include "bench/collectives/pattern.h"
#include "bench/measure.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/select/selector.h"
#include "comm/world/world.h"

ABSL_FLAG(int, nproc, 2, "ranks to start");
ABSL_FLAG(std::string, collective, "all",
          "all, or some with commas between: all_reduce, broadcast, reduce, "
          "all_gather, reduce_scatter, barrier, gather, "
          "scatter, all_to_all; with unequal blocks all_gather_v, reduce_scatter_v, "
          "gather_v, scatter_v, all_to_all_v; and "
          "send_receive, from each rank to the next; all but that with --prepared");
ABSL_FLAG(std::string, begin, "8",
          "smallest size in bytes, of the whole vector; K, M and G are powers "
          "of 1024");
ABSL_FLAG(std::string, end, "64M", "largest size");
ABSL_FLAG(int64_t, factor, 4, "from one size to the next");
ABSL_FLAG(int64_t, iterations, 0, "calls in a round; 0: as many as fit in --round_ms");
ABSL_FLAG(int64_t, round_ms, 20, "how long a round takes, when --iterations is 0");
ABSL_FLAG(int64_t, warmup, 5, "calls before the first round");
ABSL_FLAG(int, rounds, 5, "rounds, whose median counts");
ABSL_FLAG(std::string, dtype, "f32", "element type");
ABSL_FLAG(std::string, op, "sum", "reduction");
ABSL_FLAG(int, root, 0, "of broadcast, reduce, gather and scatter");
ABSL_FLAG(bool, symmetric, false, "vectors lie in memory of the communicator's allocator");
ABSL_FLAG(std::string, algorithm, "",
          "for every collective that it carries out, or "
          "collective:algorithm;...; empty: chosen by size");
ABSL_FLAG(bool, async, false,
          "start calls and wait for them, several in flight, instead of "
          "blocking calls");
ABSL_FLAG(bool, group, false,
          "launch --in_flight calls together as a group and wait for it, again "
          "and again");
ABSL_FLAG(bool, prepared, false,
          "set collectives up once and start them again and again, blocking or "
          "with --async");
ABSL_FLAG(int, in_flight, 4, "how many, with --async or --group");
ABSL_FLAG(bool, pin, true, "keep each rank on a core of its own, where there are as many");
ABSL_FLAG(std::string, transport, "", "auto, tcp, shm or ofi; empty: as LOCKSTEP_TRANSPORT says");
ABSL_FLAG(bool, limits, false,
          "also print all_reduce beside bare sockets, or with --transport=ofi "
          "beside the bare provider; two ranks");
ABSL_FLAG(std::string, limits_congestion, "reno",
          "congestion control of the bare sockets; reno is what Lockstep uses "
          "on one host, empty: the system's default");
ABSL_FLAG(std::string, limits_host, "127.0.0.1", "where the bare sockets connect: rank 0's IPv4 address");
ABSL_FLAG(int, limits_rounds, 15, "rounds of that comparison");
ABSL_FLAG(std::string, json, "",
          "also write the results to this file; -: to stdout, and the tables "
          "to stderr");

namespace lockstep {
namespace bench {
namespace {

struct Options {
  int ranks = 0;
  std::vector<Operation> operations;
  std::vector<int64_t> sizes;
  CaseKind kind;  // what all rows have in common
  MeasureOptions measure;
  bool limits = false;
  LimitsOptions limits_options;
};

absl::StatusOr<Options> OptionsFromFlags() {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  Options options;
  CaseKind& kind = options.kind;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  if (options.ranks < 1) return invalid(absl::StrCat("there are ", options.ranks, " ranks"));
  kind.prepared = absl::GetFlag(FLAGS_prepared);
  LOCKSTEP_ASSIGN_OR_RETURN(options.operations, ParseOperations(absl::GetFlag(FLAGS_collective)));
  const auto is_message = [](const Operation& operation) { return operation.messages; };
  if (kind.prepared) {
    const auto messages = std::remove_if(options.operations.begin(), options.operations.end(), is_message);
    if (messages != options.operations.end() && absl::GetFlag(FLAGS_collective) != "all") {
      return invalid("send_receive cannot be prepared");
    }
    options.operations.erase(messages, options.operations.end());
  }
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.sizes, SweepSizes(absl::GetFlag(FLAGS_begin), absl::GetFlag(FLAGS_end), absl::GetFlag(FLAGS_factor)));
  LOCKSTEP_ASSIGN_OR_RETURN(kind.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  LOCKSTEP_ASSIGN_OR_RETURN(kind.op, ParseReduceOp(absl::GetFlag(FLAGS_op)));
  const int root = absl::GetFlag(FLAGS_root);
  if (root < 0 || root >= options.ranks) {
    return invalid(absl::StrCat("root ", root, " is not one of ", options.ranks, " ranks"));
  }
  kind.root = Rank(root);
  kind.grouped = absl::GetFlag(FLAGS_group);
  kind.in_flight = absl::GetFlag(FLAGS_async) || kind.grouped ? absl::GetFlag(FLAGS_in_flight) : 0;
  if (kind.in_flight < 0 || kind.in_flight > 1024) return invalid("0 to 1024 calls may be in flight");
  if (kind.grouped && kind.in_flight == 0) return invalid("a group has a call at least");
  if (kind.grouped && kind.prepared) return invalid("a prepared collective is in no group");
  options.measure.iterations = absl::GetFlag(FLAGS_iterations);
  options.measure.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.measure.warmup = absl::GetFlag(FLAGS_warmup);
  options.measure.rounds = absl::GetFlag(FLAGS_rounds);
  options.limits = absl::GetFlag(FLAGS_limits);
  options.limits_options.rounds = absl::GetFlag(FLAGS_limits_rounds);
  options.limits_options.sizes = DefaultLimitSizes();
  options.limits_options.link.congestion_control = absl::GetFlag(FLAGS_limits_congestion);
  options.limits_options.link.host = absl::GetFlag(FLAGS_limits_host);
  options.limits_options.link.fabric = absl::GetFlag(FLAGS_transport) == "ofi";
  if (options.limits && options.ranks != 2) {
    return invalid(absl::StrCat("limits are between two ranks, not ", options.ranks));
  }
  if (options.measure.rounds < 1 || options.limits_options.rounds < 1) return invalid("there must be a round at least");
  if (options.measure.iterations < 0 || options.measure.warmup < 0) return invalid("calls are counted from 0");
  LOCKSTEP_RETURN_IF_ERROR(ParseAlgorithmOverrides(absl::GetFlag(FLAGS_algorithm)).status());
  LOCKSTEP_RETURN_IF_ERROR(Pattern::Create(kind.dtype, kind.op, options.ranks).status());
  return options;
}

const Table& NcclTestsTable() {
  static const Table* const table = [] {
    std::vector<Table::Column> columns = {
        {12, "size", "(B)"}, {12, "count", "(elements)"}, {8, "type", ""}, {9, "redop", ""}, {4, "root", ""}};
    for (int i = 0; i < 2; ++i) {
      columns.insert(columns.end(),
                     {{8, "time", "(us)"}, {6, "algbw", "(GB/s)"}, {6, "busbw", "(GB/s)"}, {6, "#wrong", ""}});
    }
    return new Table(columns);
  }();
  return *table;
}

// One rank's part in the program. The report, on rank 0, is
//   {"facts": {"cpu": ..., ...}, "ranks": 2,
//    "rows": [{"collective": "all_reduce", "size_bytes": 8, "count": 2, "dtype": "f32", "op": "sum", "root": -1,
//              "out_of_place": {"time_us": 9.1, "algbw_gbps": 0.001, "busbw_gbps": 0.001, "wrong": 0, "iterations": 1000},
//              "in_place": {...}}],    null for a barrier and messages
//    "limits": [...]}                  of CompareWithLimits
// `count` is nccl-tests' column.
class RankProgram {
 public:
  RankProgram(const Options& options, Communicator* communicator)
      : options_(options), group_(communicator), tables_(absl::GetFlag(FLAGS_json) == "-" ? stderr : stdout) {
    report_ = {{"facts", Json::object()}, {"ranks", group_.size()}, {"rows", Json::array()}, {"limits", Json::array()}};
  }

  absl::Status Run() {
    if (group_.leads()) Describe();
    const auto largest = [](const std::vector<int64_t>& sizes) {
      return *std::max_element(sizes.begin(), sizes.end());
    };
    const auto bytes = static_cast<size_t>(
        std::max(largest(options_.sizes), options_.limits ? largest(options_.limits_options.sizes) : 0));
    const int vectors = std::max(Case::VectorsFor(options_.kind), options_.limits ? 2 : 0);
    LOCKSTEP_ASSIGN_OR_RETURN(Memory memory, absl::GetFlag(FLAGS_symmetric)
                                                 ? Memory::Allocate(group_.communicator(), vectors, bytes)
                                                 : Memory::Create(vectors, bytes));
    LOCKSTEP_ASSIGN_OR_RETURN(const Pattern pattern,
                              Pattern::Create(options_.kind.dtype, options_.kind.op, group_.size()));
    for (const Operation& operation : options_.operations) {
      Show(absl::StrFormat("#\n# %s\n# %64s  %32s\n%s", Name(operation), "out-of-place", "in-place",
                           NcclTestsTable().Heading()));
      LOCKSTEP_RETURN_IF_ERROR(RunOperation(operation, pattern, &memory));
    }
    Show(absl::StrFormat("#\n# wrong elements: %d %s\n# average bus bandwidth: %.3f GB/s\n", wrong_,
                         wrong_ == 0 ? "OK" : "FAILED", measured_ == 0 ? 0 : bandwidths_ / measured_));
    if (options_.limits) {
      LOCKSTEP_ASSIGN_OR_RETURN(report_["limits"],
                                CompareWithLimits(group_, options_.limits_options, tables_, &memory));
    }
    const std::string path = absl::GetFlag(FLAGS_json);
    if (group_.leads() && !path.empty()) LOCKSTEP_RETURN_IF_ERROR(WriteJson(report_, path));
    return wrong_ == 0 ? absl::OkStatus() : absl::DataLossError(absl::StrCat(wrong_, " elements are wrong"));
  }

 private:
  void Describe() {
    const MeasureOptions& measure = options_.measure;
    const LimitsOptions& limits = options_.limits_options;
    Facts facts = MachineFacts();
    facts.emplace_back(
        "ranks", absl::StrCat(group_.size(),
                              absl::GetFlag(FLAGS_pin) ? ", each on a core of its own where there are as many" : "",
                              ", ", Calls()));
    facts.emplace_back("transport", group_.Routes());
    facts.emplace_back("memory", absl::GetFlag(FLAGS_symmetric) ? "of the communicator's allocator" : "ordinary");
    const std::string algorithm = absl::GetFlag(FLAGS_algorithm);
    facts.emplace_back("algorithm", algorithm.empty() ? "chosen by size" : algorithm);
    facts.emplace_back("time", absl::StrCat("of the slowest rank for one of ",
                                            measure.iterations > 0
                                                ? absl::StrCat(measure.iterations)
                                                : absl::StrCat("as many as fit in ", measure.round_time.count(), " ms"),
                                            " calls back to back, median of ", measure.rounds, " rounds"));
    if (options_.limits && !limits.link.fabric) {
      const std::string& control = limits.link.congestion_control;
      facts.emplace_back("bare sockets",
                         absl::StrCat("congestion control ", control.empty() ? "as the system's" : control, ", ",
                                      limits.rounds, " rounds in turn"));
    }
    report_["facts"] = ToJson(facts);
    Show(FactsText(facts));
  }

  std::string Calls() const {
    const CaseKind& kind = options_.kind;
    if (kind.grouped) return absl::StrCat("groups of ", kind.in_flight, " calls");
    return absl::StrCat(kind.prepared ? "prepared, " : "",
                        kind.in_flight == 0 ? "blocking calls" : absl::StrCat(kind.in_flight, " calls in flight"));
  }

  absl::Status RunOperation(const Operation& operation, const Pattern& pattern, Memory* memory) {
    CaseKind kind = options_.kind;
    kind.operation = operation;
    int64_t last_bytes = -1;
    for (const int64_t bytes : operation.has_data() ? options_.sizes : std::vector<int64_t>{0}) {
      const CaseSize size = SizeOfCase(kind, group_.size(), bytes);
      // Sizes too small for the number of ranks come out equal.
      if (size.bytes == last_bytes) continue;
      last_bytes = size.bytes;
      Json row = {{"collective", Name(operation)},
                  {"size_bytes", size.bytes},
                  {"count", size.own_count},
                  {"dtype", operation.has_data() ? Name(kind.dtype) : "none"},
                  {"op", operation.reduces() ? Name(kind.op) : "none"},
                  {"root", operation.has_root() ? kind.root.value() : -1}};
      std::vector<std::string> cells = {absl::StrCat(size.bytes), absl::StrCat(size.own_count), row["dtype"], row["op"],
                                        absl::StrCat(row["root"].get<int>())};
      for (const bool in_place : {false, true}) {
        Json& result = row[in_place ? "in_place" : "out_of_place"] = Json();
        if (in_place && (!operation.has_data() || operation.messages)) {
          cells.insert(cells.end(), 4, "-");
          continue;
        }
        kind.in_place = in_place;
        LOCKSTEP_ASSIGN_OR_RETURN(result, MeasureCase(kind, size, pattern, memory, &cells));
      }
      report_["rows"].push_back(std::move(row));
      Show(NcclTestsTable().Row(cells));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> MeasureCase(const CaseKind& kind, const CaseSize& size, const Pattern& pattern, Memory* memory,
                                   std::vector<std::string>* cells) {
    Case measured(kind, size, group_.communicator(), &pattern, memory);
    LOCKSTEP_ASSIGN_OR_RETURN(const Measurement found, Measure(group_, options_.measure, &measured));
    const double algbw = AlgorithmBandwidth(size.bytes, found.seconds);
    const double busbw = algbw * BusFactor(kind.operation, group_.size());
    wrong_ += found.wrong;
    if (size.bytes > 0) {
      bandwidths_ += busbw;
      ++measured_;
    }
    cells->insert(cells->end(), {MicrosecondsText(found.seconds), absl::StrFormat("%.2f", algbw),
                                 absl::StrFormat("%.2f", busbw), absl::StrCat(found.wrong)});
    return Json{{"time_us", found.seconds * 1e6},
                {"algbw_gbps", algbw},
                {"busbw_gbps", busbw},
                {"wrong", found.wrong},
                {"iterations", found.iterations}};
  }

  void Show(const std::string& text) {
    if (group_.leads()) Print(text, tables_);
  }

  const Options& options_;
  const ProcessGroup group_;
  FILE* const tables_;
  Json report_;
  uint64_t wrong_ = 0;
  // Of all rows with bytes, in and out of place.
  double bandwidths_ = 0;
  int measured_ = 0;
};

absl::Status RunRank(const Options& options) {
  WorldOptions world_options;
  world_options.algorithm = absl::GetFlag(FLAGS_algorithm);
  world_options.transport = absl::GetFlag(FLAGS_transport);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world,
                            JoinWorld(world_options, options.ranks, absl::GetFlag(FLAGS_pin)));
  return RankProgram(options, world->communicator()).Run();
}

int Main(int argc, char** argv) {
  ParseFlags(argc, argv,
             "times collectives and messages between ranks that it starts on "
             "this machine, or that a launcher has "
             "started anywhere, over what LOCKSTEP_TRANSPORT says; checks "
             "every result, and prints the columns of "
             "nccl-tests");
  const absl::StatusOr<Options> options = OptionsFromFlags();
  if (!options.ok()) return Complain(options.status(), kWrongUsage);
  if (!IsRank() && options->ranks > 1) return RunAsRanks(options->ranks, argv);
  const absl::Status status = RunRank(*options);
  return status.ok() ? 0 : Complain(status);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

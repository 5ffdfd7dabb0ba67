// Times every collective over a range of sizes and prints the tables of nccl-tests. See --help.
//
// Started by a user it runs itself again as the ranks of one world on this host; as a rank it joins the world, measures, and on rank 0
// prints.

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
#include "bench/collectives/case.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "comm/select/selector.h"
#include "comm/world/world.h"

ABSL_FLAG(int, nproc, 2, "ranks to start");
ABSL_FLAG(std::string, collective, "all",
          "all, or some with commas between: all_reduce, broadcast, reduce, all_gather, reduce_scatter, barrier, "
          "gather, scatter, all_to_all; and send_receive, from each rank to the next");
ABSL_FLAG(std::string, begin, "8", "smallest size in bytes, of the whole vector; K, M and G are powers of 1024");
ABSL_FLAG(std::string, end, "64M", "largest size");
ABSL_FLAG(int64_t, factor, 4, "from one size to the next");
ABSL_FLAG(int64_t, iterations, 0, "calls in a round; 0: as many as fit in --round_ms");
ABSL_FLAG(int64_t, round_ms, 20, "how long a round takes, when --iterations is 0");
ABSL_FLAG(int64_t, warmup, 5, "calls before the first round");
ABSL_FLAG(int, rounds, 5, "rounds, whose median counts");
ABSL_FLAG(std::string, dtype, "f32", "element type");
ABSL_FLAG(int, root, 0, "of broadcast, reduce, gather and scatter");
ABSL_FLAG(bool, symmetric, false, "vectors lie in memory of the communicator's allocator");
ABSL_FLAG(std::string, algorithm, "",
          "for every collective that it carries out, or collective:algorithm;...; empty: chosen by size");
ABSL_FLAG(bool, pin, true, "keep each rank on a core of its own, where there are as many");
ABSL_FLAG(std::string, transport, "", "auto, tcp, shm or ofi; empty: as LOCKSTEP_TRANSPORT says");
ABSL_FLAG(std::string, json, "", "also write the results to this file");

namespace lockstep::bench {
namespace {

struct Options {
  int ranks = 0;
  std::vector<Operation> operations;
  std::vector<int64_t> sizes;
  CaseKind kind;  // what all rows have in common
  MeasureOptions measure;
};

absl::StatusOr<Options> OptionsFromFlags() {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  Options options;
  CaseKind& kind = options.kind;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  if (options.ranks < 1) return invalid(absl::StrCat("there are ", options.ranks, " ranks"));
  LOCKSTEP_ASSIGN_OR_RETURN(options.operations, ParseOperations(absl::GetFlag(FLAGS_collective)));
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.sizes, SweepSizes(absl::GetFlag(FLAGS_begin), absl::GetFlag(FLAGS_end), absl::GetFlag(FLAGS_factor)));
  LOCKSTEP_ASSIGN_OR_RETURN(kind.dtype, ParseDType(absl::GetFlag(FLAGS_dtype)));
  const int root = absl::GetFlag(FLAGS_root);
  if (root < 0 || root >= options.ranks) {
    return invalid(absl::StrCat("root ", root, " is not one of ", options.ranks, " ranks"));
  }
  kind.root = Rank(root);
  options.measure.iterations = absl::GetFlag(FLAGS_iterations);
  options.measure.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.measure.warmup = absl::GetFlag(FLAGS_warmup);
  options.measure.rounds = absl::GetFlag(FLAGS_rounds);
  if (options.measure.rounds < 1) return invalid("there must be a round at least");
  if (options.measure.iterations < 0 || options.measure.warmup < 0) return invalid("calls are counted from 0");
  LOCKSTEP_RETURN_IF_ERROR(ParseAlgorithmOverrides(absl::GetFlag(FLAGS_algorithm)).status());
  return options;
}

Columns NcclTestsColumns() {
  Columns columns = {{12, "size", "(B)", "/bytes"},
                     {12, "count", "(elements)", "/count"},
                     {8, "type", "", "/dtype"},
                     {9, "redop", "", "/op"},
                     {4, "root", "", "/root"}};
  for (const std::string place : {"/out_of_place", "/in_place"}) {
    columns.insert(columns.end(), {{8, "time", "(us)", place + "/time_us", Column::kSevenPlaces},
                                   {6, "algbw", "(GB/s)", place + "/algbw_gbps"},
                                   {6, "busbw", "(GB/s)", place + "/busbw_gbps"},
                                   {6, "#wrong", "", place + "/wrong"}});
  }
  return columns;
}

// One rank's part in the program. A row of the report is
//   {"collective": "all_reduce", "bytes": 8, "count": 2, "dtype": "f32", "op": "sum", "root": -1,
//    "out_of_place": {"time_us": 9.1, "algbw_gbps": 0.001, "busbw_gbps": 0.001, "wrong": 0, "iterations": 1000},
//    "in_place": {...}}    null for a barrier and messages
// `count` is nccl-tests' column.
class RankProgram {
 public:
  RankProgram(const Options& options, Communicator* communicator)
      : options_(options), group_(communicator), report_(group_.leads() ? stdout : nullptr) {}

  absl::Status Run() {
    Describe();
    const auto bytes = static_cast<size_t>(options_.sizes.back());
    Communicator* const allocator = absl::GetFlag(FLAGS_symmetric) ? group_.communicator() : nullptr;
    for (std::shared_ptr<char>& vector : vectors_) {
      LOCKSTEP_ASSIGN_OR_RETURN(vector, MakeVector(bytes, allocator));
    }
    const Pattern pattern(options_.kind.dtype, group_.size());
    for (const Operation& operation : options_.operations) {
      report_.Begin(absl::StrFormat("#\n# %s\n# %64s  %32s\n", Name(operation), "out-of-place", "in-place"),
                    NcclTestsColumns());
      LOCKSTEP_RETURN_IF_ERROR(RunOperation(operation, pattern));
    }
    report_.Print(absl::StrFormat("#\n# wrong elements: %d %s\n# average bus bandwidth: %.3f GB/s\n", wrong_,
                                  wrong_ == 0 ? "OK" : "FAILED", measured_ == 0 ? 0 : bandwidths_ / measured_));
    LOCKSTEP_RETURN_IF_ERROR(report_.Write(absl::GetFlag(FLAGS_json)));
    return wrong_ == 0 ? absl::OkStatus() : absl::DataLossError(absl::StrCat(wrong_, " elements are wrong"));
  }

 private:
  void Describe() {
    const MeasureOptions& measure = options_.measure;
    const std::string algorithm = absl::GetFlag(FLAGS_algorithm);
    const char* const pinned = absl::GetFlag(FLAGS_pin) ? ", each on a core of its own where there are as many" : "";
    report_.AddFacts(MachineFacts());
    report_.AddFacts({{"ranks", absl::StrCat(group_.size(), pinned)},
                      {"transport", group_.Routes()},
                      {"memory", absl::GetFlag(FLAGS_symmetric) ? "of the communicator's allocator" : "ordinary"},
                      {"algorithm", algorithm.empty() ? "chosen by size" : algorithm},
                      {"time", absl::StrCat("of the slowest rank for one of ",
                                            measure.iterations > 0
                                                ? absl::StrCat(measure.iterations)
                                                : absl::StrCat("as many as fit in ", measure.round_time.count(), " ms"),
                                            " calls back to back, median of ", measure.rounds, " rounds")}});
  }

  absl::Status RunOperation(const Operation& operation, const Pattern& pattern) {
    CaseKind kind = options_.kind;
    kind.operation = operation;
    int64_t last_bytes = -1;
    for (const int64_t bytes : operation.has_data() ? options_.sizes : std::vector<int64_t>{0}) {
      const CaseSize size = SizeOfCase(kind, group_.size(), bytes);
      // Sizes too small for the number of ranks come out equal.
      if (size.bytes == last_bytes) continue;
      last_bytes = size.bytes;
      Json row = {{"collective", Name(operation)},
                  {"bytes", size.bytes},
                  {"count", size.own_count},
                  {"dtype", operation.has_data() ? Name(kind.dtype) : "none"},
                  {"op", operation.reduces() ? "sum" : "none"},
                  {"root", operation.has_root() ? kind.root.value() : -1}};
      for (const bool in_place : {false, true}) {
        Json& result = row[in_place ? "in_place" : "out_of_place"] = Json();
        if (in_place && (!operation.has_data() || operation.messages)) continue;
        kind.in_place = in_place;
        LOCKSTEP_ASSIGN_OR_RETURN(result, MeasureCase(kind, size, pattern));
      }
      report_.AddRow(std::move(row));
    }
    return absl::OkStatus();
  }

  // Times the case, then checks one more call on fresh data.
  absl::StatusOr<Json> MeasureCase(const CaseKind& kind, const CaseSize& size, const Pattern& pattern) {
    Case measured(kind, size, group_.communicator(), &pattern, vectors_[0].get(), vectors_[1].get());
    const auto calls = [&measured](int64_t count) { return measured.Run(count); };
    measured.Fill();
    LOCKSTEP_ASSIGN_OR_RETURN(const int64_t iterations, WarmUp(group_, options_.measure, calls));
    std::vector<double> rounds(options_.measure.rounds);
    for (double& seconds : rounds) {
      LOCKSTEP_ASSIGN_OR_RETURN(seconds, TimeRound(group_, iterations, calls));
    }
    measured.Fill();
    LOCKSTEP_RETURN_IF_ERROR(measured.Run(1));
    LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t wrong, group_.Sum(measured.CountWrong()));
    const double seconds = Median(rounds);
    const double algbw = static_cast<double>(size.bytes) / seconds / 1e9;
    const double busbw = algbw * BusFactor(kind.operation, group_.size());
    wrong_ += wrong;
    if (size.bytes > 0) {
      bandwidths_ += busbw;
      ++measured_;
    }
    return Json{{"time_us", seconds * 1e6},
                {"algbw_gbps", algbw},
                {"busbw_gbps", busbw},
                {"wrong", wrong},
                {"iterations", iterations}};
  }

  const Options& options_;
  const ProcessGroup group_;
  Report report_;
  std::shared_ptr<char> vectors_[2];  // as large as the largest size
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

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::RunBench(argc, argv,
                                   "times collectives and messages between ranks that it starts on this machine, or "
                                   "that a launcher has started anywhere, over what "
                                   "LOCKSTEP_TRANSPORT says; checks every result, and prints the columns of nccl-tests",
                                   &lockstep::bench::OptionsFromFlags, &lockstep::bench::RunRank);
}

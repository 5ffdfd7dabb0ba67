#include "bench/program.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/exercise.h"
#include "bench/limits/pingpong.h"
#include "bench/limits_comparison.h"
#include "bench/machine.h"
#include "bench/memory.h"
#include "bench/output_file.h"
#include "bench/pattern.h"
#include "bench/ranks.h"
#include "bench/report.h"
#include "bench/report_json.h"
#include "bench/routes.h"
#include "bench/subject.h"
#include "bench/table.h"
#include "bench/team.h"
#include "comm/selector.h"
#include "comm/world.h"

namespace lockstep {
namespace bench {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

absl::Status CheckOptions(const ProgramOptions& options) {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (options.ranks < 1) return invalid(absl::StrCat("there are ", options.ranks, " ranks"));
  if (options.root < 0 || options.root >= options.ranks) {
    return invalid(absl::StrCat("root ", options.root, " is not one of ", options.ranks, " ranks"));
  }
  if (options.limits && options.ranks != 2) {
    return invalid(absl::StrCat("limits are between two ranks, not ", options.ranks));
  }
  if (options.measure.rounds < 1 || options.limit_rounds < 1) return invalid("there must be a round at least");
  if (options.measure.iterations < 0 || options.measure.warmup < 0) return invalid("calls are counted from 0");
  if (options.in_flight < 0 || options.in_flight > 1024) return invalid("0 to 1024 calls may be in flight");
  if (options.grouped && options.in_flight == 0) return invalid("a group has a call at least");
  if (options.grouped && options.prepared) return invalid("a prepared collective is in no group");
  const bool messages = std::any_of(options.exercises.begin(), options.exercises.end(),
                                    [](const Exercise& exercise) { return exercise.messages; });
  if (options.prepared && messages) return invalid("send_receive cannot be prepared");
  LOCKSTEP_RETURN_IF_ERROR(ParseAlgorithmOverrides(options.algorithm).status());
  return Pattern::Create(options.dtype, options.op, options.ranks).status();
}

// One rank's part in the program.
class RankProgram {
 public:
  RankProgram(const ProgramOptions& options, Communicator* communicator)
      : options_(options), team_(communicator), tables_(options.json == "-" ? stderr : stdout) {
    report_.ranks = team_.size();
  }

  absl::Status Run() {
    if (team_.leads()) Describe();
    const int64_t largest = std::max(Largest(options_.sizes), options_.limits ? Largest(options_.limit_sizes) : 0);
    const SubjectKind kind = Kind();
    const int vectors = std::max(Subject::VectorsFor(kind), options_.limits ? 2 : 0);
    const auto bytes = static_cast<size_t>(largest);
    LOCKSTEP_ASSIGN_OR_RETURN(Memory memory, options_.symmetric ? Memory::Allocate(team_.communicator(), vectors, bytes)
                                                                : Memory::Create(vectors, bytes));
    LOCKSTEP_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Create(options_.dtype, options_.op, team_.size()));
    for (const Exercise& exercise : options_.exercises) {
      Print(TableHeading(exercise));
      LOCKSTEP_RETURN_IF_ERROR(RunExercise(exercise, pattern, &memory));
    }
    if (!report_.rows.empty()) Print(Summary(report_));
    if (!options_.limits) return absl::OkStatus();
    LimitsOptions limits;
    limits.sizes = options_.limit_sizes;
    limits.rounds = options_.limit_rounds;
    limits.congestion_control = options_.limits_congestion_control;
    limits.host = options_.limits_host;
    limits.fabric = options_.transport == "ofi";
    if (limits.fabric) {
      const absl::Status installed = Pingpong::Installed();
      LOCKSTEP_ASSIGN_OR_RETURN(const int64_t ranks, team_.Sum(installed.ok() ? 1 : 0));
      limits.pingpong = ranks == team_.size();
      if (!installed.ok()) Print(absl::StrCat("# ", installed.message(), "\n"));
    }
    Print(LimitsHeading(limits.fabric ? "the bare provider" : "bare sockets", limits.pingpong));
    return CompareWithLimits(team_, limits, &memory, [this](const LimitRow& row) {
      report_.limits.push_back(row);
      Print(LimitsLine(row));
    });
  }

  const Report& report() const { return report_; }

 private:
  static int64_t Largest(const std::vector<int64_t>& sizes) {
    return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  }

  void Describe() {
    report_.facts = MachineFacts();
    const MeasureOptions& measure = options_.measure;
    report_.facts.emplace_back(
        "ranks", absl::StrCat(team_.size(), options_.pin ? ", each on a core of its own where there are as many" : "",
                              ", ", Calls()));
    report_.facts.emplace_back("transport", RoutesIn(team_.communicator()->Describe(), team_.communicator()->rank()));
    report_.facts.emplace_back("memory", options_.symmetric ? "of the communicator's allocator" : "ordinary");
    report_.facts.emplace_back("algorithm", options_.algorithm.empty() ? "chosen by size" : options_.algorithm);
    report_.facts.emplace_back(
        "time",
        absl::StrCat("of the slowest rank for one of ",
                     measure.iterations > 0 ? absl::StrCat(measure.iterations)
                                            : absl::StrCat("as many as fit in ", measure.round_time.count(), " ms"),
                     " calls back to back, median of ", measure.rounds, " rounds"));
    if (options_.limits && options_.transport != "ofi") {
      report_.facts.emplace_back(
          "bare sockets", absl::StrCat("congestion control ",
                                       options_.limits_congestion_control.empty() ? "as the system's"
                                                                                  : options_.limits_congestion_control,
                                       ", ", options_.limit_rounds, " rounds in turn"));
    }
    Print(FactsText(report_));
  }

  // What all rows have in common.
  SubjectKind Kind() const {
    SubjectKind kind;
    kind.dtype = options_.dtype;
    kind.op = options_.op;
    kind.root = Rank(options_.root);
    kind.in_flight = options_.in_flight;
    kind.grouped = options_.grouped;
    kind.prepared = options_.prepared;
    return kind;
  }

  std::string Calls() const {
    if (options_.grouped) return absl::StrCat("groups of ", options_.in_flight, " calls");
    return absl::StrCat(
        options_.prepared ? "prepared, " : "",
        options_.in_flight == 0 ? "blocking calls" : absl::StrCat(options_.in_flight, " calls in flight"));
  }

  absl::Status RunExercise(const Exercise& exercise, const Pattern& pattern, Memory* memory) {
    const std::vector<int64_t> one_size = {0};
    int64_t last_bytes = -1;
    for (const int64_t bytes : exercise.has_data() ? options_.sizes : one_size) {
      Row row;
      row.exercise = exercise;
      row.dtype = options_.dtype;
      row.op = options_.op;
      row.root = Rank(options_.root);
      SubjectKind kind = Kind();
      kind.exercise = exercise;
      row.size = SizeOfSubject(kind, team_.size(), bytes);
      // Sizes too small for the number of ranks come out equal.
      if (row.size.bytes == last_bytes) continue;
      last_bytes = row.size.bytes;
      LOCKSTEP_ASSIGN_OR_RETURN(row.out_of_place, MeasureOne(kind, row.size, pattern, memory));
      if (exercise.has_data() && !exercise.messages) {
        kind.in_place = true;
        LOCKSTEP_ASSIGN_OR_RETURN(row.in_place, MeasureOne(kind, row.size, pattern, memory));
      }
      report_.rows.push_back(row);
      Print(TableLine(row, team_.size()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Measurement> MeasureOne(const SubjectKind& kind, const SubjectSize& size, const Pattern& pattern,
                                         Memory* memory) {
    Subject subject(kind, size, team_.communicator(), &pattern, memory);
    return Measure(team_, options_.measure, &subject);
  }

  void Print(const std::string& text) {
    if (!team_.leads()) return;
    std::fputs(text.c_str(), tables_);
    std::fflush(tables_);
  }

  const ProgramOptions& options_;
  const Team team_;
  FILE* const tables_;
  Report report_;  // the facts on rank 0 only
};

absl::Status WriteJson(const Report& report, const std::string& path) {
  const std::string json = ReportJson(report);
  if (path == "-") {
    std::fputs(json.c_str(), stdout);
    return absl::OkStatus();
  }
  return WriteFile(path, json);
}

absl::Status RunRank(const ProgramOptions& options) {
  WorldOptions world_options;
  world_options.algorithm = options.algorithm;
  world_options.transport = options.transport;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, World::Create(world_options));
  Communicator* const communicator = world->communicator();
  if (communicator->size() != options.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the launcher started ", communicator->size(), " ranks, not ", options.ranks, " as --nproc says"));
  }
  if (options.pin) {
    const absl::Status pinned = PinToCore(communicator->rank().value(), communicator->size());
    // Fewer cores than ranks: they share them.
    if (!pinned.ok() && !absl::IsFailedPrecondition(pinned)) return pinned;
  }
  RankProgram program(options, communicator);
  LOCKSTEP_RETURN_IF_ERROR(program.Run());
  if (communicator->rank() == Rank(0) && !options.json.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(WriteJson(program.report(), options.json));
  }
  const uint64_t wrong = WrongElements(program.report());
  return wrong == 0 ? absl::OkStatus() : absl::DataLossError(absl::StrCat(wrong, " elements are wrong"));
}

}  // namespace

int RunProgram(const ProgramOptions& options, char** argv) {
  const absl::Status usable = CheckOptions(options);
  if (!usable.ok()) {
    std::fprintf(stderr, "%s\n", std::string(usable.message()).c_str());
    return kWrongUsage;
  }
  if (!IsRank() && options.ranks > 1) return RunAsRanks(options.ranks, argv);
  const absl::Status status = RunRank(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return kFailed;
}

}  // namespace bench
}  // namespace lockstep

#include "bench/ranks.h"

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/report.h"
#include "comm/plan/collectives.h"
#include "launch/launcher.h"

namespace lockstep::bench {
namespace {

constexpr int64_t kIterationsMin = 2;
constexpr int64_t kIterationsMax = 100'000;

absl::Status PinToCore(int rank, int local_ranks) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return ErrnoStatus(errno, "sched_getaffinity");
  // Fewer cores than ranks: they share them.
  if (local_ranks > CPU_COUNT(&allowed)) return absl::OkStatus();
  int core = 0;
  for (int passed = 0; !CPU_ISSET(core, &allowed) || passed++ < rank;) ++core;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  return sched_setaffinity(0, sizeof(own), &own) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "sched_setaffinity");
}

template <typename T>
absl::StatusOr<T> AllReduced(Communicator* communicator, DType dtype, ReduceOp op, T value) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = dtype;
  request.op = op;
  request.count = 1;
  request.input = &value;
  request.output = &value;
  LOCKSTEP_RETURN_IF_ERROR(communicator->Run(request));
  return value;
}

}  // namespace

void ParseFlags(int argc, char** argv, const char* usage) {
  absl::SetProgramUsageMessage(usage);
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() < 2) return;
  Complain(absl::InvalidArgumentError(absl::StrCat("'", words[1], "' is no flag; see --help")));
  exit(kWrongUsage);
}

int Complain(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, std::string(status.message()).c_str());
  return exit_status;
}

bool IsRank() { return getenv("LOCKSTEP_RANK") != nullptr; }

int RunAsRanks(int ranks, char** argv) {
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Complain(absl::UnavailableError("read /proc/self/exe: " + error.message()));
  LaunchOptions options;
  options.world_size = ranks;
  options.command.push_back(program);
  for (char** word = argv + 1; *word != nullptr; ++word) options.command.emplace_back(*word);
  options.foreground_rank = 0;
  const absl::StatusOr<LaunchResult> result = Launch(options);
  if (!result.ok()) return Complain(Annotate(result.status(), absl::StrCat("start ", ranks, " ranks")));
  if (!result->report.empty()) std::fprintf(stderr, "%s\n", result->report.c_str());
  return result->exit_status;
}

absl::StatusOr<std::unique_ptr<World>> JoinWorld(const WorldOptions& options, int ranks, bool pin) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<World> world, World::Create(options));
  const Communicator& communicator = *world->communicator();
  if (communicator.size() != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the launcher started ", communicator.size(), " ranks, not ", ranks));
  }
  if (pin) LOCKSTEP_RETURN_IF_ERROR(PinToCore(communicator.rank().value(), ranks));
  return world;
}

std::string RoutesIn(const std::string& description, Rank self) {
  std::vector<std::string> routes;
  for (const absl::string_view line : absl::StrSplit(description, '\n')) {
    const size_t over = line.find(" over ");
    const bool another =
        absl::StartsWith(line, "rank ") && !absl::StartsWith(line, absl::StrCat("rank ", self.value(), " "));
    if (over == absl::string_view::npos || !another) continue;
    const std::string route(line.substr(over + 6));
    if (std::find(routes.begin(), routes.end(), route) == routes.end()) routes.push_back(route);
  }
  return routes.empty() ? "none" : absl::StrJoin(routes, ", ");
}

absl::Status ProcessGroup::Barrier() const { return communicator_->Run(BarrierRequest()); }

absl::StatusOr<double> ProcessGroup::Largest(double value) const {
  return AllReduced(communicator_, DType::kF64, ReduceOp::kMax, value);
}

absl::Status ProcessGroup::TakeLargest(std::vector<double>* values) const {
  for (double& value : *values) {
    LOCKSTEP_ASSIGN_OR_RETURN(value, Largest(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ProcessGroup::Sum(uint64_t value) const {
  return AllReduced(communicator_, DType::kU64, ReduceOp::kSum, value);
}

absl::StatusOr<int64_t> ProcessGroup::FromLeader(int64_t value) const {
  return AllReduced(communicator_, DType::kI64, ReduceOp::kSum, leads() ? value : 0);
}

absl::StatusOr<int64_t> WarmUp(const ProcessGroup& group, const MeasureOptions& options, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(calls(options.warmup));
  if (options.iterations > 0) return options.iterations;
  // Three calls alone are far from what many back to back come to, so the second estimate is made from more.
  int64_t iterations = kIterationsMin + 1;
  for (int estimate = 0; estimate < 2; ++estimate) {
    LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, TimeRound(group, iterations, calls));
    const double round_seconds = std::chrono::duration<double>(options.round_time).count();
    const double fitting = round_seconds / std::max(seconds, 1e-9) / (estimate == 0 ? 10 : 1);
    iterations = std::clamp(static_cast<int64_t>(fitting), kIterationsMin, kIterationsMax);
    if (fitting < kIterationsMin) break;
  }
  return iterations;
}

absl::StatusOr<double> TimeRound(const ProcessGroup& group, int64_t iterations, Calls calls) {
  LOCKSTEP_RETURN_IF_ERROR(group.Barrier());
  const auto begin = std::chrono::steady_clock::now();
  LOCKSTEP_RETURN_IF_ERROR(calls(iterations));
  return group.Largest(SecondsSince(begin) / static_cast<double>(iterations));
}

}  // namespace lockstep::bench

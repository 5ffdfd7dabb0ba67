// What two processes of this machine get out of bare sockets, or out of a bare provider of libfabric, with no Lockstep code in the way:
// each number is the median of the rounds, in whichever pieces are the fastest. See --help.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/limits/connect.h"
#include "bench/limits/link.h"
#include "bench/measure.h"
#include "bench/ranks.h"
#include "bench/report.h"

ABSL_FLAG(std::string, transport, "tcp",
          "tcp: bare sockets; ofi: the provider that LOCKSTEP_OFI_PROVIDER "
          "names or Lockstep would choose");
ABSL_FLAG(std::vector<std::string>, congestion, std::vector<std::string>({"", "reno"}),
          "congestion controls of the bare sockets, with commas between; "
          "empty: the system's default");
ABSL_FLAG(std::string, host, "127.0.0.1", "the IPv4 address of the interface");
ABSL_FLAG(std::string, begin, "8", "smallest size in bytes; K, M and G are powers of 1024");
ABSL_FLAG(std::string, end, "64M", "largest size");
ABSL_FLAG(int64_t, factor, 8, "from one size to the next");
ABSL_FLAG(int, rounds, 5, "rounds, whose median counts");
ABSL_FLAG(int64_t, round_ms, 20, "about how long a round takes");
ABSL_FLAG(std::string, json, "", "also write the results to this file");

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kPieces[] = {64 << 10, BareLink::kPieceBytes, 1 << 20, BareLink::kWhole};

struct Options {
  LinkOptions link;
  std::vector<int64_t> sizes;
  MeasureOptions measure;
};

absl::StatusOr<Options> OptionsFromFlags() {
  Options options;
  const std::string transport = absl::GetFlag(FLAGS_transport);
  if (transport != "tcp" && transport != "ofi") {
    return absl::InvalidArgumentError(absl::StrCat("no transport '", transport, "'; known are tcp, ofi"));
  }
  options.link.fabric = transport == "ofi";
  options.link.host = absl::GetFlag(FLAGS_host);
  LOCKSTEP_ASSIGN_OR_RETURN(
      options.sizes, SweepSizes(absl::GetFlag(FLAGS_begin), absl::GetFlag(FLAGS_end), absl::GetFlag(FLAGS_factor)));
  options.measure.rounds = absl::GetFlag(FLAGS_rounds);
  options.measure.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  if (options.sizes.front() < 1 || options.measure.rounds < 1 || options.measure.round_time.count() < 1) {
    return absl::InvalidArgumentError("sizes, rounds and their time must be positive");
  }
  return options;
}

absl::StatusOr<double> MedianOf(const ProcessGroup& group, const MeasureOptions& options, Calls calls) {
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t iterations, WarmUp(group, options, calls));
  std::vector<double> seconds;
  for (int round = 0; round < options.rounds; ++round) {
    LOCKSTEP_ASSIGN_OR_RETURN(seconds.emplace_back(), TimeRound(group, iterations, calls));
  }
  return Median(seconds);
}

absl::Status MeasureLink(const Options& options, const ProcessGroup& group, const std::string& name, Json* rows) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<BareLink> link, ConnectBareLink(group, options.link));
  const Table table({{12, "size", "(B)"},
                     {10, "one way", "(us)"},
                     {10, "both ways", "(us)"},
                     {12, "each way", "(GB/s)"},
                     {10, "in pieces", "(B)"}});
  if (group.leads()) Print(absl::StrCat("#\n# ", name, "\n", table.Heading()));
  std::vector<char> out(options.sizes.back(), 'x');
  std::vector<char> in(options.sizes.back());
  for (const int64_t bytes : options.sizes) {
    double one_way = 0;
    double both_ways = 0;
    size_t best_piece = BareLink::kWhole;
    for (const size_t piece : kPieces) {
      // Smaller ones go as a whole.
      if (piece != BareLink::kWhole && static_cast<size_t>(bytes) <= piece) continue;
      link->set_piece_bytes(piece);
      LOCKSTEP_ASSIGN_OR_RETURN(const double one, MedianOf(group, options.measure, [&](int64_t calls) {
                                  return RunOneWay(*link, group.leads(), calls, out.data(), in.data(), bytes);
                                }));
      LOCKSTEP_ASSIGN_OR_RETURN(const double both, MedianOf(group, options.measure, [&](int64_t calls) {
                                  return RunBothWays(*link, calls, out.data(), in.data(), bytes);
                                }));
      one_way = one_way == 0 ? one : std::min(one_way, one);
      if (both_ways == 0 || both < both_ways) {
        both_ways = both;
        best_piece = piece;
      }
    }
    const double gbps = static_cast<double>(bytes) / both_ways / 1e9;
    const bool whole = best_piece == BareLink::kWhole;
    rows->push_back({{"name", name},
                     {"bytes", bytes},
                     {"one_way_us", one_way * 1e6},
                     {"both_ways_us", both_ways * 1e6},
                     {"gbps_each_way", gbps},
                     {"piece_bytes", whole ? Json() : Json(best_piece)}});
    if (!group.leads()) continue;
    Print(table.Row({absl::StrCat(bytes), MicrosecondsText(one_way), MicrosecondsText(both_ways),
                     absl::StrFormat("%.3f", gbps), whole ? "-" : absl::StrCat(best_piece)}));
  }
  return absl::OkStatus();
}

absl::Status RunRank(Options options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinWorld(WorldOptions(), /*ranks=*/2, /*pin=*/true));
  const ProcessGroup group(world->communicator());
  Json report = {{"facts", ToJson(MachineFacts())}, {"rows", Json::array()}};
  if (group.leads()) Print(FactsText(MachineFacts()));
  std::vector<std::string> controls = absl::GetFlag(FLAGS_congestion);
  if (options.link.fabric || controls.empty()) controls = {""};
  for (const std::string& control : controls) {
    options.link.congestion_control = control;
    const std::string name = options.link.fabric ? "the bare provider"
                                                 : absl::StrCat("bare sockets, congestion control ",
                                                                control.empty() ? "as the system's" : control);
    LOCKSTEP_RETURN_IF_ERROR(MeasureLink(options, group, name, &report["rows"]));
  }
  const std::string path = absl::GetFlag(FLAGS_json);
  return group.leads() && !path.empty() ? WriteJson(report, path) : absl::OkStatus();
}

int Main(int argc, char** argv) {
  ParseFlags(argc, argv,
             "times bare sockets, or a bare provider of libfabric, between two "
             "processes of this machine");
  const absl::StatusOr<Options> options = OptionsFromFlags();
  if (!options.ok()) return Complain(options.status(), kWrongUsage);
  if (!IsRank()) return RunAsRanks(2, argv);
  const absl::Status status = RunRank(*options);
  return status.ok() ? 0 : Complain(status);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

// bare_fabric: the limits of a provider of libfabric between two processes of this machine, with no Lockstep code in the
// way. See --help. Each number is the median of the rounds; each of the two processes keeps to a core of its own.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "bench/limits/bare_fabric.h"
#include "bench/limits/bare_sockets.h"
#include "bench/ranks.h"
#include "bench/statistics.h"
#include "bench/sweep.h"

ABSL_FLAG(std::string, provider, "", "as LOCKSTEP_OFI_PROVIDER has it; empty: what Lockstep would choose");
ABSL_FLAG(std::string, host, "127.0.0.1", "the IPv4 address of the interface");
ABSL_FLAG(std::string, begin, "8", "smallest size in bytes; K, M and G are powers of 1024");
ABSL_FLAG(std::string, end, "64M", "largest size");
ABSL_FLAG(int64_t, factor, 8, "from one size to the next");
ABSL_FLAG(int, rounds, 5, "rounds, whose median counts");
ABSL_FLAG(int64_t, round_ms, 20, "about how long a round takes");
ABSL_FLAG(bool, json, false, "prints JSON instead of a table");

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// Above this a ping-pong tells nothing that the exchange does not.
constexpr int64_t kOneWayBytesMax = 64 << 10;
constexpr int64_t kCallsMax = 100'000;

struct Options {
  std::string provider;
  std::string host;
  std::vector<int64_t> sizes;
  int rounds = 0;
  double round_seconds = 0;
};

struct Result {
  int64_t bytes = 0;
  double one_way_seconds = 0;    // 0: not measured
  double both_ways_seconds = 0;  // in pieces or as a whole, whichever is faster
  bool in_pieces = false;
};

absl::StatusOr<Options> OptionsFromFlags() {
  Options options;
  options.provider = absl::GetFlag(FLAGS_provider);
  options.host = absl::GetFlag(FLAGS_host);
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t begin, ParseByteCount(absl::GetFlag(FLAGS_begin)));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t end, ParseByteCount(absl::GetFlag(FLAGS_end)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.sizes, SweepSizes(begin, end, absl::GetFlag(FLAGS_factor)));
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.round_seconds = static_cast<double>(absl::GetFlag(FLAGS_round_ms)) / 1e3;
  if (begin < 1 || options.rounds < 1 || options.round_seconds <= 0) {
    return absl::InvalidArgumentError("sizes, rounds and their time must be positive");
  }
  return options;
}

// The same on both sides: who is `first` sends first in a ping-pong, and says how many calls are a round.
class Side {
 public:
  Side(const Options& options, bool first, BareFabric* fabric)
      : options_(options), first_(first), fabric_(fabric), out_(options.sizes.back(), 'x'), in_(options.sizes.back()) {}

  absl::StatusOr<std::vector<Result>> Run() {
    std::vector<Result> results;
    for (const int64_t bytes : options_.sizes) {
      Result result;
      result.bytes = bytes;
      if (bytes <= kOneWayBytesMax) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double round_trip, Time(&Side::PingPong, bytes));
        result.one_way_seconds = round_trip / 2;
      }
      fabric_->set_piece_bytes(BareFabric::kWhole);
      LOCKSTEP_ASSIGN_OR_RETURN(result.both_ways_seconds, Time(&Side::Exchange, bytes));
      fabric_->set_piece_bytes(BareFabric::kPieceBytes);
      if (static_cast<size_t>(bytes) > BareFabric::kPieceBytes) {
        LOCKSTEP_ASSIGN_OR_RETURN(const double seconds, Time(&Side::Exchange, bytes));
        result.in_pieces = seconds < result.both_ways_seconds;
        result.both_ways_seconds = std::min(seconds, result.both_ways_seconds);
      }
      results.push_back(result);
    }
    return results;
  }

 private:
  using Call = absl::Status (Side::*)(int64_t bytes);

  absl::Status Exchange(int64_t bytes) { return fabric_->Exchange(out_.data(), bytes, in_.data(), bytes); }
  absl::Status PingPong(int64_t bytes) {
    if (first_) LOCKSTEP_RETURN_IF_ERROR(fabric_->Send(out_.data(), bytes));
    LOCKSTEP_RETURN_IF_ERROR(fabric_->Receive(in_.data(), bytes));
    return first_ ? absl::OkStatus() : fabric_->Send(out_.data(), bytes);
  }

  // Seconds a call, the median of the rounds.
  absl::StatusOr<double> Time(Call call, int64_t bytes) {
    constexpr int kWarmUpCalls = 10;
    LOCKSTEP_ASSIGN_OR_RETURN(const double estimate, TimeRound(call, bytes, kWarmUpCalls));
    int64_t calls = std::max<int64_t>(1, std::min<int64_t>(kCallsMax, options_.round_seconds / estimate));
    int64_t theirs = calls;
    LOCKSTEP_RETURN_IF_ERROR(fabric_->Exchange(&calls, sizeof(calls), &theirs, sizeof(theirs)));
    if (!first_) calls = theirs;
    std::vector<double> seconds;
    for (int round = 0; round < options_.rounds; ++round) {
      LOCKSTEP_ASSIGN_OR_RETURN(const double once, TimeRound(call, bytes, calls));
      seconds.push_back(once);
    }
    return Median(seconds);
  }

  absl::StatusOr<double> TimeRound(Call call, int64_t bytes, int64_t calls) {
    char byte = 0;
    LOCKSTEP_RETURN_IF_ERROR(fabric_->Exchange(&byte, 1, &byte, 1));
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < calls; ++i) LOCKSTEP_RETURN_IF_ERROR((this->*call)(bytes));
    return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
  }

  const Options& options_;
  const bool first_;
  BareFabric* const fabric_;
  std::vector<char> out_;
  std::vector<char> in_;
};

double GigabytesASecond(const Result& result) {
  return static_cast<double>(result.bytes) / result.both_ways_seconds / 1e9;
}

void PrintTable(const std::string& provider, const std::vector<Result>& results) {
  std::printf("%s\n%12s %14s %14s %16s\n", provider.c_str(), "bytes", "one way us", "both ways us", "GB/s each way");
  for (const Result& result : results) {
    std::printf("%12lld ", static_cast<long long>(result.bytes));
    if (result.one_way_seconds > 0) {
      std::printf("%14.2f", result.one_way_seconds * 1e6);
    } else {
      std::printf("%14s", "");
    }
    std::printf(" %14.2f %16.3f%s\n", result.both_ways_seconds * 1e6, GigabytesASecond(result),
                result.in_pieces ? "  in pieces" : "");
  }
}

void PrintJson(const std::string& provider, const std::vector<Result>& results) {
  Json json = {{"provider", provider}, {"rows", Json::array()}};
  for (const Result& result : results) {
    json["rows"].push_back({{"size_bytes", result.bytes},
                            {"one_way_us", result.one_way_seconds > 0 ? Json(result.one_way_seconds * 1e6) : Json()},
                            {"both_ways_us", result.both_ways_seconds * 1e6},
                            {"gbps_each_way", GigabytesASecond(result)},
                            {"in_pieces", result.in_pieces}});
  }
  std::printf("%s\n", json.dump(2).c_str());
}

absl::Status RunSide(const Options& options, bool first, BareLink* socket) {
  LOCKSTEP_RETURN_IF_ERROR(PinToCore(first ? 0 : 1, 2));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<BareFabric> fabric,
                            BareFabric::Connect(options.provider, options.host, socket));
  Side side(options, first, fabric.get());
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Result> results, side.Run());
  if (!first) return absl::OkStatus();
  (absl::GetFlag(FLAGS_json) ? PrintJson : PrintTable)(fabric->provider(), results);
  return absl::OkStatus();
}

absl::Status RunChild(const Options& options, uint16_t port) {
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, BareSocket::Connect(port, ""));
  return RunSide(options, /*first=*/false, &socket);
}

absl::Status RunParent(const Options& options, BareListener* listener) {
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, listener->Accept());
  return RunSide(options, /*first=*/true, &socket);
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "bare_fabric: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times a provider of libfabric between two processes of this machine");
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) return Report(absl::InvalidArgumentError(std::string(words[1]) + " is no flag; see --help"));
  const absl::StatusOr<Options> options = OptionsFromFlags();
  if (!options.ok()) return Report(options.status());
  absl::StatusOr<BareListener> listener = BareListener::Create("");
  if (!listener.ok()) return Report(listener.status());
  // Before libfabric is opened, which does not survive a fork.
  const pid_t child = fork();
  if (child < 0) return Report(ErrnoStatus(errno, "fork"));
  if (child == 0) _exit(Report(RunChild(*options, listener->port())));
  const int result = Report(RunParent(*options, &*listener));
  int child_status = 0;
  waitpid(child, &child_status, 0);
  return result != 0 || child_status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

#include "bench/limits_comparison.h"

#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/status.h"
#include "bench/limits/bare_fabric.h"
#include "bench/limits/bare_link.h"
#include "bench/limits/bare_sockets.h"
#include "bench/limits/pingpong.h"
#include "bench/measure.h"
#include "bench/pattern.h"
#include "bench/statistics.h"

namespace lockstep {
namespace bench {
namespace {

// Above this a ping-pong tells nothing that the exchange does not.
constexpr int64_t kOneWayBytesMax = 64 << 10;

using BareLinks = std::vector<std::unique_ptr<BareLink>>;

absl::StatusOr<BareSocket> ConnectBareSockets(const Team& team, const LimitsOptions& options) {
  if (team.leads()) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareListener listener, BareListener::Create(options.congestion_control, options.host));
    LOCKSTEP_RETURN_IF_ERROR(team.FromLeader(listener.port()).status());
    return listener.Accept();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t port, team.FromLeader(0));
  return BareSocket::Connect(static_cast<uint16_t>(port), options.congestion_control, options.host);
}

// The one that is measured comes last; what it was connected by stays open as long.
absl::StatusOr<BareLinks> ConnectBareLinks(const Team& team, const LimitsOptions& options) {
  BareLinks links;
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, ConnectBareSockets(team, options));
  links.push_back(std::make_unique<BareSocket>(std::move(socket)));
  if (!options.fabric) return links;
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BareFabric> fabric,
      BareFabric::Connect(GetEnv("LOCKSTEP_OFI_PROVIDER").value_or(""), options.host, links.back().get()));
  links.push_back(std::move(fabric));
  return links;
}

// What is compared, in one place for one size.
class Contest {
 public:
  enum Contender { kLockstep = 0, kExchange = 1, kOneWay = 2, kPingpong = 3 };
  static constexpr int kContenders = 4;

  Contest(const Team& team, int64_t bytes, Subject* subject, BareLink* link, Memory* memory)
      : team_(team), bytes_(static_cast<size_t>(bytes)), subject_(subject), link_(link), memory_(memory) {}

  absl::Status Run(Contender contender, int64_t calls) {
    switch (contender) {
      case kLockstep:
        return subject_->Run(calls);
      case kExchange:
        for (int64_t i = 0; i < calls; ++i) {
          LOCKSTEP_RETURN_IF_ERROR(link_->Exchange(memory_->vector(0), bytes_, memory_->vector(1), bytes_));
        }
        return absl::OkStatus();
      case kOneWay:
        // Two ways are one call each: an odd last one goes from rank 0 to rank 1.
        for (int64_t i = 0; i < calls; ++i) {
          const bool sends = team_.leads() == (i % 2 == 0);
          LOCKSTEP_RETURN_IF_ERROR(sends ? link_->Send(memory_->vector(0), bytes_)
                                         : link_->Receive(memory_->vector(1), bytes_));
        }
        return absl::OkStatus();
      case kPingpong:
        break;  // times itself
    }
    return absl::OkStatus();
  }

 private:
  const Team& team_;
  const size_t bytes_;
  Subject* const subject_;
  BareLink* const link_;
  Memory* const memory_;
};

// The seconds of a message one way, alike on both ranks.
absl::StatusOr<double> PlayPingpong(const Team& team, int64_t bytes, Pingpong* pingpong) {
  Pingpong::Run run;
  if (team.leads()) {
    LOCKSTEP_ASSIGN_OR_RETURN(run, pingpong->Plan(bytes));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t port, team.FromLeader(run.port));
  run.port = static_cast<uint16_t>(port);
  LOCKSTEP_ASSIGN_OR_RETURN(run.messages, team.FromLeader(run.messages));
  LOCKSTEP_ASSIGN_OR_RETURN(const double seconds,
                            pingpong->Play(run, team.leads(), bytes, Deadline::AfterMs(Pingpong::kRunMsMax)));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t picoseconds, team.FromLeader(std::llround(seconds * 1e12)));
  return static_cast<double>(picoseconds) * 1e-12;
}

// `pingpong` may be null.
absl::StatusOr<LimitRow> Compare(const Team& team, const LimitsOptions& options, int64_t bytes, Contest* contest,
                                 Pingpong* pingpong) {
  std::vector<int> contenders = {Contest::kLockstep, Contest::kExchange};
  if (bytes <= kOneWayBytesMax) contenders.push_back(Contest::kOneWay);
  if (pingpong != nullptr) contenders.push_back(Contest::kPingpong);
  MeasureOptions measure;
  measure.round_time = options.round_time;
  std::array<int64_t, Contest::kContenders> iterations = {};
  std::array<std::vector<double>, Contest::kContenders> times;
  std::array<std::vector<double>, Contest::kContenders> ratios;
  const auto calls_of = [contest](int contender) {
    return
        [contest, contender](int64_t calls) { return contest->Run(static_cast<Contest::Contender>(contender), calls); };
  };
  for (const int i : contenders) {
    if (i == Contest::kPingpong) {
      LOCKSTEP_RETURN_IF_ERROR(PlayPingpong(team, bytes, pingpong).status());
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(iterations[i], WarmUp(team, measure, calls_of(i)));
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    std::array<double, Contest::kContenders> seconds = {};
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      const int i = contenders[(turn + static_cast<size_t>(round)) % contenders.size()];
      if (i == Contest::kPingpong) {
        LOCKSTEP_ASSIGN_OR_RETURN(seconds[i], PlayPingpong(team, bytes, pingpong));
      } else {
        LOCKSTEP_ASSIGN_OR_RETURN(seconds[i], TimeRound(team, iterations[i], calls_of(i)));
      }
    }
    for (const int i : contenders) {
      times[i].push_back(seconds[i]);
      ratios[i].push_back(seconds[Contest::kLockstep] / seconds[i]);
    }
  }
  LimitRow row;
  row.bytes = bytes;
  row.lockstep_seconds = Median(times[Contest::kLockstep]);
  row.exchange_seconds = Median(times[Contest::kExchange]);
  row.exchange_ratio = QuartilesOf(ratios[Contest::kExchange]);
  if (!times[Contest::kOneWay].empty()) {
    row.one_way_seconds = Median(times[Contest::kOneWay]);
    row.one_way_ratio = QuartilesOf(ratios[Contest::kOneWay]);
  }
  if (!times[Contest::kPingpong].empty()) {
    row.pingpong_seconds = Median(times[Contest::kPingpong]);
    row.pingpong_ratio = QuartilesOf(ratios[Contest::kPingpong]);
  }
  return row;
}

}  // namespace

std::vector<int64_t> DefaultLimitSizes() {
  return {8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20};
}

absl::Status CompareWithLimits(const Team& team, const LimitsOptions& options, Memory* memory,
                               absl::FunctionRef<void(const LimitRow&)> on_row) {
  if (team.size() != 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("a limit is between two processes, and there are ", team.size(), " ranks"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const BareLinks links, ConnectBareLinks(team, options));
  std::unique_ptr<Pingpong> pingpong;
  if (options.pingpong) {
    // Of the provider that was found.
    pingpong = std::make_unique<Pingpong>(static_cast<BareFabric&>(*links.back()).provider(), options.host);
  }
  SubjectKind kind;
  kind.in_place = true;
  LOCKSTEP_ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Create(kind.dtype, kind.op, team.size()));
  for (const int64_t bytes : options.sizes) {
    const SubjectSize size = SizeOfSubject(kind, team.size(), bytes);
    Subject subject(kind, size, team.communicator(), &pattern, memory);
    subject.Fill();
    Contest contest(team, size.bytes, &subject, links.back().get(), memory);
    LOCKSTEP_ASSIGN_OR_RETURN(const LimitRow row, Compare(team, options, size.bytes, &contest, pingpong.get()));
    on_row(row);
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep

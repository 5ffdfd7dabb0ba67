// The ranks of a limit in bench:compare. Usage: compare_limit_player FOLDER BYTES_MAX - SIZE KIND [CONGESTION_CONTROL],
// where KIND is direct or bounce, which sum; or both_ways or one_way, which only move bytes between two bare sockets; or
// fabric_both_ways, fabric_in_pieces or fabric_one_way, which do so over a bare provider of libfabric, or fabric_pingpong, which has
// libfabric's own program do it.

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/deadline.h"
#include "base/env.h"
#include "base/status.h"
#include "bench/limits/bare_fabric.h"
#include "bench/limits/bare_link.h"
#include "bench/limits/bare_sockets.h"
#include "bench/limits/bounce.h"
#include "bench/limits/direct.h"
#include "bench/limits/pingpong.h"
#include "bench/peers/player.h"

namespace lockstep {
namespace bench {
namespace {

struct Arguments {
  std::string folder;
  size_t bytes_max = 0;
  int size = 0;
  std::string kind;
  std::string congestion_control;
};

constexpr char kFabric[] = "fabric_";
constexpr char kFabricPingpong[] = "fabric_pingpong";

// The last one is what bytes are moved over; it was connected by those before.
using BareLinks = std::vector<std::unique_ptr<BareLink>>;

// One rank of some kind. `Call` is one all-reduce, or what stands for it.
class Limit {
 public:
  virtual ~Limit() = default;
  virtual absl::Status Call(float* data, size_t count) = 0;
  // Where the vector has to lie; null: anywhere.
  virtual float* vector() { return nullptr; }
  // In place of Call for a limit that times itself: the seconds of one.
  virtual bool times_itself() const { return false; }
  virtual absl::StatusOr<double> Measure(int64_t /*bytes*/) { return absl::UnimplementedError("its calls are timed"); }
};

class Direct : public Limit {
 public:
  Direct(const DirectAllReduce* direct, int rank) : direct_(direct), rank_(rank) {}
  absl::Status Call(float* data, size_t count) override { return direct_->Run(rank_, count); }
  float* vector() override { return direct_->vector(rank_); }

 private:
  const DirectAllReduce* const direct_;
  const int rank_;
};

class Bounce : public Limit {
 public:
  Bounce(const BounceAllReduce* bounce, int rank) : bounce_(bounce), rank_(rank) {}
  absl::Status Call(float* data, size_t count) override { return bounce_->Run(rank_, data, count); }

 private:
  const BounceAllReduce* const bounce_;
  const int rank_;
};

class BothWays : public Limit {
 public:
  BothWays(BareLinks links, size_t bytes_max) : links_(std::move(links)), arriving_(bytes_max / sizeof(float)) {}
  absl::Status Call(float* data, size_t count) override {
    return links_.back()->Exchange(data, count * sizeof(float), arriving_.data(), count * sizeof(float));
  }

 private:
  const BareLinks links_;
  std::vector<float> arriving_;
};

class OneWay : public Limit {
 public:
  OneWay(BareLinks links, size_t bytes_max, bool sends)
      : links_(std::move(links)), arriving_(bytes_max / sizeof(float)), sends_(sends) {}
  // Two ways are one call each.
  absl::Status Call(float* data, size_t count) override {
    const bool sends = std::exchange(sends_, !sends_);
    BareLink& link = *links_.back();
    return sends ? link.Send(data, count * sizeof(float)) : link.Receive(arriving_.data(), count * sizeof(float));
  }

 private:
  const BareLinks links_;
  std::vector<float> arriving_;
  bool sends_;
};

// Rank 0 tells what both run in the page's note.
class FabricPingpong : public Limit {
 public:
  FabricPingpong(const std::string& provider, lockstep_player* player)
      : pingpong_(provider, "127.0.0.1"), player_(player) {}
  absl::Status Call(float* /*data*/, size_t /*count*/) override { return absl::UnimplementedError("it times itself"); }
  bool times_itself() const override { return true; }
  absl::StatusOr<double> Measure(int64_t bytes) override {
    const bool serves = player_->rank == 0;
    uint64_t& note = player_->page->note;
    Pingpong::Run run;
    if (serves) {
      LOCKSTEP_ASSIGN_OR_RETURN(run, pingpong_.Plan(bytes));
      note = static_cast<uint64_t>(run.messages) << 16 | run.port;
    }
    lockstep_player_meet(player_);
    run.port = static_cast<uint16_t>(note);
    run.messages = static_cast<int64_t>(note >> 16);
    return pingpong_.Play(run, serves, bytes, Deadline::AfterMs(Pingpong::kRunMsMax));
  }

 private:
  Pingpong pingpong_;
  lockstep_player* const player_;
};

// Rank 0 tells its port in the page's note.
absl::StatusOr<BareSocket> ConnectBareSockets(const std::string& congestion_control, lockstep_player* player) {
  if (lockstep_player_open_page(player) != 0) return absl::UnavailableError(player->error);
  if (player->rank == 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(BareListener listener, BareListener::Create(congestion_control));
    player->page->note = listener.port();
    lockstep_player_meet(player);
    return listener.Accept();
  }
  lockstep_player_meet(player);
  return BareSocket::Connect(static_cast<uint16_t>(player->page->note), congestion_control);
}

absl::StatusOr<BareLinks> ConnectBareLinks(const Arguments& arguments, lockstep_player* player) {
  BareLinks links;
  LOCKSTEP_ASSIGN_OR_RETURN(BareSocket socket, ConnectBareSockets(arguments.congestion_control, player));
  links.push_back(std::make_unique<BareSocket>(std::move(socket)));
  if (!absl::StartsWith(arguments.kind, kFabric)) return links;
  LOCKSTEP_ASSIGN_OR_RETURN(
      std::unique_ptr<BareFabric> fabric,
      BareFabric::Connect(GetEnv("LOCKSTEP_OFI_PROVIDER").value_or(""), "127.0.0.1", links.back().get()));
  if (arguments.kind != "fabric_in_pieces") fabric->set_piece_bytes(BareFabric::kWhole);
  links.push_back(std::move(fabric));
  return links;
}

// What the ranks share, made before they are forked.
struct Shared {
  std::unique_ptr<DirectAllReduce> direct;
  std::unique_ptr<BounceAllReduce> bounce;
};

absl::StatusOr<Shared> MakeShared(const Arguments& arguments) {
  Shared shared;
  if (arguments.kind == "direct") {
    LOCKSTEP_ASSIGN_OR_RETURN(DirectAllReduce direct, DirectAllReduce::Create(arguments.size, arguments.bytes_max));
    shared.direct = std::make_unique<DirectAllReduce>(std::move(direct));
    return shared;
  }
  if (arguments.size != 2) return absl::InvalidArgumentError(arguments.kind + " is for two ranks");
  if (arguments.kind == "bounce") {
    LOCKSTEP_ASSIGN_OR_RETURN(BounceAllReduce bounce, BounceAllReduce::Create());
    shared.bounce = std::make_unique<BounceAllReduce>(std::move(bounce));
    return shared;
  }
  for (const char* const kind :
       {"both_ways", "one_way", "fabric_both_ways", "fabric_in_pieces", "fabric_one_way", kFabricPingpong}) {
    if (arguments.kind == kind) return shared;
  }
  return absl::InvalidArgumentError("no limit '" + arguments.kind + "'");
}

absl::StatusOr<std::unique_ptr<Limit>> MakeLimit(const Arguments& arguments, const Shared& shared,
                                                 lockstep_player* player) {
  if (shared.direct != nullptr) return std::make_unique<Direct>(shared.direct.get(), player->rank);
  if (shared.bounce != nullptr) return std::make_unique<Bounce>(shared.bounce.get(), player->rank);
  player->moves_only = 1;
  LOCKSTEP_ASSIGN_OR_RETURN(BareLinks links, ConnectBareLinks(arguments, player));
  if (arguments.kind == kFabricPingpong) {
    // Of the provider that the others found. No side leaves before the other has connected.
    lockstep_player_meet(player);
    return std::make_unique<FabricPingpong>(static_cast<BareFabric&>(*links.back()).provider(), player);
  }
  if (!absl::EndsWith(arguments.kind, "one_way")) {
    return std::make_unique<BothWays>(std::move(links), arguments.bytes_max);
  }
  return std::make_unique<OneWay>(std::move(links), arguments.bytes_max, /*sends=*/player->rank == 0);
}

struct Rank {
  std::unique_ptr<Limit> limit;
  lockstep_player player = {};
};

void SetError(const absl::Status& status, lockstep_player* player) {
  const std::string message(status.message());
  std::snprintf(player->error, sizeof(player->error), "%s", message.c_str());
}

int Call(void* context, float* data, size_t count) {
  Rank* const rank = static_cast<Rank*>(context);
  const absl::Status status = rank->limit->Call(data, count);
  if (status.ok()) return 0;
  SetError(status, &rank->player);
  return -1;
}

int Measure(void* context, size_t bytes, double* seconds) {
  Rank* const rank = static_cast<Rank*>(context);
  const absl::StatusOr<double> measured = rank->limit->Measure(static_cast<int64_t>(bytes));
  if (!measured.ok()) {
    SetError(measured.status(), &rank->player);
    return -1;
  }
  *seconds = *measured;
  return 0;
}

int RunRank(const Arguments& arguments, const Shared& shared, int number) {
  Rank rank;
  rank.player.folder = arguments.folder.c_str();
  rank.player.rank = number;
  rank.player.size = arguments.size;
  rank.player.bytes_max = arguments.bytes_max;
  rank.player.allreduce = &Call;
  rank.player.context = &rank;
  // Until it plays, which sets the alarm anew.
  alarm(LOCKSTEP_PLAYER_PATIENCE_S);
  absl::StatusOr<std::unique_ptr<Limit>> limit = MakeLimit(arguments, shared, &rank.player);
  if (!limit.ok()) {
    SetError(limit.status(), &rank.player);
    return lockstep_player_refuse(&rank.player);
  }
  rank.limit = *std::move(limit);
  rank.player.data = rank.limit->vector();
  if (rank.limit->times_itself()) rank.player.measure = &Measure;
  return lockstep_player_play(&rank.player);
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (argc < 6 || argc > 7 || !absl::SimpleAtoi(argv[2], &arguments.bytes_max) ||
      !absl::SimpleAtoi(argv[4], &arguments.size) || arguments.size < 1) {
    std::fprintf(stderr, "usage: compare_limit_player FOLDER BYTES_MAX - SIZE KIND [CONGESTION_CONTROL]\n");
    return 2;
  }
  arguments.folder = argv[1];
  arguments.kind = argv[5];
  if (argc > 6) arguments.congestion_control = argv[6];
  const absl::StatusOr<Shared> shared = MakeShared(arguments);
  if (!shared.ok()) {
    std::fprintf(stderr, "%s\n", std::string(shared.status().message()).c_str());
    return 1;
  }
  for (int rank = 0; rank < arguments.size; ++rank) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("fork");
      return 1;
    }
    if (child == 0) _exit(RunRank(arguments, *shared, rank));
  }
  // A rank ends when the driver is gone, or by the alarm.
  int result = 0;
  int status = 0;
  while (wait(&status) > 0 || errno == EINTR) result = result != 0 || status != 0 ? 1 : 0;
  return result;
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

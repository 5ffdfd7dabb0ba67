#include "bench/compare_own.h"

#include "absl/strings/str_cat.h"
#include "bench/limits/pingpong.h"

namespace lockstep {
namespace bench {
namespace {

// Above this a ping-pong tells nothing that the exchange does not.
constexpr int64_t kOneWayBytesMax = 64 << 10;

Contender Limit(const OwnPlayers& players, const std::string& name, const std::string& kind, const std::string& about) {
  Contender contender;
  contender.name = name;
  contender.kind = ContenderKind::kLimit;
  contender.about = about;
  contender.command = {players.limit};
  contender.options = {kind};
  // It forks its ranks: they share memory that has no name.
  contender.process_per_rank = false;
  return contender;
}

}  // namespace

std::vector<Contender> LockstepContenders(const OwnPlayers& players, const std::string& transport) {
  Contender ordinary;
  ordinary.name = "lockstep";
  ordinary.kind = ContenderKind::kLockstep;
  ordinary.about = absl::StrCat("LOCKSTEP_TRANSPORT=", transport, ", ordinary memory");
  ordinary.command = {players.lockstep};
  ordinary.environment = {{"LOCKSTEP_TRANSPORT", transport}};
  if (transport != "shm") return {ordinary};
  Contender symmetric = ordinary;
  symmetric.name = "lockstep symm";
  symmetric.about = absl::StrCat("LOCKSTEP_TRANSPORT=", transport, ", memory of the communicator's allocator");
  symmetric.options = {"symmetric"};
  return {ordinary, symmetric};
}

std::vector<Contender> LimitContenders(const OwnPlayers& players, const std::string& transport, int ranks,
                                       const std::string& congestion_control) {
  std::vector<Contender> limits;
  if (transport == "shm") {
    limits.push_back(Limit(players, "direct", "direct", "every rank sums its block in the memory of all, one pass"));
    if (ranks == 2) {
      limits.push_back(Limit(players, "bounce", "bounce", "private memory, 128 KiB chunks through a mailbox"));
    }
  }
  if (transport == "tcp" && ranks == 2) {
    const std::string name = congestion_control.empty() ? "the system's default" : congestion_control;
    limits.push_back(Limit(players, "both ways", "both_ways",
                           absl::StrCat("bare sockets, vectors both ways at once, congestion control ", name)));
    limits.push_back(Limit(players, "one way", "one_way",
                           absl::StrCat("bare sockets, half a ping-pong, congestion control ", name)));
    limits.back().bytes_max = kOneWayBytesMax;
    for (Contender& limit : limits) {
      limit.options.push_back(congestion_control);
      limit.moves_only = true;
    }
  }
  if (transport == "ofi" && ranks == 2) {
    limits.push_back(Limit(players, "both ways", "fabric_both_ways", "the bare provider, vectors both ways at once"));
    limits.push_back(
        Limit(players, "in pieces", "fabric_in_pieces", "the bare provider, both ways at once in pieces of 256 KiB"));
    limits.push_back(Limit(players, "one way", "fabric_one_way", "the bare provider, half a ping-pong"));
    limits.back().bytes_max = kOneWayBytesMax;
    if (Pingpong::Installed().ok()) {
      limits.push_back(Limit(players, "fi_pingpong", "fabric_pingpong", "libfabric's own program, a message one way"));
    }
    for (Contender& limit : limits) limit.moves_only = true;
  }
  return limits;
}

}  // namespace bench
}  // namespace lockstep

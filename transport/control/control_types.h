// What ranks tell each other over the control channel, for its users and its parts alike.

#ifndef TRANSPORT_CONTROL_CONTROL_TYPES_H_
#define TRANSPORT_CONTROL_CONTROL_TYPES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clipped.h"
#include "base/rank.h"
#include "transport/net/socket.h"
#include "transport/transport.h"

namespace lockstep {

// What a rank tells the others about itself.
struct Member {
  Rank rank;
  std::string host;     // host name, for messages
  std::string host_id;  // equal on ranks that share a host: boot id and namespace, or LOCKSTEP_HOST_ID
  int64_t pid = 0;
  // Its rank among the processes of lockstep-run's job, of which this world may be a part; -1: it has none.
  int64_t launched_as = -1;
  SocketAddress data_address;  // where it listens for TCP; none if it does not
  std::string shm_address;     // of its shared memory; "none: " and the reason if it has none; empty if it does not try
  std::string ofi_address;     // of the transport that carries everything, as libfabric; empty if there is none
  // The cores that it may run on: core i is bit i % 64 of word i / 64. Empty: unknown.
  std::vector<uint64_t> cores;
};

// "rank 2 (host b, pid 71)".
inline std::string Describe(const Member& member) {
  return absl::StrCat("rank ", member.rank.value(), " (host ", Clipped(member.host), ", pid ", member.pid, ")");
}

// An option that must be equal on all ranks, by name.
using AgreedOption = std::pair<std::string, std::string>;

struct Failure {
  // The channel it ends, or kAllChannels.
  ChannelId channel = 0;
  absl::Status status;
};
inline constexpr ChannelId kAllChannels = 0xffffffff;

// Progress of a rank on a channel. Sequence numbers count collectives from 1; 0 is none.
struct Progress {
  uint64_t started = 0;
  uint64_t completed = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_TYPES_H_

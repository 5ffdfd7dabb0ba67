// The hub of the control channel: the thread in rank 0's process to which every rank, rank 0 included, has a
// connection.
//
// Its thread ("lockstep-hub") accepts, tells strangers from ranks, moves messages between connections and the World,
// sends heartbeats and listens for silence. It never blocks on a peer: what a rank does not read queues up to a bound,
// beyond which the rank counts as unresponsive. Strangers have a few seconds for a proper hello and only so many may
// try at a time. While the world gathers, a hub that cannot take connections from one heartbeat to the next fails the set-up.
// A hub that was itself stopped (SIGSTOP, a frozen machine) starts its clocks anew instead of blaming
// everybody.

#ifndef TRANSPORT_CONTROL_CONTROL_HUB_H_
#define TRANSPORT_CONTROL_CONTROL_HUB_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace control {

// Between two heartbeats, either way.
std::chrono::milliseconds HeartbeatInterval(std::chrono::milliseconds peer_timeout);

// A loop that turns once a heartbeat and took longer than this was stopped: it must not judge the silence of others.
std::chrono::milliseconds StallLimit(std::chrono::milliseconds peer_timeout);

// What both ends say of a peer that was silent for too long.
std::string SilenceText(std::chrono::milliseconds peer_timeout);
inline constexpr char kClosedText[] = "died: control connection closed";

class Hub {
 public:
  struct Options {
    SocketAddress bind_address;
    int size = 1;
    std::string job_id;
    uint64_t world_id = 0;
    std::chrono::milliseconds peer_timeout{0};
    Member self;  // rank 0 as it is named until it has joined
    // A connection without a proper hello is dropped after this.
    std::chrono::milliseconds hello_timeout{5000};
  };

  static absl::StatusOr<std::unique_ptr<Hub>> Start(Options options);

  // Says goodbye to all ranks, sends what their sockets take at once, and ends the thread. Waits for no peer.
  virtual ~Hub() = default;
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  virtual const SocketAddress& address() const = 0;

  // OK, or why it cannot take connections, which has failed the set-up. Any thread.
  virtual absl::Status status() const = 0;

  // Ranks that the hub has told nothing yet, neither a welcome nor why not, in order. Any thread.
  virtual std::vector<int> untold() const = 0;

 protected:
  Hub() = default;
};

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_HUB_H_

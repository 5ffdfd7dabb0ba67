// Coordinator: the thread in rank 0's process to which every rank, rank 0 included, has a control connection.
//
// Its thread ("lockstep-coord") accepts connections, checks the hellos of ranks, moves messages between connections and the World,
// sends heartbeats and watches for silence. It never blocks on a peer. What a rank does not read is queued up to a bound; beyond
// that the rank counts as unresponsive. A peer has a few seconds for the handshake and a proper hello, and until then nothing but
// these is looked at. The number of such peers is bounded, too; one of them is closed where a descriptor is needed. While the world
// gathers, a coordinator that cannot accept connections for a whole heartbeat all the same fails the set-up. A coordinator that was
// itself stopped (SIGSTOP, a frozen machine) restarts its clocks instead of blaming everybody.

#ifndef TRANSPORT_CONTROL_CONTROL_COORDINATOR_H_
#define TRANSPORT_CONTROL_CONTROL_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/control/control_types.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/refusals.h"
#include "transport/secure/secret.h"

namespace lockstep::control {

// Between two heartbeats, either way.
std::chrono::milliseconds HeartbeatInterval(std::chrono::milliseconds peer_timeout);

// A loop that runs once a heartbeat and took longer than this was stopped: it must not judge the silence of others.
std::chrono::milliseconds StallLimit(std::chrono::milliseconds peer_timeout);

// What either end says of a peer that was silent for too long.
std::string SilenceText(std::chrono::milliseconds peer_timeout);

class Coordinator {
 public:
  struct Options {
    SocketAddress bind_address;
    int size = 1;
    std::string job_id;
    uint64_t world_id = 0;
    std::chrono::milliseconds peer_timeout{0};
    Member self;  // rank 0, until it has joined
    // What ranks have to prove.
    Credentials credentials;
    // What they are then told; null without security.
    std::shared_ptr<const Secret> world_secret;
    // What may keep ranks away that have not joined; "" if nothing is known. For what is said of them until the world forms. Called on
    // the coordinator's thread; may be null.
    std::function<std::string()> why_missing;
    // A connection without a proper hello is dropped after this.
    std::chrono::milliseconds hello_timeout{5000};
  };

  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(Options options);

  // Disconnects from all ranks, sends what their sockets take at once, and ends the thread. Waits for no peer, but after a failure until
  // the ranks' systems have acknowledged its announcement, at most two seconds.
  virtual ~Coordinator() = default;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  virtual const SocketAddress& address() const = 0;

  // OK, or why it cannot accept connections; the set-up has failed then. Any thread.
  virtual absl::Status status() const = 0;

  // The ranks that have received neither a welcome nor a refusal yet, in order. Any thread.
  virtual std::vector<int> untold() const = 0;

  // The peers that it has turned away. Any thread.
  virtual const Refusals& refusals() const = 0;

 protected:
  Coordinator() = default;
};

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_COORDINATOR_H_

// Acceptor: the listener of a TcpTransport and the connections that have not shaken hands yet.
//
// Whoever connects must prove that it has the secret, and send a hello that fits, by a deadline. Strangers, silence and floods cost a
// bounded number of descriptors, a bounded part of each Poll, and one log line a second of each kind. The listener and these connections
// have an epoll set of their own, so that they do not crowd the events of connections that carry data.

#ifndef TRANSPORT_TCP_ACCEPTOR_H_
#define TRANSPORT_TCP_ACCEPTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "transport/net/socket.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/opening.h"
#include "transport/tcp/socket_tuning.h"

namespace lockstep {

// Externally synchronised, but for refusals().
class Acceptor {
 public:
  // A peer whose hello fits. It waits for SendAnswer.
  struct Arrival {
    Hello hello;
    UniqueFd socket;
    std::unique_ptr<Opening> opening;
  };

  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(const TcpTransportOptions& options);

  const SocketAddress& address() const { return address_; }
  const Refusals& refusals() const { return refusals_; }

  // Readable (level-triggered) while Poll has something to do. A deadline does not show here.
  int event_descriptor() const { return events_.get(); }
  // When Poll is due even without an event.
  Deadline next_deadline() const;

  // Accepts, goes on with handshakes, reads hellos, answers those that do not fit, drops who is late. Never waits, and leaves the rest to
  // the next call when there is much.
  std::vector<Arrival> Poll();

  // Answers. On a rejection it also discards what else the peer sent: a socket that is closed with unread data resets the
  // connection, perhaps before the answer is read. Reports no failure; the next use of the socket does.
  static void SendAnswer(int socket, Opening* opening, const Answer& answer);

 private:
  struct Pending {
    UniqueFd socket;
    SocketAddress peer;
    std::unique_ptr<Opening> opening;
  };
  enum class Outcome { kWaiting, kArrived, kDropped };

  Acceptor(UniqueFd listener, UniqueFd events, const SocketAddress& address, const TcpTransportOptions& options);

  void AcceptSome();
  void Admit(UniqueFd socket, const SocketAddress& peer);
  // Reads as much of a hello as is there.
  Outcome Read(Pending* pending, Hello* hello);
  Outcome Reject(Pending* pending, const Answer& answer, absl::string_view why);
  // Closes a connection that has not shaken hands.
  void Drop(uint64_t id, Refusal refusal, absl::string_view why);

  // Constant after construction.
  const UniqueFd listener_;
  const UniqueFd events_;
  const SocketAddress address_;
  const TcpTransportOptions options_;

  Refusals refusals_;
  // By an ID that comes with events, from 1: 0 is the listener's.
  absl::flat_hash_map<uint64_t, Pending> pending_;
  HalfOpen half_open_;
  uint64_t last_id_ = 0;
  // Set when the system had no descriptor left for a new connection: accepting rests until then.
  Deadline accept_again_ = Deadline::Infinite();
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_ACCEPTOR_H_

// Acceptor: the listener of a TcpTransport and the connections that have not shaken hands yet.
//
// Whoever connects must send a hello that fits by a deadline. Unauthenticated peers, silence and floods cost a bounded number
// of descriptors and one log line a second. The listener and these connections have an epoll set of their own, so that they
// do not crowd the events of connections that carry data.

#ifndef TRANSPORT_TCP_ACCEPTOR_H_
#define TRANSPORT_TCP_ACCEPTOR_H_

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/socket_tuning.h"

namespace lockstep {

// Externally synchronised.
class Acceptor {
 public:
  // A peer whose hello fits. It waits for SendAnswer.
  struct Arrival {
    Hello hello;
    UniqueFd socket;
  };

  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(const TcpTransportOptions& options);

  const SocketAddress& address() const { return address_; }

  // Readable (level-triggered) while Poll has something to do. A deadline does not show here.
  int event_descriptor() const { return events_.get(); }
  // When Poll is due even without an event.
  Deadline next_deadline() const;

  // Accepts, reads hellos, answers those that do not fit, drops who is late. Never waits.
  std::vector<Arrival> Poll();

  // Answers. On a rejection it also discards what else the peer sent: a socket that is closed with unread data resets the
  // connection, perhaps before the answer is read. Reports no failure; the next use of the socket does.
  static void SendAnswer(int socket, const Answer& answer);

 private:
  struct Pending {
    UniqueFd socket;
    SocketAddress peer;
    Deadline deadline;
    size_t hello_bytes = 0;  // so far
    std::array<unsigned char, kHelloPrefixBytes + kHelloBodyBytesMax> hello;
  };
  enum class Outcome { kWaiting, kArrived, kDropped };

  Acceptor(UniqueFd listener, UniqueFd events, const SocketAddress& address, const TcpTransportOptions& options);

  void AcceptAll();
  // Reads as much of a hello as is there.
  Outcome Read(Pending* pending, Hello* hello);
  Outcome Reject(const Pending& pending, const Answer& answer, absl::string_view why);
  void Log(const SocketAddress& peer, absl::string_view why);

  // Constant after construction.
  const UniqueFd listener_;
  const UniqueFd events_;
  const SocketAddress address_;
  const TcpTransportOptions options_;

  std::vector<std::unique_ptr<Pending>> pending_;  // oldest first, so by deadline too
  // Set when the system had no descriptor left for a new connection: accepting rests until then.
  Deadline accept_again_ = Deadline::Infinite();
  Deadline::Clock::time_point next_log_{};
  int unlogged_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_ACCEPTOR_H_

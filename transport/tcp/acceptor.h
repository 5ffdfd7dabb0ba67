// Acceptor: the listener of a TcpTransport and the connections that have not shaken hands yet.
//
// Whoever connects has a deadline to say a hello that fits; unauthenticated peers, silence and floods cost a bounded number of
// descriptors, one log line a second, and nothing else. All of it hides behind one epoll descriptor of its own, so that
// they do not crowd the events of the connections that carry data either.

#ifndef TRANSPORT_TCP_ACCEPTOR_H_
#define TRANSPORT_TCP_ACCEPTOR_H_

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"

namespace lockstep {

struct AcceptorOptions {
  HandshakeExpectation expectation;
  std::chrono::milliseconds handshake_timeout{5000};
  int pending_max = 128;
};

// Externally synchronised.
class Acceptor {
 public:
  // A peer whose hello fits. It waits for SendAnswer.
  struct Arrival {
    Hello hello;
    UniqueFd socket;
  };

  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(const SocketAddress& bind_address, AcceptorOptions options);

  const SocketAddress& address() const { return address_; }

  // Readable (level-triggered) while Poll has something to do, but for deadlines.
  int event_descriptor() const { return events_.get(); }
  // When Poll is due even without an event.
  Deadline next_deadline() const;

  // Accepts, reads hellos, answers those that do not fit, drops who is late. Never waits.
  std::vector<Arrival> Poll();

  // Answers, and on a rejection reads away what else the peer sent, lest closing the socket resets the connection
  // before the answer is read. A failure is not told: the next use of the socket will.
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

  Acceptor(UniqueFd listener, UniqueFd events, const SocketAddress& address, AcceptorOptions options);

  void AcceptAll();
  // Reads as much of a hello as is there.
  Outcome Read(Pending* pending, Hello* hello);
  Outcome Reject(const Pending& pending, const Answer& answer, absl::string_view why);
  void Log(const SocketAddress& peer, absl::string_view why);

  // Constant after construction.
  const UniqueFd listener_;
  const UniqueFd events_;
  const SocketAddress address_;
  const AcceptorOptions options_;

  std::vector<std::unique_ptr<Pending>> pending_;  // oldest first, so by deadline too
  // Set when the system had no descriptor left for a new connection: accepting rests until then.
  Deadline accept_again_ = Deadline::Infinite();
  Deadline::Clock::time_point next_log_{};
  int unlogged_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_ACCEPTOR_H_

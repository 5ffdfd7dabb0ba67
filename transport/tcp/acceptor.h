// Acceptor: the listener of a TcpTransport and the connections that have not shaken hands yet.
//
// Whoever connects must prove that it has the secret, and send a hello that fits, by a deadline. Unauthenticated peers, silence and
// floods cost a bounded number of descriptors and one log line a second of each kind. All this is done by a thread of its own
// ("lockstep-accept"), which sleeps while nobody connects: a rank that computes, and drives its transport for minutes no more, still
// takes peers in, so that nobody can fill the kernel's queue of connections meanwhile, and a flood takes little time from who sends data.

#ifndef TRANSPORT_TCP_ACCEPTOR_H_
#define TRANSPORT_TCP_ACCEPTOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "transport/net/socket.h"
#include "transport/secure/half_open.h"
#include "transport/secure/refusals.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/opening.h"
#include "transport/tcp/socket_tuning.h"
#include "transport/wakeup.h"

namespace lockstep {

// Any thread may call anything.
class Acceptor {
 public:
  // A peer whose hello fits. It waits for SendAnswer.
  struct Arrival {
    Hello hello;
    UniqueFd socket;
    std::unique_ptr<Opening> opening;
  };

  // Listens from now on. Errors of the system's; RESOURCE_EXHAUSTED where it has no thread to give.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Create(const TcpTransportOptions& options);
  // Closes the listener and all connections that were not taken. Waits for the thread, which does not wait for peers.
  ~Acceptor();

  const SocketAddress& address() const { return address_; }
  const Refusals& refusals() const { return refusals_; }

  // Readable (level-triggered) while there are arrivals.
  int event_descriptor() const { return arrived_.descriptor(); }
  std::vector<Arrival> TakeArrivals() ABSL_LOCKS_EXCLUDED(mu_);

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

  Acceptor(UniqueFd listener, UniqueFd events, Wakeup arrived, Wakeup stop, const SocketAddress& address,
           const TcpTransportOptions& options);

  void Loop();
  // Goes on with what has events: true if the listener has.
  bool AdvanceSome();
  // Reads what it has sent, if it is still pending.
  void Advance(uint64_t id);
  void AcceptSome();
  void Admit(UniqueFd socket, const SocketAddress& peer);
  // Reads as much of a hello as is there.
  Outcome Read(Pending* pending, Hello* hello);
  Outcome Reject(Pending* pending, Refusal refusal, const Answer& answer, absl::string_view why);
  // Closes a connection whose events were watched.
  void Forget(uint64_t id);
  // Closes a connection that has not shaken hands.
  void Drop(uint64_t id, Refusal refusal, absl::string_view why);

  // Constant after construction.
  const UniqueFd listener_;
  const UniqueFd events_;
  const Wakeup arrived_;
  const Wakeup stop_;
  const SocketAddress address_;
  const TcpTransportOptions options_;

  Refusals refusals_;

  // The thread's own.
  absl::flat_hash_map<uint64_t, Pending> pending_;  // by the number that comes with events
  HalfOpen half_open_;
  uint64_t last_id_;
  // Set when the system had no descriptor left for a new connection: accepting rests until then.
  Deadline accept_again_ = Deadline::Infinite();

  Mutex mu_;
  std::vector<Arrival> arrivals_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  Thread thread_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_ACCEPTOR_H_

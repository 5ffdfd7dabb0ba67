// TcpTransport: messages over one socket for each (pair of ranks, channel), on which data flows both ways.
//
// The rank that sends first on a channel connects to the other's listener, and so does a rank that has waited for a message
// for some time (transport/tcp/connections.h says why, and what happens when both do). So channels are independent, TCP's
// window is the flow control, and acknowledgements ride on the data that flows back. The receiver reads only what receives were
// posted for: a message that nobody receives stays in the kernel's buffers and with its sender, also after a receive found
// something unexpected. System calls: one to send and one to receive a message that fits, header included, and epoll_wait now
// and then.
//
// Events. Sockets are in one epoll set, edge-triggered, and only Progress() takes events out of it. Between calls this holds
// for each link with operations:
//   - It is not ready, and every byte (or room) that came since its stream last said EAGAIN is an event still in the set;
//   - or it is ready and scheduled, and the sleepers know that work is left (transport/sleepers.h).
// When the kernel releases memory of zero-copy sends, that is an event too (EPOLLERR). WaitForEvent sleeps in poll() on the
// epoll descriptor, which takes no event out. An operation that is posted meanwhile is tried at once, which leaves it in one
// of the two states. So no event is lost, whichever thread takes it.

#ifndef TRANSPORT_TCP_TCP_TRANSPORT_H_
#define TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/rank.h"
#include "transport/link/link_table.h"
#include "transport/net/socket.h"
#include "transport/pollable_transport.h"
#include "transport/posting.h"
#include "transport/sleepers.h"
#include "transport/tcp/acceptor.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/socket_tuning.h"
#include "transport/transport.h"
#include "transport/wakeup.h"

namespace lockstep {

class TcpTransport final : public PollableTransport {
 public:
  // Listens from now on. INVALID_ARGUMENT for a rank outside the world, an over-long job id, a number of sockets
  // outside of 1 to kTcpSocketsMax, an address that this machine does not have; see CheckCongestionControl for that
  // option.
  static absl::StatusOr<std::unique_ptr<TcpTransport>> Create(TcpTransportOptions options);
  ~TcpTransport() override;

  // Where this rank listens, for the others.
  const SocketAddress& address() const { return address_; }

  // Whom the listener turned away; null once aborted or closed.
  const Refusals* refusals() const { return acceptor_ == nullptr ? nullptr : &acceptor_->refusals(); }

  // Where each rank listens; this rank's own entry is not used.
  // REQUIRES  called once, before the first Send
  // ERRORS    INVALID_ARGUMENT  the number of addresses is not that of the ranks
  absl::Status SetPeers(std::vector<SocketAddress> peers);

  const char* name() const override { return "tcp"; }
  Rank rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::string DescribePeer(Rank peer) const override;
  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override;
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override;
  Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                     int polls) override;
  int send_pieces_max(Rank) const override { return kLinkPiecesMax; }
  int receive_pieces_max(Rank) const override { return kLinkPiecesMax; }
  bool Progress() override;
  void WaitForEvent(Deadline deadline) override;
  void Wake() override { sleepers_.Wake(); }
  void AbortChannel(ChannelId channel, const absl::Status& status) override;
  void Abort(const absl::Status& status) override;
  // DEADLINE_EXCEEDED when sends were cut off.
  absl::Status Close(Deadline deadline) override;
  PeerCounters counters(Rank peer) const override { return links_.counters(peer); }

  void AppendDescriptors(std::vector<pollfd>* descriptors) const override { sleepers_.AppendDescriptors(descriptors); }
  bool BeginWait() override { return sleepers_.Begin(); }
  void EndWait(bool event) override { sleepers_.End(event); }
  bool sends_pending() const override { return links_.sends_pending(); }

 private:
  TcpTransport(TcpTransportOptions options, std::unique_ptr<Acceptor> acceptor, UniqueFd events, UniqueFd timer,
               Wakeup wakeup);

  absl::Status CheckPeer(Rank peer) const { return lockstep::CheckPeer(name(), options_.rank, options_.size, peer); }
  // True in a forked child, where every descriptor is closed; breaks all links then.
  bool Forked();
  // Runs what is scheduled. True when anything moved.
  bool Settle();
  // Tells waiters when something is left scheduled.
  void TellWorkLeft();
  // Takes events out of the epoll set and schedules the links that they concern. True when a connection was made.
  bool PollEvents();
  void ArmTimer();

  // Constant after construction.
  const TcpTransportOptions options_;
  const uint64_t fork_generation_;
  const SocketAddress address_;
  const UniqueFd events_;
  const UniqueFd timer_;  // fires when a connector is due

  // Externally synchronised.
  std::vector<SocketAddress> peers_;
  LinkTable links_;
  Connections connections_;
  std::unique_ptr<Acceptor> acceptor_;     // null once aborted or closed
  Deadline armed_ = Deadline::Infinite();  // what timer_ is set to
  int progress_without_poll_ = 0;
  bool closed_ = false;

  Sleepers sleepers_;  // what they have seen of events, the next Progress takes out
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_TRANSPORT_H_

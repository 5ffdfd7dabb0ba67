// CompositeTransport: several transports as one. Each carries the messages with some of the peers, for example shared memory to
// the ranks of this host and TCP to the others.
//
// REQUIRES  both ranks of a pair take the same route; otherwise their messages miss each other
//
// Channels, errors, counters and descriptions are those of the transport that reaches the peer. One poll() sleeps on all of
// them (transport/pollable_transport.h). Progress polls the first transport every time and the others every eighth time, or
// after an event: reading memory costs some ten nanoseconds, a system call some hundreds, and messages that come that way
// take microseconds.

#ifndef TRANSPORT_COMPOSITE_H_
#define TRANSPORT_COMPOSITE_H_

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/pollable_transport.h"
#include "transport/transport.h"

namespace lockstep {

class CompositeTransport final : public Transport {
 public:
  // `routes` has for each rank the index of the transport that reaches it; this rank's own entry is not used. The transport
  // with the lowest latency goes first.
  // ERRORS  INVALID_ARGUMENT  a route leads nowhere, or the transports are of different ranks or worlds
  static absl::StatusOr<std::unique_ptr<CompositeTransport>> Create(
      std::vector<std::unique_ptr<PollableTransport>> transports, std::vector<int> routes);

  const char* name() const override { return name_.c_str(); }  // "shm+tcp"
  Rank rank() const override { return transports_.front()->rank(); }
  int size() const override { return transports_.front()->size(); }
  std::string DescribePeer(Rank peer) const override { return Route(peer)->DescribePeer(peer); }
  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override {
    Route(target)->Send(target, channel, envelope, data, bytes, operation);
  }
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override {
    Route(source)->Receive(source, channel, expected, sink, operation);
  }
  Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                     int polls) override {
    return Route(peer)->Exchange(peer, channel, envelope, data, sink, polls);
  }
  int send_pieces_max(Rank peer) const override { return Route(peer)->send_pieces_max(peer); }
  int receive_pieces_max(Rank peer) const override { return Route(peer)->receive_pieces_max(peer); }
  bool Progress() override;
  void WaitForEvent(Deadline deadline) override;
  void Wake() override { transports_.front()->Wake(); }
  void AbortChannel(ChannelId channel, const absl::Status& status) override;
  void Abort(const absl::Status& status) override;
  // The first transport's error when several have one.
  absl::Status Close(Deadline deadline) override;
  PeerCounters counters(Rank peer) const override { return Route(peer)->counters(peer); }

 private:
  CompositeTransport(std::vector<std::unique_ptr<PollableTransport>> transports, std::vector<int> routes);

  // For a rank outside the world the first transport, which refuses it.
  Transport* Route(Rank peer) const {
    const int index = peer.value();
    return transports_[index < 0 || index >= static_cast<int>(routes_.size()) ? 0 : routes_[index]].get();
  }

  // Externally synchronised.
  int progress_of_first_alone_ = 0;

  // Set by a waiter that saw an event: the next Progress asks all. Relaxed: only a hint. If it is lost, the descriptor stays readable,
  // and the next waiter sets it again.
  std::atomic<bool> event_seen_{false};

  // Constant after construction.
  const std::vector<std::unique_ptr<PollableTransport>> transports_;
  const std::vector<int> routes_;
  std::string name_;
  std::vector<pollfd> descriptors_;      // of all transports
  std::vector<size_t> descriptors_end_;  // by transport, where its own end
};

}  // namespace lockstep

#endif  // TRANSPORT_COMPOSITE_H_

// ThrottledTransport: another transport, whose messages leave this rank as if over a link of a given rate.
//
// For measurements where no slow network is at hand, nor network namespaces to make one. A message is held back until
// such a link would have carried its last byte, behind those that were posted before it, whomever they are for; what
// this rank receives is as slow as those who send it. A link's latency, and receivers that several ranks send to at
// once, are not emulated.

#ifndef BENCH_OVERLAP_THROTTLED_TRANSPORT_H_
#define BENCH_OVERLAP_THROTTLED_TRANSPORT_H_

#include <poll.h>

#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/net/socket.h"
#include "transport/pollable_transport.h"
#include "transport/transport.h"

namespace lockstep {

class ThrottledTransport final : public Transport {
 public:
  // INVALID_ARGUMENT for a rate that is not above 0.
  static absl::StatusOr<std::unique_ptr<ThrottledTransport>> Create(std::unique_ptr<PollableTransport> inner,
                                                                    double bytes_per_second);
  ~ThrottledTransport() override;

  const char* name() const override { return inner_->name(); }
  Rank rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string DescribePeer(Rank peer) const override { return inner_->DescribePeer(peer); }
  void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
            Operation* operation) override;
  void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
               Operation* operation) override {
    inner_->Receive(source, channel, expected, sink, operation);
  }
  bool Progress() override;
  void WaitForEvent(Deadline deadline) override;
  void Wake() override { inner_->Wake(); }
  void AbortChannel(ChannelId channel, const absl::Status& status) override;
  void Abort(const absl::Status& status) override;
  absl::Status Close(Deadline deadline) override;
  // Of what was let go.
  PeerCounters counters(Rank peer) const override { return inner_->counters(peer); }

 private:
  using Way = std::pair<int, ChannelId>;  // the target, and the channel

  struct Held {
    Rank target;
    ChannelId channel = 0;
    Envelope envelope = {};
    const void* data = nullptr;
    size_t bytes = 0;
    Operation* operation = nullptr;
    Deadline::Clock::time_point due;
  };
  // A message that was let go.
  struct Sent {
    Operation operation;  // the inner transport's; first, so that its address is the message's
    ThrottledTransport* transport = nullptr;
    Way way;
    Operation* callers = nullptr;
    std::list<Sent>::iterator self;
  };

  ThrottledTransport(std::unique_ptr<PollableTransport> inner, double bytes_per_second, UniqueFd timer);

  void LetGo(const Held& message);
  static void OnSent(Operation* operation, const absl::Status& status);
  // To when the first of those held is due.
  void ArmTimer();
  static void Complete(const std::vector<Operation*>& operations, const absl::Status& status);

  // Constant after construction.
  const std::unique_ptr<PollableTransport> inner_;
  const double bytes_per_second_;
  const UniqueFd timer_;
  std::vector<pollfd> descriptors_;  // the inner transport's, and the timer

  // Externally synchronised.
  std::deque<Held> held_;
  std::list<Sent> sent_;
  absl::flat_hash_set<Way> broken_;      // what is sent there fails at once
  Deadline::Clock::time_point free_at_;  // when the link has carried all that was posted
  absl::flat_hash_set<ChannelId> aborted_channels_;
  bool aborted_ = false;
};

}  // namespace lockstep

#endif  // BENCH_OVERLAP_THROTTLED_TRANSPORT_H_

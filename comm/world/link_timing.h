// Timing one link: two ranks exchange messages over the transport and the channel that their collectives will use,
// and one of them, the leader, takes the time.
//
// What is timed are the costs by which algorithms are priced (comm/topology/link_costs.h): L = latency_ns, m = message_ns and
// g = byte_ns. By the model (comm/schedule/verify/simulator.h) the three exercises take
//
//   echo     n rounds: a small message there, and one back       2 n (m + L)
//   stream   n small messages there, then one back               (n + 1) m + 2 L
//   bulk     n messages of b bytes each way, at the same time    n (m + g b)
//
// so that echo and stream tell m and L, and bulk tells g. Each is repeated a few times, of which the median counts: a
// rank that loses its core now and then does not change it.
//
// Messages are posted from within completions, as the executor does, and their arrival is waited for as blocking
// collectives do: what they cost in software is part of the costs.
//
// On the wire all messages have one envelope. Before each repetition:
//
//   request = n:u32      little-endian, from the leader; 0: the exercise is over, the next begins
//   answer  = any:u8[4]  the follower is ready

#ifndef COMM_WORLD_LINK_TIMING_H_
#define COMM_WORLD_LINK_TIMING_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "comm/engine/progress_engine.h"
#include "comm/topology/link_costs.h"
#include "transport/transport.h"

namespace lockstep {

// Medians of the three exercises.
struct LinkTimes {
  double echo_round_ns = 0;
  double stream_ns = 0;
  double bulk_ns = 0;
  int stream_messages = 2;  // at least 2
  int bulk_messages = 1;
  double bulk_message_bytes = 1;
};

// Solves the equations above. Every cost is positive, whatever the times: those that no link of the model could take
// count as the nearest that one could.
LinkCosts CostsOf(const LinkTimes& times);

// One side of a link that is timed.
struct LinkSide {
  ProgressEngine* engine = nullptr;
  ChannelId channel = 0;  // used by nothing else meanwhile; good for anything afterwards
  Rank peer;
  Deadline deadline = Deadline::Now();
  // Says what to return instead of an error. Asked before the channel is aborted, which the peer would take for the
  // cause. May wait; called with no lock held. Null: the error itself.
  std::function<absl::Status(const absl::Status& error)> explain;
};

// The two ranks call one each, at the same time. Takes at most some 0.1 s, but for links so slow that 30 round trips,
// or 1 MiB each way, take longer.
//
// Errors: the transport's (UNAVAILABLE naming the peer when its connection closes), DEADLINE_EXCEEDED naming a peer
// that did not go on in time. The channel is aborted then.
absl::StatusOr<LinkCosts> TimeLink(const LinkSide& leader);
absl::Status FollowLinkTiming(const LinkSide& follower);

}  // namespace lockstep

#endif  // COMM_WORLD_LINK_TIMING_H_

// Times one link: two ranks exchange messages over the transport and the channel that their collectives will use. One of
// them, the leader, takes the time.
//
// The result is the link's costs in the cost model (comm/topology/link_costs.h): L = latency_ns, m = message_ns and
// g = byte_ns. By the model (comm/schedule/verify/simulator.h) the three message patterns take
//
//   echo     n rounds: a small message there, and one back       2 n (m + L)
//   stream   n small messages there, then one back               (n + 1) m + 2 L
//   bulk     n messages of b bytes each way, at the same time    n (m + g b)
//
// Echo and stream give m and L, bulk gives g. Each is repeated a few times, and the median is used: a rank that loses its
// core now and then does not change it.
//
// Messages are posted from completions, as in the executor, and awaited as in blocking collectives: the costs include what
// software takes.
//
// On the wire all messages have one envelope. Before each repetition:
//
//   request = n:u32      little-endian, from the leader; 0: the pattern is over, the next begins
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

// Medians of the three patterns.
struct LinkTimes {
  double echo_round_ns = 0;
  double stream_ns = 0;
  double bulk_ns = 0;
  int stream_messages = 2;  // at least 2
  int bulk_messages = 1;
  double bulk_message_bytes = 1;
};

// Solves the equations above. Every cost is positive: times that no link of the model could take are replaced by the nearest
// ones that it could.
LinkCosts CostsOf(const LinkTimes& times);

// One side of a link that is timed.
struct LinkSide {
  ProgressEngine* engine = nullptr;
  ChannelId channel = 0;  // used by nothing else meanwhile; may be used for anything afterwards
  Rank peer;
  Deadline deadline = Deadline::Now();
  // Returns the status to return instead of `error`. Called before the channel is aborted, since the peer would take the abort for
  // the cause. May wait; no lock is held. Null: the error itself is returned.
  std::function<absl::Status(const absl::Status& error)> explain;
};

// Time a link. Of the two ranks one calls the first and the other the second, at the same time.
// ERRORS  the transport's, as UNAVAILABLE naming the peer when its connection closes; DEADLINE_EXCEEDED naming a peer that did not
//         go on in time. The channel is then aborted.
// COST    at most some 0.1 s, unless 30 round trips or 1 MiB each way take longer
absl::StatusOr<LinkCosts> TimeLink(const LinkSide& leader);
absl::Status FollowLinkTiming(const LinkSide& follower);

}  // namespace lockstep

#endif  // COMM_WORLD_LINK_TIMING_H_

// Measures what the links of a world cost, if its ranks ask for it. The selector then uses the result instead of the constants of
// comm/topology/link_costs.h. Ranks measure when they have just been connected.
//
// Few ranks measure, so that it takes as long in a large world as in a small one, and pairs do not disturb each
// other: on each of the first eight hosts the first two ranks, then the first ranks of every two of these hosts. A
// pair measures the route that its messages really take. For each cost of a class of links, the largest that any pair
// found is used: a collective is done when its slowest rank is. Costs are rounded to two digits. The measuring ranks
// post them to the control channel, and all ranks read the same messages, so all have the same numbers.
//
//   text = 8 numbers, separated by spaces: latency_ns, byte_ns and message_ns of links inside a host, the same of links
//          between hosts, reduced_byte_ns, copied_byte_ns; 0 where the rank has not measured it

#ifndef COMM_WORLD_LINK_MEASUREMENT_H_
#define COMM_WORLD_LINK_MEASUREMENT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "comm/engine/progress_engine.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"
#include "transport/control/control.h"
#include "transport/transport.h"

namespace lockstep {

// 0 where something was not measured: no two ranks share a host, or all do.
struct MeasuredCosts {
  LinkCosts local;
  LinkCosts remote;
  double reduced_byte_ns = 0;
  double copied_byte_ns = 0;
};

struct MeasuredPair {
  Rank leader;
  Rank follower;
  bool local = false;  // on one host
};

// Which ranks measure with each other. A rank takes its pairs in this order, those inside hosts first, which cannot deadlock.
// Empty only in a world of one.
std::vector<MeasuredPair> PairsToMeasure(const Topology& topology);

// To and from the text above. Encoding rounds. INTERNAL for an invalid text.
std::string EncodeMeasuredCosts(const MeasuredCosts& costs);
absl::StatusOr<MeasuredCosts> DecodeMeasuredCosts(absl::string_view text);

// The larger of each cost.
MeasuredCosts Slowest(const MeasuredCosts& a, const MeasuredCosts& b);

// Sets those costs of the network that were measured. What peers' memory costs beside (kPeerByteNs) is not measured.
void Apply(const MeasuredCosts& costs, Network* network);

// "links measured: local 120 ns + 0.09 ns/B + 90 ns a message; remote ...; 0.06 ns/B reduced, 0.05 ns/B copied; not
// built in".
std::string Describe(const MeasuredCosts& costs);

// Measures. Collective. `channel` carries nothing else meanwhile. Ranks that do not measure sleep.
// RETURNS  equal costs on all ranks
// ERRORS   those of TimeLink on the rank that had one first, the same on all ranks that the control channel still reaches
//          DEADLINE_EXCEEDED  the measuring ranks were not done in time
absl::StatusOr<MeasuredCosts> MeasureLinks(ProgressEngine* engine, ControlChannel* control, ChannelId channel,
                                           const Topology& topology, Deadline deadline);

}  // namespace lockstep

#endif  // COMM_WORLD_LINK_MEASUREMENT_H_

// Measuring what the links of a world cost, where its ranks ask for it: instead of the constants of comm/topology/link_costs.h
// the selector gets what was found when the ranks had just been connected.
//
// Few ranks measure, so that it takes as long in a large world as in a small one, and pairs do not disturb each
// other: on each of the first eight hosts the first two ranks, then the first ranks of every two of these hosts. A
// pair measures the way in which its messages really go. Of a class of links the most that any pair found counts,
// each cost for itself: a collective is done when its slowest rank is. Costs are rounded to two digits. Those that
// measured leave them with the control channel as a posted message, and all ranks take the same ones, so that all have the
// same numbers.
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

// Who measures with whom. A rank takes its pairs in this order, those inside hosts first, which cannot deadlock.
// Empty only in a world of one.
std::vector<MeasuredPair> PairsToMeasure(const Topology& topology);

// The text. Encoding rounds. INTERNAL for what is no such text.
std::string EncodeMeasuredCosts(const MeasuredCosts& costs);
absl::StatusOr<MeasuredCosts> DecodeMeasuredCosts(absl::string_view text);

// The larger of each cost.
MeasuredCosts Slowest(const MeasuredCosts& a, const MeasuredCosts& b);

// Replaces what was measured.
void Apply(const MeasuredCosts& costs, Network* network);

// "links measured: local 120 ns + 0.09 ns/B + 90 ns a message; remote ...; 0.06 ns/B reduced, 0.05 ns/B copied; not
// built in".
std::string Describe(const MeasuredCosts& costs);

// Collective, and equal on all ranks. `channel` carries nothing else meanwhile. Ranks that do not measure sleep.
//
// Errors: those of TimeLink, of whichever rank had one first and the same on all ranks that the control channel still
// reaches; DEADLINE_EXCEEDED where the ranks that measure were not done in time.
absl::StatusOr<MeasuredCosts> MeasureLinks(ProgressEngine* engine, ControlChannel* control, ChannelId channel,
                                           const Topology& topology, Deadline deadline);

}  // namespace lockstep

#endif  // COMM_WORLD_LINK_MEASUREMENT_H_

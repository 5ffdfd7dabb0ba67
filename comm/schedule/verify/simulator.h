// Simulator: what a collective costs on a described network. It runs the shipped schedules step by step in virtual time. Pure:
// the same arguments give the same bits.
//
// The model is LogGP's (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995) for messages, with two resources for
// each rank, and links that the ranks of a host share:
//
//   sending end     carries the rank's sends in list order, one chunk after the other: a chunk of b bytes takes
//                   message_ns + b * byte_ns. The send is complete when the chunk has left.
//   receiving end   takes the rank's receives and its local copies and reductions in list order: one processor does
//                   them all. A chunk is complete latency_ns after it has left, but at least message_ns + b * byte_ns after
//                   the end's previous work and after the receive could be posted. A reducing receive then adds
//                   b * reduced_byte_ns. A local step takes that for each operand that it reduces, or b * copied_byte_ns.
//   host's link     is shared by what its ranks send to other hosts in the same round (Step::round). Their bytes leave more
//                   slowly, as comm/select/link_sharing.h says. Two ranks of one host have a link of their own.
//
// In shared memory (comm/schedule/schedule.h) there are no messages. A rank runs its steps whole, one after the other:
//
//   barrier         each rank that comes tells all others, one after the other, message_ns each (kLine in
//                   comm/topology/link_costs.h). All go on latency_ns after the last rank has told its last. What ranks give
//                   in a barrier costs nothing more.
//   copy            b * copied_byte_ns, wherever the memory is.
//   reduction       b * reduced_byte_ns for each operand that it reduces, b * kPeerByteNs more for each that another rank has, and half
//                   of what a copy takes for each target after the first: a copy also reads.
//
// Staged schedules run in rounds (comm/schedule/stage.h): in a tick a rank runs each of its phases for the piece of its round.
//
// Otherwise steps start as in the executor (comm/engine/executor.h): a step waits for those it names, chunk by chunk where
// comm/plan/prepared_schedule.h says so, and the messages of two ranks match in list order. Here one rank's end serves several
// peers in list order; the executor takes them as they become ready.
//
// The model leaves out:
// - the bound on chunks in flight, and full socket buffers (the network holds whatever was sent)
// - differences between the first byte and later bytes of a stream
// - that messages of different rounds may meet on a host's link, and those of one round may not
// - that what arrives for several ranks of a host shares its link (in symmetric algorithms as much leaves as arrives)
// - the rounding of blocks and chunks to elements (all are taken to be equally large)
// - processor time shared between ranks or between the two ends
// - that a copy in place does nothing

#ifndef COMM_SCHEDULE_VERIFY_SIMULATOR_H_
#define COMM_SCHEDULE_VERIFY_SIMULATOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"

namespace lockstep {

struct Simulation {
  double ns = 0;  // from the common start until the last step of the last rank is complete
  // What the busiest host sends to other hosts, and receives from them.
  double remote_sent_bytes = 0;
  double remote_received_bytes = 0;
};

// Simulates several sizes at once, because preparing thousands of schedules takes longer than running them. `schedules` are those
// of all ranks of one collective, in rank order. A size is that of the whole vector in bytes: what all-reduce, broadcast and reduce
// combine or move, what all-gather and gather make, what reduce-scatter and scatter start from, and what all-to-all has on each
// rank.
// ERRORS  INVALID_ARGUMENT     schedules that do not belong together, messages that nobody receives, a network with negative costs,
//                              shared-memory schedules of ranks that do not share one host, or more than fits given in a barrier
//         FAILED_PRECONDITION  the schedules cannot be run in list order; the message names the step that waits
absl::StatusOr<std::vector<Simulation>> Simulate(absl::Span<const Schedule> schedules, absl::Span<const int64_t> sizes,
                                                 const Network& network);
absl::StatusOr<Simulation> Simulate(absl::Span<const Schedule> schedules, int64_t bytes, const Network& network);

// Builds the schedules first; errors of BuildSchedule too.
absl::StatusOr<Simulation> Simulate(Collective collective, Algorithm algorithm, int size, int64_t bytes,
                                    const Network& network);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_SIMULATOR_H_

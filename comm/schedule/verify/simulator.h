// Simulator: what a collective costs on a described network, by carrying out the shipped schedules step by step in
// virtual time. Pure: the same arguments give the same bits.
//
// The model is LogGP's (Alexandrov, Ionescu, Schauser and Scheiman, SPAA 1995) for messages, with two resources for
// each rank, and links that the ranks of a host share:
//
//   sending end     carries the rank's sends in list order, one chunk after the other: a chunk of b bytes takes
//                   message_ns + b * byte_ns. The send is complete when the chunk has left.
//   receiving end   takes the rank's receives and its local copies and reductions in list order: one processor does
//                   them all. A chunk is there latency_ns after it has left, and no sooner than message_ns + b * byte_ns
//                   after what the end did before and after the receive could be posted. A reducing receive then adds
//                   b * reduced_byte_ns; a local step takes that for each operand that it folds in, or
//                   b * copied_byte_ns.
//   host's link     is shared by what its ranks send to other hosts in the same round (Step::round), whose bytes leave the
//                   slower for it: comm/select/link_sharing.h says how much. Ranks of one host have links of their own among
//                   each other.
//
// In shared memory (comm/schedule/schedule.h) there are no messages. A rank carries out its steps whole, one after the other:
//
//   barrier         each rank that comes tells all others, one after the other, message_ns each (kLine in
//                   comm/select/barrier_costs.h), and latency_ns after the last has told the last all go on. What is given in
//                   it comes along.
//   copy            b * copied_byte_ns, wherever the memory is.
//   reduction       b * reduced_byte_ns for each operand that it folds in, and for each place after the first that it writes
//                   the result to half of what a copy takes, which also reads.
//
// Staged schedules go in rounds (comm/schedule/stage.h): what a rank does in a tick is what it does in its phases, each for the piece
// of its round.
//
// Else, what starts when is what the executor does (comm/engine/executor.h): a step waits for those it names, chunk by chunk where
// comm/plan/prepared_schedule.h says so, and the messages of two ranks match in list order. The order in which one rank's
// end serves several peers is the list's here; the executor takes them as they become ready.
//
// Left out: the bound on chunks in flight, full socket buffers (the network holds whatever was sent), what differs
// between the first byte and a byte in a stream, that messages of different rounds may meet on a host's link and those of
// one round may not, the sharing of a host's link by what arrives for several of its ranks (in symmetric algorithms as
// much leaves as arrives, and what leaves is shared), the rounding of blocks and chunks to elements (all are taken to be
// equally large), processor time shared between ranks or between the two ends, and that a copy in place is none.

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

// `schedules` are those of all ranks of one collective, in rank order. `bytes` is the size of the whole vector: what
// all-reduce, broadcast and reduce combine or move, what all-gather and gather make, what reduce-scatter and scatter
// start from, and what all-to-all has on each rank.
//
// INVALID_ARGUMENT for schedules that do not belong together, messages that nobody receives, a network with negative
// costs, shared-memory schedules of ranks that do not share one host, or more in a barrier than can be given there;
// FAILED_PRECONDITION when the schedules cannot be carried out in list order, naming the step that waits.
//
// For several sizes at once, because preparing thousands of schedules takes longer than carrying them out.
absl::StatusOr<std::vector<Simulation>> Simulate(absl::Span<const Schedule> schedules, absl::Span<const int64_t> sizes,
                                                 const Network& network);
absl::StatusOr<Simulation> Simulate(absl::Span<const Schedule> schedules, int64_t bytes, const Network& network);

// Builds the schedules first; errors of BuildSchedule too.
absl::StatusOr<Simulation> Simulate(Collective collective, Algorithm algorithm, int size, int64_t bytes,
                                    const Network& network);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_VERIFY_SIMULATOR_H_

// Schedule: what one rank does in one collective, as data.
//
// Who talks to whom, with which block, in which order is a pure function (collective, algorithm, rank, size, root,
// topology) -> Schedule. Schedules hold blocks, not bytes, so they are small, independent of counts, and cached. The
// executors (comm/engine/executor.h, comm/engine/memory_executor.h) run them and know no algorithm.
//
// REQUIRES  every algorithm keeps the rules at Window, Operand and Step, in place and out of place. The verifier
//           (comm/schedule/verify/verifier.h) proves it of every algorithm in comm/schedule/algorithms.inc.
// ERRORS    INVALID_ARGUMENT for unknown names, invalid ranks and roots, and an algorithm that cannot execute the collective
// THREADS   any: all functions are pure, and a schedule is immutable once built

#ifndef COMM_SCHEDULE_SCHEDULE_H_
#define COMM_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"

namespace lockstep {

// The numbers are part of the wire format: append, never reorder.
enum class Collective : uint8_t {
  kAllReduce = 0,
  kBroadcast = 1,
  kReduce = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kBarrier = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
};
inline constexpr int kCollectiveCount = 9;
std::string Name(Collective collective);  // "all_reduce", ...
bool IsValid(Collective collective);
bool HasRoot(Collective collective);  // broadcast, reduce, gather, scatter
constexpr bool HasReduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}
bool IsByRank(Collective collective);  // one block for each rank: `blocks` is the number of ranks

// The rows of comm/schedule/algorithms.inc, which says what each is. The numbers are part of the wire format.
enum class Algorithm : uint8_t {
  kAuto = 0,  // the selector's choice; never in a schedule
#define LOCKSTEP_ALGORITHM(number, id, name, properties) k##id = number,
#include "comm/schedule/algorithms.inc"
};
inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kAuto,
#define LOCKSTEP_ALGORITHM(number, id, name, properties) Algorithm::k##id,
#include "comm/schedule/algorithms.inc"
};
inline constexpr int kAlgorithmCount = sizeof(kAllAlgorithms) / sizeof(Algorithm);
std::string Name(Algorithm algorithm);  // "ring", ...
// INVALID_ARGUMENT lists the known names.
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name);

// Properties of an algorithm, or of its schedules for one collective, at every size: bits.
namespace algorithms {
inline constexpr unsigned kMessages = 0;
// It uses which ranks share a host (Topology). Where ranks are interleaved, the others cost what they would with a rank on each host.
inline constexpr unsigned kByHosts = 1 << 0;
// In shared memory, see Step. It works in the callers' buffers, which all ranks must map.
inline constexpr unsigned kDirect = 1 << 1;
// In shared memory, in the barrier itself: its first step is kShare, so a rank gives at most kShareBytesMax bytes.
inline constexpr unsigned kInline = 1 << 2;
// In shared memory, through a stage, see Step: for any buffers.
inline constexpr unsigned kStage = 1 << 3;
// Used only where a call or LOCKSTEP_ALGORITHM names it. The selector never takes it, and its cost is not compared with the
// simulator's.
inline constexpr unsigned kOnlyByName = 1 << 4;
// Of the schedules for one collective: NeedsEqualBlocks(), ReducesInRankOrder(), RoundsOnce().
inline constexpr unsigned kEqualBlocks = 1 << 5;
inline constexpr unsigned kRankOrder = 1 << 6;
inline constexpr unsigned kOneRounding = 1 << 7;
}  // namespace algorithms

// Whether the algorithm has one of these properties. Not for the properties of one collective's schedules.
// COST  a comparison or two: the table is known to the compiler
constexpr bool Has(Algorithm algorithm, unsigned properties) {
  using namespace algorithms;  // NOLINT(google-build-using-namespace): the names in the table
  switch (algorithm) {
    case Algorithm::kAuto:
      break;
#define LOCKSTEP_ALGORITHM(number, id, name, of_algorithm) \
  case Algorithm::k##id:                                   \
    return ((of_algorithm)&properties) != 0;
#include "comm/schedule/algorithms.inc"
  }
  return false;
}
// Whether the scratch of its schedules is a stage that all ranks map. All such algorithms are in shared memory.
constexpr bool IsStaged(Algorithm algorithm) { return Has(algorithm, algorithms::kStage); }
// Whether its schedules are in shared memory: only for ranks that all share one host.
constexpr bool UsesSharedMemory(Algorithm algorithm) {
  return Has(algorithm, algorithms::kDirect | algorithms::kInline | algorithms::kStage);
}

// A rank sees three windows of memory: the input (read only), the output, and scratch of its own. The vector of a collective
// is cut into `blocks` blocks, each the same on every rank. What block i of a window is:
//
//   collective       blocks   input             output
//   all-reduce       B        whole vector      whole vector
//   broadcast        B        whole vector (1)  whole vector        (1) there on the root alone
//   reduce           B        whole vector      whole vector (1)    on the root, the output also serves as scratch
//   all-gather       size     block `rank`      whole vector        input block i is valid only for i == rank
//   reduce-scatter   size     whole vector      block `rank`        output block i is valid only for i == rank
//   gather           size     block `rank`      whole vector (1)    input block i is valid only for i == rank
//   scatter          size     whole vector (1)  block `rank`        output block i is valid only for i == rank
//   all-to-all       size     size blocks       size blocks         input block j goes to rank j, output block j came
//                                                                   from rank j
//   barrier          0
//
// Sizes. Blocks may differ in size, and may be empty: the v-forms use the same schedules with another layout. There is one
// layout for all ranks and both windows. Only an all-to-all has two on each rank, one for its input and one for its output:
// input block j of rank i is as large as output block i of rank j. NeedsEqualBlocks() names the algorithms that need blocks
// of one size. Every other algorithm moves a block only to where a block of that size belongs.
//
// In place, input and output are the same memory. For all-gather and gather the input is block `rank` of the output, for
// reduce-scatter and scatter the output is block `rank` of the input. A schedule must be right in place and out of place. In
// a reduce or reduce-scatter in place the input may be overwritten only where the output is. A copy from an input block to
// the same output block is then no access, and complete at once. All-to-all is the exception: its input and output are
// never the same memory, since every algorithm would need a copy for it. Whoever runs it in place copies the input aside
// first.
enum class Window : uint8_t { kInput, kOutput, kScratch };
// Whether the window is only block `rank` of the vector: the input of an all-gather or a gather, the output of a
// reduce-scatter or a scatter.
bool IsOwnBlock(Collective collective, Window window);

// Blocks [block, block + blocks) of a window: contiguous in memory.
//
// Scratch blocks are as far apart as the vector's largest block is long, so a scratch block can take any block of the vector. An
// operand in scratch is as large as the blocks of the vector that `holds` names, one behind the other. Several scratch blocks in
// a row are one piece of memory. Where blocks may differ in size, all steps that touch such a piece touch the whole of it.
struct Operand {
  static constexpr int32_t kOwn = -1;

  Window window = Window::kInput;
  int32_t block = 0;
  int32_t blocks = 1;
  // In scratch: the operand is as large as blocks [holds, holds + blocks) of the vector. Elsewhere 0.
  int32_t holds = 0;
  // The rank whose window it is; kOwn is the rank of the schedule. Another rank's only in shared memory: its scratch if the algorithm
  // is staged, else its input and output. The same blocks exist there as on that rank.
  int32_t rank = kOwn;

  // The first of the vector's blocks whose sizes it has.
  int32_t sized_as() const { return window == Window::kScratch ? holds : block; }

  friend bool operator==(const Operand& a, const Operand& b) {
    return a.window == b.window && a.block == b.block && a.blocks == b.blocks && a.holds == b.holds && a.rank == b.rank;
  }
};

// The most that a rank can give in a kShare step, in bytes.
inline constexpr int kShareBytesMax = 24;

// Steps of one rank are started in list order as far as `after` allows: a step starts when the steps it names
// are complete. Messages from one rank to one other are matched in list order, on both sides. Two steps of one rank
// that touch the same block of the same memory, one of them writing, must be ordered by `after`, directly or through
// others. The verifier checks that, in place and out of place.
//
// Chunks. The executor cuts blocks into chunks of an agreed size, so that a step that names exactly the operand which
// an earlier step produced may start chunk by chunk. Nothing in a schedule depends on it.
//
// In shared memory. Ranks that share a host may work in each other's windows instead of sending messages; UsesSharedMemory() names
// the algorithms that do so. Such a schedule has no messages, `after` is empty everywhere, and its steps run whole, one after
// the other, in list order (comm/engine/memory_executor.h). Barriers order the ranks. All ranks hold them in the same order:
// everything before a barrier, on any rank, happens before everything after it, on any rank. Between two barriers no two ranks
// touch the same block of the same memory where one of them writes it, in place and out of place. Where ranks touch each
// other's input or output, every rank's first step is kBarrier, in which they learn where it is, and none touches it after
// its last barrier.
//
// Staged. IsStaged() names the shared-memory algorithms for ranks that share a host, but not the caller's buffers. Their scratch
// is a stage that all ranks map: ranks may touch each other's scratch, and no other window of another rank. Such a schedule
// moves vectors of any length through a stage of fixed size. The executor runs it in rounds, one for each piece of the blocks,
// several at a time (comm/schedule/stage.h). So its steps are for single blocks, and it has one or two barriers, all kBarrier.
struct Step {
  enum class Kind : uint8_t {
    kSend,           // source -> peer
    kReceive,        // peer -> target
    kReceiveReduce,  // target = source op arriving
    kCopy,           // target = source; in shared memory, either may be in another rank's window
    kReduceMany,     // target = ((terms[0] op terms[1]) op terms[2]) ...; in shared memory, in any ranks' windows
    // In shared memory only. A barrier of all ranks: it is complete when every rank has begun it.
    kBarrier,
    // A barrier in which each rank gives a few bytes to all. Rank r's `source` arrives in scratch block target.block + r of
    // every rank, also its own. The block of a rank that gives nothing is then undefined. `source` is one block of the
    // rank's own input or output, of at most kShareBytesMax bytes, or none. `target` is `size` blocks of scratch, each a
    // piece of its own; its `holds` is 0.
    kShare,
  };
  static constexpr int kKindCount = 7;
  // In a list under construction: no step.
  static constexpr int32_t kNone = -1;
  // Few steps wait for more than three others.
  using After = absl::InlinedVector<int32_t, 3>;

  Kind kind = Kind::kCopy;
  Rank peer;  // kSend, kReceive, kReceiveReduce
  // kSend: the algorithm's round, with the same number on all ranks. A message's round is later than that of each message it waits
  // for, so messages of one round may be under way at the same time. The cost model assumes that they are
  // (comm/select/link_sharing.h); executors ignore it.
  int32_t round = 0;
  Operand source;
  Operand target;
  // kReduceMany: at least two operands, each of the target's size. One of them may be exactly the target's memory; otherwise none
  // overlaps it. Element i of the target is the left fold of the terms' elements i, in this order, computed in
  // the type in which the dtype accumulates (float32 for 16- and 8-bit floats) and rounded once, at the end, as by
  // ReduceManyFunction in base/types/reduction.h. Chunk c of the target needs only chunk c of every term.
  std::vector<Operand> terms;
  // kReduceMany in shared memory: further targets of the same size, to which the same result is written in the same pass. No two
  // targets overlap; each relates to the terms as `target` does.
  std::vector<Operand> more_targets;
  // Indices of earlier steps of this rank that must be complete before this one starts. No index twice.
  After after;
};

// Immutable once built; shared between operations in flight and the cache.
struct Schedule {
  Collective collective = Collective::kBarrier;
  Algorithm algorithm = Algorithm::kAuto;
  Rank rank;
  int size = 1;
  Rank root;
  int blocks = 0;
  int scratch_blocks = 0;
  std::vector<Step> steps;
};

// "receive_reduce from rank 1: output[2] = input[2] op arriving, after #0"
std::string ToString(const Step& step);
// A title, then one numbered line per step, for errors and tests.
std::string ToString(const Schedule& schedule);

// The algorithms that can execute a collective, in a fixed order. Inlined: the selector asks at every call.
using Algorithms = absl::InlinedVector<Algorithm, kAlgorithmCount>;
Algorithms AlgorithmsFor(Collective collective);
// Of those, the ones without kOnlyByName: the selector chooses among them.
Algorithms ChoicesFor(Collective collective);

// INVALID_ARGUMENT unless the algorithm is kAuto or can execute the collective.
absl::Status CheckAlgorithm(Collective collective, Algorithm algorithm);

// Whether the algorithm needs blocks that are all of one size, and so cannot execute the v-forms.
bool NeedsEqualBlocks(Collective collective, Algorithm algorithm);

// Whether every element of the result is the left fold ((r0 op r1) op r2) op ... of the ranks' elements in rank order,
// at every size, root and position in the vector. Results are then independent of chunks, buckets and transports. False
// where nothing is reduced.
bool ReducesInRankOrder(Collective collective, Algorithm algorithm);

// Whether every element of the result is reduced in one step straight from the inputs, so that 16- and 8-bit floats are
// rounded once. Two algorithms that reduce in rank order give equal bits if both round once or neither does, or if the
// dtype accumulates in itself.
bool RoundsOnce(Collective collective, Algorithm algorithm);

// Which ranks share a host.
struct Topology {
  // host_of_rank[r] is the host of rank r: any numbers, in any order, equal for ranks that share memory. Empty: all on
  // one host.
  std::vector<int32_t> host_of_rank;
};

// Builds one rank's schedule. Collectives without a root ignore `root`; algorithms that are not kByHosts ignore the topology.
// ERRORS  INVALID_ARGUMENT  the algorithm cannot execute the collective (the message lists those that can), a rank or root is outside
//                           the world, or the topology has another number of ranks
absl::StatusOr<Schedule> BuildSchedule(Collective collective, Algorithm algorithm, Rank rank, int size, Rank root,
                                       const Topology& topology = {});

}  // namespace lockstep

#endif  // COMM_SCHEDULE_SCHEDULE_H_

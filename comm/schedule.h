// Schedule: what one rank does in one collective, as data.
//
// Who talks to whom, with which block, in which order is a pure function (collective, algorithm, rank, size, root) ->
// Schedule. Schedules hold blocks, not bytes, so they are small, independent of counts, and cached. The verifier
// (comm/verifier.h) proves them; the executor (comm/executor.h) carries them out; neither knows an algorithm.
//
// Windows and blocks. A rank sees three windows of memory: the input (read only), the output, and scratch of its own.
// The vector of a collective is cut into `blocks` blocks, each the same on every rank. What block i of a window is:
//
//   collective       blocks   input             output
//   all-reduce       B        whole vector      whole vector
//   broadcast        B        whole vector (1)  whole vector        (1) there on the root alone
//   reduce           B        whole vector      whole vector (2)    (2) there on the root alone, also as scratch
//   all-gather       size     block `rank`      whole vector        input block i is valid only for i == rank
//   reduce-scatter   size     whole vector      block `rank`        output block i is valid only for i == rank
//   barrier          0
//
// Scratch block i is as large as block i % blocks, so a step that touches scratch alone has a size too. Blocks of
// all-reduce, broadcast and reduce may differ in size: there, block i of a window only ever holds what belongs to block
// i, and scratch block i what belongs to block i % blocks.
//
// In place, input and output are the same memory (for all-gather and reduce-scatter: block `rank` of the whole vector
// is). A schedule must be right both ways; for reduce and reduce-scatter in place the input may then be overwritten
// only where the output is. A copy from an input block to the same output block is then nothing at all: no access,
// complete at once.
//
// Order. Steps of one rank are started in list order as far as `after` allows: a step starts when the steps it names
// are complete. Messages from one rank to one other are matched in list order, on both sides. Two steps of one rank
// that touch the same block of the same memory, one of them writing, must be ordered by `after` (directly or through
// others); the verifier checks it, in place and out of place.
//
// Chunks. The executor cuts blocks into chunks of an agreed size, so that a step that names exactly the operand which
// an earlier step produced may start chunk by chunk. Nothing in a schedule depends on it.

#ifndef COMM_SCHEDULE_H_
#define COMM_SCHEDULE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
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
};
inline constexpr int kCollectiveCount = 6;
std::string Name(Collective collective);  // "all_reduce", ...
bool IsValid(Collective collective);
bool HasRoot(Collective collective);       // broadcast, reduce
bool HasReduction(Collective collective);  // all-reduce, reduce, reduce-scatter

enum class Algorithm : uint8_t {
  kAuto = 0,  // the selector's choice; never in a schedule
  kRing = 1,
  kRecursiveDoubling = 2,
  kBinomial = 3,
  kDissemination = 4,
};
inline constexpr int kAlgorithmCount = 5;
std::string Name(Algorithm algorithm);  // "ring", ...
// INVALID_ARGUMENT lists the known names.
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name);

enum class Window : uint8_t { kInput, kOutput, kScratch };

// Blocks [block, block + blocks) of a window: contiguous in memory.
struct Operand {
  Window window = Window::kInput;
  int32_t block = 0;
  int32_t blocks = 1;

  friend bool operator==(const Operand& a, const Operand& b) {
    return a.window == b.window && a.block == b.block && a.blocks == b.blocks;
  }
};

struct Step {
  enum class Kind : uint8_t {
    kSend,           // source -> peer
    kReceive,        // peer -> target
    kReceiveReduce,  // target = source op arriving
    kCopy,           // target = source, locally
    kReduce,         // target = target op source, locally
  };
  static constexpr int kAfterMax = 3;
  static constexpr int32_t kNone = -1;

  Kind kind = Kind::kCopy;
  Rank peer;  // kSend, kReceive, kReceiveReduce
  Operand source;
  Operand target;
  // Indices of earlier steps of this rank that must be complete before this one starts.
  std::array<int32_t, kAfterMax> after = {kNone, kNone, kNone};
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

// The algorithms that carry out a collective, in a fixed order. Inlined: the selector asks at every call.
using Algorithms = absl::InlinedVector<Algorithm, kAlgorithmCount>;
Algorithms AlgorithmsFor(Collective collective);

// Builds one rank's schedule. INVALID_ARGUMENT when the algorithm does not carry out the collective (listing those that
// do), or for a rank or root outside the world. Collectives without a root ignore `root`.
absl::StatusOr<Schedule> BuildSchedule(Collective collective, Algorithm algorithm, Rank rank, int size, Rank root);

}  // namespace lockstep

#endif  // COMM_SCHEDULE_H_

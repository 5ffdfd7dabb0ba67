// Case: one operation of one size on one rank, with the memory that it works on, ready to be run, checked and measured. And what an
// operation's bandwidth is, as nccl-tests defines it (its doc/PERFORMANCE.md), so that tables can be laid side by side.

#ifndef BENCH_COLLECTIVES_CASE_H_
#define BENCH_COLLECTIVES_CASE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/collectives/pattern.h"
#include "bench/measure.h"
#include "bench/ranks.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"

namespace lockstep {
namespace bench {

// What a table is about: a collective, one of its forms with blocks of their own sizes, or messages.
struct Operation {
  Collective collective = Collective::kAllReduce;
  bool unequal = false;   // the v-form, of those that have a block for each rank
  bool messages = false;  // no collective: every rank sends its vector to the next one, and receives the previous one's

  bool is(Collective some) const { return !messages && collective == some; }
  bool has_data() const { return !is(Collective::kBarrier); }
  bool has_blocks() const { return !messages && IsByRank(collective); }
  bool has_root() const { return !messages && HasRoot(collective); }
  bool reduces() const { return !messages && HasReduction(collective); }
};

// "all_gather", "all_gather_v", "send_receive".
std::string Name(const Operation& operation);

// "all", or names with commas between. INVALID_ARGUMENT lists the known ones.
absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text);

// Of `count` elements, the blocks of `ranks`: equal, or growing from rank to rank as far as there are elements for it.
std::vector<int64_t> BlockCounts(int64_t count, int ranks, bool unequal);

// The algorithm's bandwidth is size / time, of the whole vector: for all-gather what it makes, for reduce-scatter what it starts from. In
// GB/s, with GB = 10^9 bytes; 0 for no time. Times the bus factor it is the bus bandwidth: by what an optimal algorithm moves through
// each rank's link per byte, which makes it comparable with the hardware's rate whatever the number of ranks. Of unequal blocks as of
// equal ones.
double AlgorithmBandwidth(int64_t bytes, double seconds);
double BusFactor(const Operation& operation, int ranks);

// Vectors for a benchmark to work on, one size for all rows, touched before anything is timed.
class Memory {
 public:
  // Ordinary memory. RESOURCE_EXHAUSTED when there is not so much.
  static absl::StatusOr<Memory> Create(int vectors, size_t vector_bytes);
  // Of the communicator's allocator, all ranks together. Errors of Communicator::Allocate.
  static absl::StatusOr<Memory> Allocate(Communicator* communicator, int vectors, size_t vector_bytes);

  int vectors() const { return static_cast<int>(vectors_.size()); }
  size_t vector_bytes() const { return vector_bytes_; }
  // Begins at a page's begin.
  char* vector(int index) const { return vectors_[index]; }

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::vector<char*> vectors_;
  size_t vector_bytes_ = 0;
  // What the vectors lie in.
  std::vector<std::unique_ptr<char, Free>> ordinary_;
  std::vector<std::unique_ptr<SymmetricBuffer>> allocated_;
};

// What every row of a table has in common.
struct CaseKind {
  Operation operation;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  Rank root;
  Algorithm algorithm = Algorithm::kAuto;  // the communicator's choice
  bool in_place = false;
  // Calls in flight at once, each with memory of its own; 0: blocking calls, carried out by the caller's thread.
  int in_flight = 0;
  bool grouped = false;   // so many calls as are in flight at once (at least one) are launched together, and waited for
  bool prepared = false;  // collectives are set up once and started again and again; not grouped, and no messages
};

// A vector with so many elements that each rank has a block of equal size where the operation has blocks.
struct CaseSize {
  size_t count = 0;      // elements of the whole vector
  size_t own_count = 0;  // elements of one rank's part: the block (unequal: on average), or the whole vector
  int64_t bytes = 0;     // of the whole vector
};
CaseSize SizeOfCase(const CaseKind& kind, int ranks, int64_t bytes);

class Case {
 public:
  // Borrows the communicator, the pattern and the memory, which has the vectors that VectorsFor asks for.
  Case(const CaseKind& kind, const CaseSize& size, Communicator* communicator, const Pattern* pattern, Memory* memory);

  // How many vectors of the size of the whole one a kind works on.
  static int VectorsFor(const CaseKind& kind);

  // Fresh inputs, and outputs that are wrong everywhere.
  void Fill();

  // Calls back to back.
  absl::Status Run(int64_t calls);

  // After Fill and one call: the elements that are wrong on this rank, outputs and (out of place) changed inputs, in the memory of the
  // first call.
  uint64_t CountWrong() const;

 private:
  struct Place {
    char* input = nullptr;
    char* output = nullptr;
  };
  // Which part of the vector lies in a buffer: elements [begin, begin + count).
  struct Part {
    int64_t begin = 0;
    size_t count = 0;
  };
  Part OwnBlock() const;
  enum class Buffer { kInput, kOutput };
  Part PartOf(Buffer buffer) const;
  // Elements that go from one rank to another in an all-to-all: each row and each column has every count once.
  int64_t PairCount(int source, int target) const { return counts_[(source + target) % counts_.size()]; }
  uint64_t CountWrongOutput() const;

  absl::Status RunOne();
  // Starts a call in this place: the work is done when it is.
  absl::StatusOr<Work> Start(size_t place);
  absl::Status RunGroups(int64_t calls);
  absl::Status RunInFlight(int64_t calls);
  absl::Status RunPrepared(int64_t calls);
  absl::StatusOr<Work> StartReceive(size_t place);
  SendRequest Outgoing(size_t place) const;
  Rank PreviousRank() const;  // whose message this one receives

  const CaseKind kind_;
  const CaseSize size_;
  Communicator* const communicator_;
  const Pattern* const pattern_;
  const std::vector<int64_t> counts_;  // of the ranks' blocks
  std::vector<int64_t> pair_counts_;   // to each rank and from it, in an all-to-all with counts
  std::vector<Place> places_;
  std::vector<CollectiveRequest> requests_;                    // one for each place
  std::vector<std::unique_ptr<PreparedCollective>> prepared_;  // likewise, once they have run
};

struct Measurement {
  double seconds = 0;  // of one call
  int64_t iterations = 0;
  uint64_t wrong = 0;  // elements, on all ranks together, after one more call on fresh data
};

absl::StatusOr<Measurement> Measure(const ProcessGroup& group, const MeasureOptions& options, Case* measured);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COLLECTIVES_CASE_H_

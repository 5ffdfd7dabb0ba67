// Case: one operation of one size on one rank, ready to be run, checked and measured. Also the bandwidth of an operation as nccl-tests
// defines it (its doc/PERFORMANCE.md), so that tables can be laid side by side.

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
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"

namespace lockstep::bench {

// What a table is about: a collective, or messages.
struct Operation {
  Collective collective = Collective::kAllReduce;
  // No collective: every rank sends its vector to the next rank and receives that of the rank before.
  bool messages = false;

  bool is(Collective some) const { return !messages && collective == some; }
  bool has_data() const { return !is(Collective::kBarrier); }
  bool has_blocks() const { return !messages && IsByRank(collective); }
  bool has_root() const { return !messages && HasRoot(collective); }
  bool reduces() const { return !messages && HasReduction(collective); }
};

// "all_gather", "send_receive".
std::string Name(const Operation& operation);

// Reads "all", or names with commas between. INVALID_ARGUMENT lists the known names.
absl::StatusOr<std::vector<Operation>> ParseOperations(absl::string_view text);

// Bus bandwidth / algorithm bandwidth. Algorithm bandwidth is the size of the whole vector / time; the whole vector of an all-gather is
// its output, that of a reduce-scatter its input. The quotient is what an optimal algorithm moves through each rank's link, per byte of
// the vector. Bus bandwidth is comparable with the rate of the hardware, whatever the number of ranks.
double BusFactor(const Operation& operation, int ranks);

// Page-aligned memory of zeros. `allocator` null: ordinary memory, or RESOURCE_EXHAUSTED. Else memory of that communicator's allocator,
// with the errors of Communicator::Allocate; every rank must make the call.
absl::StatusOr<std::shared_ptr<char>> MakeVector(size_t bytes, Communicator* allocator);

// Contents of vectors whose sum is known exactly, in whatever order ranks are combined. Immutable.
//
// The elements are small integers. No partial sum rounds or overflows in the dtype, so results are compared bit by bit, without a
// tolerance. The elements repeat after a prime number of them. A block in the wrong place is some power of two away, and so it shows.
class Pattern {
 public:
  static constexpr int64_t kPeriod = 251;

  Pattern(DType dtype, int ranks);

  // Writes elements [begin, begin + count) of a rank's input.
  void FillInput(Rank rank, int64_t begin, void* target, size_t count) const;

  // How many of the elements differ from elements [begin, begin + count) of a rank's input, or of the sum.
  uint64_t CountWrongInput(Rank rank, int64_t begin, const void* data, size_t count) const {
    return CountWrong(inputs_[rank.value()], begin, data, count);
  }
  uint64_t CountWrongSum(int64_t begin, const void* data, size_t count) const {
    return CountWrong(sum_, begin, data, count);
  }

 private:
  // The first two periods of a vector. A whole period begins at each element of the first one.
  using Tile = std::vector<char>;

  static Tile MakeTile(DType dtype, const std::vector<int64_t>& values);
  uint64_t CountWrong(const Tile& tile, int64_t begin, const void* data, size_t count) const;

  size_t element_bytes_;
  std::vector<Tile> inputs_;  // by rank
  Tile sum_;
};

// What every row of a table has in common. Reductions are sums.
struct CaseKind {
  Operation operation;
  DType dtype = DType::kF32;
  Rank root;
  bool in_place = false;
};

// A vector with so many elements that each rank has a block of equal size where the operation has blocks.
struct CaseSize {
  size_t count = 0;      // elements of the whole vector
  size_t own_count = 0;  // elements of one rank's part: its block, or the whole vector
  int64_t bytes = 0;     // of the whole vector
};
// The largest such size of at most `bytes`.
CaseSize SizeOfCase(const CaseKind& kind, int ranks, int64_t bytes);

class Case {
 public:
  // Borrows the communicator, the pattern and the vectors, which hold `size.bytes` each. A case in place works on the first vector alone.
  Case(const CaseKind& kind, const CaseSize& size, Communicator* communicator, const Pattern* pattern, char* first,
       char* second);

  // Writes fresh inputs, and outputs that are wrong everywhere.
  void Fill();

  // Makes so many calls back to back.
  absl::Status Run(int64_t calls);

  // After Fill() and one call: how many elements are wrong on this rank, in outputs and, out of place, in inputs.
  uint64_t CountWrong() const;

 private:
  // The elements [begin, begin + count) of the whole vector.
  struct Part {
    int64_t begin = 0;
    size_t count = 0;
  };
  Part OwnBlock() const;
  Part PartOf(Window window) const;  // which part of the vector lies in the input or the output
  absl::Status RunMessages();
  uint64_t CountWrongOutput() const;
  Rank Neighbour(int distance) const;

  const CaseKind kind_;
  const CaseSize size_;
  Communicator* const communicator_;
  const Pattern* const pattern_;
  const size_t block_;  // elements of one rank's block
  char* input_;
  char* output_;
  CollectiveRequest request_;
};

}  // namespace lockstep::bench

#endif  // BENCH_COLLECTIVES_CASE_H_

// Subject: one exercise of one size on one rank, with the memory that it works on, ready to be run and checked.

#ifndef BENCH_SUBJECT_H_
#define BENCH_SUBJECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "bench/exercise.h"
#include "bench/memory.h"
#include "bench/pattern.h"
#include "comm/communicator.h"
#include "comm/work.h"

namespace lockstep {
namespace bench {

// What every row of a table has in common.
struct SubjectKind {
  Exercise exercise;
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

// A vector with so many elements that each rank has a block of equal size where the exercise has blocks.
struct SubjectSize {
  size_t count = 0;      // elements of the whole vector
  size_t own_count = 0;  // elements of one rank's part: the block (unequal: on average), or the whole vector
  int64_t bytes = 0;     // of the whole vector
};
SubjectSize SizeOfSubject(const SubjectKind& kind, int ranks, int64_t bytes);

class Subject {
 public:
  // Borrows the communicator, the pattern and the memory, which has the vectors that VectorsFor asks for.
  Subject(const SubjectKind& kind, const SubjectSize& size, Communicator* communicator, const Pattern* pattern,
          Memory* memory);

  // How many vectors of the size of the whole one a kind works on.
  static int VectorsFor(const SubjectKind& kind);

  // Fresh inputs, and outputs that are wrong everywhere.
  void Fill();

  // Calls back to back.
  absl::Status Run(int64_t calls);

  // After Fill and one call: the elements that are wrong on this rank, outputs and (out of place) changed inputs, in
  // the memory of the first call.
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
  Part InputPart() const;
  Part OutputPart() const;
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

  const SubjectKind kind_;
  const SubjectSize size_;
  Communicator* const communicator_;
  const Pattern* const pattern_;
  const std::vector<int64_t> counts_;  // of the ranks' blocks
  std::vector<int64_t> pair_counts_;   // to each rank and from it, in an all-to-all with counts
  std::vector<Place> places_;
  std::vector<CollectiveRequest> requests_;                    // one for each place
  std::vector<std::unique_ptr<PreparedCollective>> prepared_;  // likewise, once they have run
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_SUBJECT_H_

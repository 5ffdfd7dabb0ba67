// GradientClaims: the gradient memory that a reducer holds. The claims of all reducers of the process are in one table. Two claims of the
// same memory are an error, unless both only read it, or it is one parameter's gradient and target.
//
// A claim belongs to a round, which lasts to the end of a backward or of a window. The next round of the same reducer may claim the memory
// for another parameter: its steps run in order. Other reducers may claim it once the round has ended, or, in the order of a stream, once
// the round's step was issued and a stream of the embedder waits for it.
//
// THREADS  Thread-safe. A lock of the process is held for each look-up.
// COST     0.06 us for memory that is where it was before; other memory is looked up in an ordered map.

#ifndef REDUCER_PIPELINE_GRADIENT_CLAIMS_H_
#define REDUCER_PIPELINE_GRADIENT_CLAIMS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/mutex.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

class GradientClaims {
 public:
  // The parameters outlive this.
  explicit GradientClaims(absl::Span<const Parameter> parameters);
  // Ends all claims.
  ~GradientClaims();
  GradientClaims(const GradientClaims&) = delete;
  GradientClaims& operator=(const GradientClaims&) = delete;

  enum class Until {
    kChecked,    // the library does not keep the memory: only later claims of this reducer's round are compared with it
    kRoundEnds,  // the round has ended
    kTaken,      // Take, whichever round that is in: a delayed parameter's
  };
  // The parameter's gradient is read, and its average goes to `target`. `view` is its place in a bucket, which is written too, or null.
  // Each may be another one, or without data. Replaces the parameter's claim. A gradient that overlaps written memory counts as written. Of
  // a tensor with gaps, between which others may lie, only the first element counts. `ordered`: the gradient is ready in a stream's order.
  // ERRORS  INVALID_ARGUMENT  another claim has some of the memory; the message names both parameters; nothing was claimed
  absl::Status Claim(size_t parameter, const TensorView& gradient, const TensorView& target, const void* view,
                     Until until, bool ordered);
  // This reducer writes the parameter's `view` although its claim failed: a bucket's collective covers all views. Reducers that hold the
  // memory learn it from TakeOverwritten. Writes members of theirs, under the same lock.
  void Overwrite(size_t parameter, const void* view) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // Whether another reducer has overwritten memory of this one since the last call.
  // ERRORS  FAILED_PRECONDITION  it has; the message names both parameters
  absl::Status TakeOverwritten();
  // Ends the parameter's claim, if it has one.
  void Release(size_t parameter);
  // A claim that lasts until it is taken belongs to this round now.
  void Take(size_t parameter);

  // Begins another round. RETURNS the one before.
  uint64_t NextRound();
  // The step of the round was issued, and a stream waits for it; the event stands for its end. Borrows the event until Ended.
  void Issued(uint64_t round, const Event* end);
  // The round has ended, and so have all before it.
  void Ended(uint64_t round);

 private:
  static constexpr uint64_t kUntilTaken = std::numeric_limits<uint64_t>::max();

  struct Memory {
    uintptr_t begin = 0;
    size_t bytes = 0;
    uintptr_t end() const { return begin + bytes; }
  };
  struct Range : Memory {
    GradientClaims* owner = nullptr;
    size_t parameter = 0;
    bool writes = false;
    bool checked_only = false;
    uint64_t round = 0;
    enum { kNowhere, kInMap, kInOverlaps } place = kNowhere;
  };
  struct Table {
    const uint64_t fork_generation;
    Mutex mu;
    // By their first byte: ranges that do not overlap. Those that have ended stay until others need their place.
    std::map<uintptr_t, Range*> map ABSL_GUARDED_BY(mu);
    std::vector<Range*> overlaps ABSL_GUARDED_BY(mu);  // reads of memory that others read
  };
  // The memory that a parameter's step writes (target, view), and the memory that it only reads.
  static constexpr size_t kWritten = 2;
  using Memories = std::array<Memory, kWritten + 1>;
  using Ranges = std::array<Range, kWritten + 1>;

  // The process's. A forked child has its own, since the lock may have been held in the parent.
  static Table& TableOfProcess();
  static Memories MemoriesOf(const TensorView& gradient, const TensorView& target, const Memory& view);

  // The ranges in the table that have some of the memory.
  absl::InlinedVector<Range*, 4> Overlapping(const Memory& memory) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  // Whether the claim, of another parameter, keeps this reducer from its memory. Reads members of its owner, under the same lock.
  bool Holds(const Range& range, bool ordered) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  absl::Status Conflict(size_t parameter, const Range& other) const;
  void Place(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);
  void Drop(Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mu);

  const absl::Span<const Parameter> parameters_;
  Table& table_;

  // Guarded by table_.mu.
  std::vector<Ranges> ranges_ ABSL_GUARDED_BY(table_.mu);  // by parameter
  uint64_t round_ ABSL_GUARDED_BY(table_.mu) = 1;
  uint64_t ended_ ABSL_GUARDED_BY(table_.mu) = 0;
  std::array<std::pair<uint64_t, const Event*>, 2> issued_
      ABSL_GUARDED_BY(table_.mu) = {};  // rounds with steps under way
  absl::Status overwritten_ ABSL_GUARDED_BY(table_.mu);
  std::map<uintptr_t, Range*>::node_type spare_ ABSL_GUARDED_BY(table_.mu);  // dropped last: claims need not allocate
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_GRADIENT_CLAIMS_H_

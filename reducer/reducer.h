// Reducer: averages the gradients of a replicated model across ranks while the backward pass still computes.
//
//   state       call             next
//   idle        BeginBackward    armed (or accumulating, without sync)
//   armed       MarkReady        armed: a gradient is copied into its bucket; a full bucket is launched
//   armed       EndBackward      idle: averages are back in the gradients
//   accumulating MarkReady       accumulating: nothing but checks
//   accumulating EndBackward     idle
//
// One gradient's way. MarkReady notes where the gradient is. Ready now (null stream): it is copied into its bucket at once, scaled
// on the way, while it is hot in cache. Ready on a stream: when the bucket is full, the copy-in stream waits for one event
// per (bucket, stream) and copies all of it. A bucket is launched when it is full and all before it are, so every rank launches
// the same collectives in the same order whatever the order of its gradients. The collective stream all-reduces it; the
// copy-out stream writes the result back into the gradients. Three streams, so no copy waits for a collective that it does not
// need.
//
// A local failure never desynchronises. When gradients are missing at EndBackward, the rank still launches every bucket left, with
// zeros for what is missing and with a mark behind the data, and leaves a note saying what was missing. Every rank sees the
// mark in the sum, reads the notes, and returns the same FAILED_PRECONDITION; the next step may be tried. A stream with an error
// is told to the others in the same way; its own rank returns that error. Only a rank that cannot launch a bucket at all aborts
// the communicator.
//
// Threads. MarkReady may be called by several threads at once; they have returned when EndBackward is called. Everything else is
// called by one thread at a time. Between BeginBackward and EndBackward the communicator belongs to the reducer. No lock is held
// while something is copied or launched.
//
// Memory. One flat buffer per bucket, aligned to 256 bytes, in memory of the communicator's allocator, allocated at creation and
// released with the reducer. Where fewer buckets are to be in memory at a time, they take turns: bucket b has that of bucket b - n,
// and its gradients stay where they are until that one has been copied out. Gradients and their streams stay the embedder's,
// borrowed from MarkReady until the backward's end has passed, on its stream if it has one.

#ifndef REDUCER_REDUCER_H_
#define REDUCER_REDUCER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/mutex.h"
#include "base/tensor_view.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "reducer/bucket_plan.h"
#include "reducer/parameter.h"
#include "reducer/statistics.h"

namespace lockstep {

// The numbers are part of the C ABI.
enum class Average : int {
  kBefore = 0,        // gradients times 1/n as they are copied in, then the sum: no overflow, as DDP does it
  kAfter = 1,         // the sum, then times 1/n as it is copied out
  kNone = 2,          // the sum
  kInCollective = 3,  // by the all-reduce, as its op: on some back ends in one pass
  kPredivide = 4,     // gradients times 1/f as they are copied in, the sum times f/n as it is copied out
};

struct ReducerOptions {
  // Caps in bytes, used up one by one per dtype and device, the last repeated. Default: a small first bucket, so that
  // communication starts early, then 25 MiB.
  std::vector<size_t> bucket_caps_bytes = {size_t{1} << 20, size_t{25} << 20};
  CapsFrom caps_from = CapsFrom::kFirst;
  size_t buckets_in_memory_max = 0;  // 0: all of them
  Average average = Average::kBefore;
  double predivide_factor = 1;  // f of Average::kPredivide: finite, above zero
  bool overlap = true;          // false: every bucket is launched by EndBackward, for comparison
};

struct BackwardOptions {
  bool sync = true;  // false: gradients only accumulate in the embedder's memory
};

class Reducer {
 public:
  // Every rank calls it. Compares the tables across ranks; a difference is the same FAILED_PRECONDITION on all of them. A rank whose
  // own table is bad (INVALID_ARGUMENT) or does not fit in memory (RESOURCE_EXHAUSTED) returns that, the others that it did.
  // The communicator must outlive the reducer.
  static absl::StatusOr<std::unique_ptr<Reducer>> Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options);

  // Waits for what was launched, whose collectives end by their own deadlines. Abort the communicator first to cut that short.
  ~Reducer();

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // FAILED_PRECONDITION unless idle; the communicator's error if it is over.
  absl::Status BeginBackward(const BackwardOptions& options);

  // The gradient of a parameter is final: now (null stream), or when `stream` reaches this point. INVALID_ARGUMENT for an index out
  // of range or a gradient that does not match the table; FAILED_PRECONDITION outside a backward, or when marked before.
  absl::Status MarkReady(size_t index, const TensorView& gradient, Stream* stream);

  // Null stream: returns when the averages are in the gradients. Otherwise returns when everything is issued, and makes `stream`
  // wait for it; errors of other ranks are then told by the next BeginBackward.
  absl::Status EndBackward(Stream* stream);

  // Copies the root's tensors to every rank, coalesced into messages of up to 250 MiB. Blocks.
  absl::Status Broadcast(absl::Span<const TensorView> tensors, Rank root);

  const BucketPlan& plan() const { return plan_; }
  ReducerStatistics statistics() const;

 private:
  enum class State { kIdle, kArmed, kAccumulating };
  struct Bucket;

  Reducer(Communicator* communicator, std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan,
          Device* device);
  // Collective: ends well on every rank or on none, but for what this rank alone lacks.
  absl::Status Allocate();
  absl::Status AllocateBuckets();

  absl::Status CheckGradient(size_t index, const TensorView& gradient) const;
  absl::Status CopyIn(Bucket& bucket, size_t slot);
  absl::Status CopyOut(Bucket& bucket);
  // Queues what a full bucket still has to wait for before its collective.
  absl::Status Stage(Bucket& bucket);
  // Launches full buckets in order, for as long as there are any. One thread at a time does; the others leave it to that one.
  void LaunchFull() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Launch(Bucket& bucket);
  // Before a bucket is sent: what failed here so far shall not pass for an average on the other ranks.
  void MarkIfFailed(Bucket& bucket) ABSL_LOCKS_EXCLUDED(mu_);
  // Says what is missing, if anything; fills the holes with zeros and marks the buckets.
  std::string FillMissing() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the step's last copy and says how the step went, the same on every rank.
  absl::Status Finish() ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // What a bucket's mark is set to, so that the all-reduce adds one to it.
  float MarkOfOne() const;
  double CopyInFactor() const;
  double CopyOutFactor() const;

  // Constant after construction.
  Communicator* const communicator_;
  const std::vector<Parameter> parameters_;
  const ReducerOptions options_;
  const BucketPlan plan_;
  Device* const device_;
  uint64_t first_topic_ = 0;  // of notes; step k's is so much more. Equal on all ranks, no other reducer's.
  std::unique_ptr<Stream> copy_in_;
  std::unique_ptr<Stream> collective_;
  std::unique_ptr<Stream> copy_out_;

  std::unique_ptr<SymmetricBuffer> memory_;

  // The vector is constant after construction. Of a bucket, what MarkReady counts is guarded by mu_; the rest belongs to whoever
  // fills it (before it is full), launches it, or runs on the streams, one after the other.
  std::vector<std::unique_ptr<Bucket>> buckets_;

  // Guarded by mu_.
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kIdle;
  std::vector<bool> marked_ ABSL_GUARDED_BY(mu_);  // by parameter, in this backward
  size_t next_bucket_ ABSL_GUARDED_BY(mu_) = 0;    // the first not launched
  bool launching_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool in_flight_ ABSL_GUARDED_BY(mu_) = false;    // the last EndBackward left its result to the next BeginBackward
  absl::Status step_status_ ABSL_GUARDED_BY(mu_);  // the first failure of this step on this rank
  uint64_t step_ ABSL_GUARDED_BY(mu_) = 0;         // synchronised backwards begun
  StepTimer timer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lockstep

#endif  // REDUCER_REDUCER_H_

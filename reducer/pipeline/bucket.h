// A bucket in memory: it takes the gradients of one backward, and gives their averages.
//
// THREADS  A bucket has one owner after the other: the threads that mark its gradients (they change it under the reducer's lock, and
//          copy each slot alone), then the thread that launches it, then the streams in turn, then whoever has waited for them.
//
// A bucket is flat memory, or it has none: it is in pieces, which lie where the gradients do.

#ifndef REDUCER_PIPELINE_BUCKET_H_
#define REDUCER_PIPELINE_BUCKET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/device/tensor_view.h"
#include "base/ref.h"
#include "base/types/dtype.h"
#include "comm/pieces.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/plan/status_trailer.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

// The contents of a gradient's memory after a step, or of the target's if one was marked. The numbers are part of the C ABI.
enum class GradientState : int {
  kUnchanged = 0,  // what it had when it was marked
  kAveraged = 1,
  kUndefined = 2,  // parts of sums, or sums with zeros for a rank that failed
};

class Bucket {
 public:
  // One gradient in a backward.
  struct Slot {
    bool used = false;    // this rank has a gradient
    TensorView gradient;  // the values of the rows, if it is sparse
    absl::Span<const int64_t> rows;
    TensorView target;           // where the average goes; no data: to the view or, where there are none, to `spare`
    bool used_anywhere = false;  // by any rank, once the bucket is reduced: there is an average
    // The average goes elsewhere, or there may be none, so the gradient in the bucket has to survive: it is copied to `spare` meanwhile.
    // If this rank does not use the parameter, zeros are reduced, and an average replaces the gradient if another rank uses it.
    bool keeps = false;
    DeviceMemory spare;  // memory for one gradient, allocated when it is needed
    // With preserve_gradients, once `saved`: copies of what the step may write, the target and the view.
    struct Copy {
      TensorView original;  // no data: none
      DeviceMemory memory;  // kept from step to step
    };
    Copy copies[2];
    bool saved = false;
  };
  // How far the bucket's averages came.
  enum class Written {
    kNothing,
    kFlat,   // the flat memory has sums, and so do gradients that live there; targets elsewhere are as they were
    kParts,  // everything that the bucket writes may have parts of sums
    kAll,
  };

  // `flat` is memory of plan.bytes(), or null: the bucket is in pieces. `views` is the memory of gradients that live in
  // the bucket: null if they do not, and `flat` if they are sent in their own dtype. Both are aligned to 256 bytes.
  // `before` is the bucket that had this memory before, or null.
  Bucket(const BucketPlan::Bucket& plan, size_t index, char* flat, char* views, Bucket* before);

  const BucketPlan::Bucket& plan() const { return *plan_; }
  size_t index() const { return index_; }
  Bucket* before() const { return before_; }
  char* flat() const { return flat_; }
  char* FlatAt(size_t slot) const { return flat_ + plan_->slots[slot].offset * SizeOf(plan_->wire); }
  // Null where gradients do not live in buckets.
  char* ViewAt(size_t slot) const {
    return views_ == nullptr ? nullptr : views_ + plan_->slots[slot].offset * SizeOf(plan_->dtype);
  }
  // Whether gradients live where they are reduced.
  bool in_place() const { return views_ != nullptr && views_ == flat_; }
  // The slot's view, in which a sum is on its way to the average. Null if no memory of the embedder's is used so.
  char* SumAt(size_t slot) const { return in_place() && plan_->slots[slot].elements > 0 ? ViewAt(slot) : nullptr; }
  bool in_pieces() const { return flat_ == nullptr; }
  size_t trailer_bytes() const { return plan_->trailer_elements() * SizeOf(plan_->wire); }
  StatusTrailer Trailer(float one) {
    if (in_pieces()) return StatusTrailer(reinterpret_cast<char*>(own_trailer.data()), DType::kF32, one);
    return StatusTrailer(flat_ + plan_->trailer * SizeOf(plan_->wire), plan_->wire, one);
  }

  // A backward begins.
  void Reset();
  // One more slot is copied in or staged. RETURNS whether it was the last; the caller then calls SetFull.
  bool FillOne() { return slots_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // From now on any thread that sees full() may launch it. full() acquires what was written before each FillOne, and
  // before this.
  void SetFull() { full_.store(true, std::memory_order_release); }
  bool full() const { return full_.load(std::memory_order_acquire); }

  // Of a sparse bucket: `sparse` from its slot.
  void TakeSparse(const Parameter& parameter);
  // On the host: copies the slot's gradient, times the factor, or zeros if it has none, into the flat memory. Copies
  // nothing of a sparse one, whose rows travel from where they are. RESOURCE_EXHAUSTED if there is no memory for what
  // the slot keeps.
  absl::Status CopyIn(size_t slot, double factor, const Parameter& parameter);
  // On the host, once the status trailer is read: restores what slots keep if no rank has a gradient, or if no average
  // may be written. CopyOut restores the rest.
  void PutBack();
  // Writes the average in `result` (of `dtype`, at the flat memory's offsets), times the factor, to its target.
  // RESOURCE_EXHAUSTED if that is to be memory of our own, and there is none.
  absl::Status CopyOut(size_t slot, const char* result, DType dtype, double factor, const Parameter& parameter);
  // In pieces: copies gradients aside whose averages go to the same memory in another dtype, which would overwrite what is still to be
  // read. RESOURCE_EXHAUSTED if there is no memory for it.
  absl::Status SetAside(absl::Span<const Parameter> parameters);
  // In pieces, once it is known which parameters are used anywhere: describes where the gradients lie, which elements are read times
  // `factor_in`, and where their averages go, times `factor_out`. The two are one where that is the same. Of what this rank did not use the
  // average goes to memory of our own. RESOURCE_EXHAUSTED if there is none; the pieces are whole all the same.
  absl::Status FindPieces(double factor_in, double factor_out, absl::Span<const Parameter> parameters);
  // The slot's spare memory, on the device of its gradient. RESOURCE_EXHAUSTED if there is none.
  absl::StatusOr<char*> Spare(size_t slot, Device* device, const Parameter& parameter);
  // Whether the gradient lies where it is reduced.
  bool InPlace(size_t slot) const;
  // Copies aside whatever the step may write for the slot: on the host now (null stream), or in the order of the stream.
  // ERRORS  RESOURCE_EXHAUSTED  there is no memory for it
  absl::Status Save(size_t slot, Device* device, const Parameter& parameter, Stream* stream);
  // Writes back what was saved, likewise. REQUIRES that nothing of the step is under way.
  absl::Status Restore(Stream* stream);
  // REQUIRES  the step has ended
  GradientState StateOf(size_t slot) const;
  // The averages to copy out, at the flat memory's offsets.
  struct Result {
    const char* data;
    DType dtype;
  };
  Result result() const;
  // Reads the status trailer after the reduction.
  void ReadTrailer(const StatusTrailer& trailer);

  std::vector<Slot> slots;
  std::vector<size_t> staged;    // slots that are still to be copied in, by the copy-in stream
  std::vector<Stream*> streams;  // on which their gradients are ready, each once
  size_t points = 0;             // of stream_events, marked in this backward
  SparseGradient sparse;         // of a sparse bucket: what this rank gives
  CoalescedGradient sparse_average;
  HookBucket hooked;
  // In pieces.
  std::vector<float> own_trailer;  // and one more entry: ranks that do not share all of their gradients
  Ref<Pieces> gradients_in_pieces;
  Ref<Pieces> averages_in_pieces;

  // From the status trailer.
  bool reduced = false;          // anything
  int failed = 0;                // ranks whose failure makes this no average
  int joined = 0;                // ranks without inputs
  int unrequested = 0;           // ranks that have not requested a new plan
  bool hashes_differ = false;    // of the ranks' replicas
  bool copied_out_well = false;  // the averages are where they go

  // Written by the thread that writes averages; read once the step has ended.
  Written written = Written::kNothing;
  bool restored = false;

  // Kept from step to step.
  std::vector<std::unique_ptr<Event>> stream_events;  // grown as needed
  std::unique_ptr<Event> copied_in;
  std::unique_ptr<Event> all_reduced;
  std::unique_ptr<Event> copied_out;
  // On a device: `told_trailer` is a copy of the status trailer on the host, complete once `told` is reached (before
  // that, with a hook, it says whether the hook failed). `followed` is an event of the host: the copy was read.
  std::unique_ptr<Event> told;
  DeviceMemory told_trailer;
  std::unique_ptr<Event> followed;

 private:
  static bool AveragesInPlace(const Slot& slot);

  const BucketPlan::Bucket* plan_;
  const size_t index_;
  char* const flat_;
  char* const views_;
  Bucket* const before_;
  std::atomic<size_t> slots_left_{0};
  std::atomic<bool> full_{false};
};

// A view without gaps at `data` for a gradient of a checked parameter: with the table's strides if they are dense, else
// row-major. The slot's elements have this order in the flat memory.
TensorView DenseView(const Parameter& parameter, void* data);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_BUCKET_H_

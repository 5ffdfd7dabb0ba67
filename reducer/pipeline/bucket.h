// A bucket in memory: the gradients of one backward on their way in, and their averages on their way out.
//
// THREADS  A bucket belongs to one party after the other: the threads that mark its gradients (they change it under the reducer's lock, and
//          copy each slot alone), then the thread that launches it, then the streams in turn, then whoever has waited for them.

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
#include "base/types/dtype.h"
#include "reducer/pipeline/comm_hook.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"
#include "reducer/plan/status_trailer.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

class Bucket {
 public:
  // One gradient in a backward.
  struct Slot {
    bool used = false;    // this rank has a gradient
    TensorView gradient;  // it; of a sparse one the rows' values
    absl::Span<const int64_t> rows;
    TensorView target;           // where the average goes; no data: to the view or, where there are none, to `spare`
    bool used_anywhere = false;  // by any rank, once the bucket is reduced: there is an average
    // Not used here, and what lives in the bucket stays if no rank uses it. Meanwhile it is copied to `spare`: zeros are reduced there.
    bool keeps = false;
    DeviceMemory spare;  // of our own for one gradient, taken when it is needed
  };

  // `flat` is the memory of plan.bytes(); `views` that of the gradients where they live in buckets, else null: the same as `flat`
  // where both have one dtype. Both are aligned to 256 bytes. `before`, or null, has the same memory before this one.
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
  bool in_place() const { return views_ == flat_; }
  size_t trailer_bytes() const { return StatusTrailer::Elements(slots.size()) * SizeOf(plan_->wire); }
  StatusTrailer Trailer(float one) const {
    return StatusTrailer(flat_ + plan_->trailer * SizeOf(plan_->wire), plan_->wire, one);
  }

  // A backward begins.
  void Reset();
  // One more slot is copied in or staged. Whether it was the last: then SetFull is called next.
  bool FillOne() { return slots_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // From now on whoever sees that it is full may launch it. Acquires what was written before each FillOne, and before this.
  void SetFull() { full_.store(true, std::memory_order_release); }
  bool full() const { return full_.load(std::memory_order_acquire); }

  // Of a sparse bucket: `sparse` from its slot.
  void TakeSparse(const Parameter& parameter);
  // On the host: the slot's gradient, times the factor, or zeros where there is none, into the flat memory. Nothing of a sparse one, whose
  // rows travel from where they are. RESOURCE_EXHAUSTED where there is no memory for what the slot keeps.
  absl::Status CopyIn(size_t slot, double factor, const Parameter& parameter);
  // On the host, once the status trailer is read: restores what slots keep, if no rank has a gradient, or no average may be written.
  void PutBack();
  // The average in `result` (of `dtype`, at the flat memory's offsets) times the factor to where it goes. RESOURCE_EXHAUSTED where
  // that is to be memory of our own, and there is none.
  absl::Status CopyOut(size_t slot, const char* result, DType dtype, double factor, const Parameter& parameter);
  // The slot's spare memory, on the device of its gradient. RESOURCE_EXHAUSTED where there is none.
  absl::StatusOr<char*> Spare(size_t slot, Device* device, const Parameter& parameter);
  // Whether the gradient lies where it is reduced.
  bool InPlace(size_t slot) const;
  // What is to be copied out: at the flat memory's offsets.
  struct Result {
    const char* data;
    DType dtype;
  };
  Result result() const;
  // Takes what the status trailer says after the reduction.
  void ReadTrailer(const StatusTrailer& trailer);

  std::vector<Slot> slots;
  std::vector<size_t> staged;    // slots that are still to be copied in, by the copy-in stream
  std::vector<Stream*> streams;  // on which their gradients are ready, each once
  size_t points = 0;             // of stream_events, marked in this backward
  SparseGradient sparse;         // of a sparse bucket: what this rank gives
  CoalescedGradient sparse_average;
  HookBucket hooked;

  // From the status trailer.
  bool reduced = false;          // anything
  int failed = 0;                // ranks whose failure makes this no average
  int joined = 0;                // ranks without inputs
  int unplanned = 0;             // ranks that do not hold the next plan
  bool copied_out_well = false;  // the averages are where they go

  // Kept from step to step.
  std::vector<std::unique_ptr<Event>> stream_events;  // grown as needed
  std::unique_ptr<Event> copied_in;
  std::unique_ptr<Event> all_reduced;
  std::unique_ptr<Event> copied_out;
  // On a device: a copy of the status trailer on the host, complete once `told` is reached (with a hook, before that: whether it failed).
  // `followed` is an event of the host: the copy was read.
  std::unique_ptr<Event> told;
  DeviceMemory told_trailer;
  std::unique_ptr<Event> followed;

 private:
  const BucketPlan::Bucket* plan_;
  const size_t index_;
  char* const flat_;
  char* const views_;
  Bucket* const before_;
  std::atomic<size_t> slots_left_{0};
  std::atomic<bool> full_{false};
};

// A gradient of the parameter, which was checked, without gaps at `data`: with the table's strides where those are dense, else
// row-major. It has the order in which the flat memory has the slot.
TensorView DenseView(const Parameter& parameter, void* data);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_BUCKET_H_

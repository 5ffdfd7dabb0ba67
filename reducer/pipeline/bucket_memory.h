// BucketMemory: the memory of buckets and of gradients that live in them. Allocated once; any plan that fits is laid
// out in it.

#ifndef REDUCER_PIPELINE_BUCKET_MEMORY_H_
#define REDUCER_PIPELINE_BUCKET_MEMORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "comm/communicator.h"
#include "comm/symmetric_buffer.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

class BucketMemory {
 public:
  struct Use {
    size_t buckets_max = 0;  // in memory at a time, taking turns; 0: all of them
    bool views = false;      // gradients live in buckets
    bool pieces = false;     // buckets are in pieces, where that gives the bits of flat memory
  };

  // Collective. Allocates memory of the communicator's allocator on the accelerator for the plan, or `bytes_max` if all
  // buckets are in memory at once. On a host whose ranks cannot share it, the memory is this rank's own, with a
  // warning. Gradients that live in the memory are zero at first. If buckets are compressed, gradients that live in
  // them have private memory.
  //
  // ERRORS  RESOURCE_EXHAUSTED   this rank lacks memory, or the ranks of its host would together touch more than the
  //                              host has left (with both figures)
  //         FAILED_PRECONDITION  another rank lacks memory: nothing is allocated anywhere
  static absl::StatusOr<std::unique_ptr<BucketMemory>> Allocate(Communicator& communicator,
                                                                const Accelerator& accelerator, const BucketPlan& plan,
                                                                size_t bytes_max, const Use& use);

  bool Fits(const BucketPlan& plan) const;
  // Buckets of a plan that fits and outlives them. They have no events yet.
  std::vector<std::unique_ptr<Bucket>> LayOut(const BucketPlan& plan) const;

  // After a failure of the communicator, and when nothing of the step is under way: no peer reaches gradients that live here any more.
  absl::Status Detach();

  bool Holds(const void* data) const;
  // Whether all buckets of the plan are in pieces.
  bool InPieces(const BucketPlan& plan) const;

 private:
  explicit BucketMemory(const Use& use) : use_(use) {}

  // Whether the bucket has memory. In pieces it needs some if its gradients have not all values of the dtype in which they are sent:
  // sums of them could not wait in the gradients.
  bool IsFlat(const BucketPlan::Bucket& bucket) const;
  // The bytes of each region. The plan's buckets take turns in the regions.
  std::vector<size_t> Regions(const BucketPlan& plan) const;

  const Use use_;
  std::unique_ptr<SymmetricBuffer> flat_;  // null: no bucket has memory
  DeviceMemory views_;                     // none where gradients live in `flat_`, or not in buckets
};

// Copies gradients that live in buckets out before the buckets move, and back to their new places.
class KeptGradients {
 public:
  struct Gradient {
    size_t index = 0;
    const void* view = nullptr;  // where it lived
    size_t at = 0;               // in the memory of all
  };
  // By parameter: where it lives now.
  using ViewAt = std::function<char*(size_t index)>;

  KeptGradients() = default;  // none

  // Copies them out of the device's memory. Blocks, and so does PutBack.
  static absl::StatusOr<KeptGradients> Take(Device* device, absl::Span<const Parameter> parameters,
                                            const ViewAt& view_at);
  absl::Status PutBack(Device* device, absl::Span<const Parameter> parameters, const ViewAt& view_at) const;

  absl::Span<const Gradient> gradients() const { return gradients_; }

 private:
  std::vector<Gradient> gradients_;
  DeviceMemory bytes_;
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_BUCKET_MEMORY_H_

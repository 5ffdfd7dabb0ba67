// CommHook: replaces the all-reduce of buckets.
//
// With a hook the reducer only copies. Gradients arrive unscaled (cast to the wire's dtype, if one is set), and the
// hook's result is the average. A hook is issued for every bucket in the order of launch, the same on all ranks, even
// if this rank has only zeros. It has a communicator of its own, so its failures leave the reducer's usable. A hook
// that fails on one rank ends its communicator on all ranks; every EndBackward returns the failure, and the next
// backward begins with a new communicator.

#ifndef REDUCER_PIPELINE_COMM_HOOK_H_
#define REDUCER_PIPELINE_COMM_HOOK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/device/device.h"
#include "base/device/tensor_view.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/sparse/sparse_gradient.h"

namespace lockstep {

// A bucket for a hook. Valid from its issue until the backward has ended.
struct HookBucket {
  const BucketPlan::Bucket* plan = nullptr;  // its slots: which parameters lie where
  size_t index = 0;                          // in the order of launch
  size_t count = 0;                          // of buckets
  uint64_t step = 0;                         // synchronised backwards begun, from 1
  DType dtype = DType::kF32;
  void* data = nullptr;
  size_t elements = 0;                         // gaps between slots included
  std::shared_ptr<Communicator> communicator;  // the hook's own; null for a hook that does not communicate
  // The reducer's; null outside of a reducer. When it ends, the step ends, and with it the hook.
  const Communicator* reducers = nullptr;

  // The hook's result if it is not in `data`: as many elements of a real float dtype (complex: of the same dtype). It
  // stays there until the next backward begins.
  absl::optional<TensorView> result;
  // A sparse bucket has no elements, but this rank's rows and values. The hook may leave an average in `sparse_result`;
  // without one they stay as they are.
  const SparseGradient* sparse = nullptr;
  absl::optional<CoalescedGradient> sparse_result;
  // Set by a hook that fails after its issue, by work in the stream.
  absl::Status status;
  // The same for a hook on a device, from any other thread, before the stream has passed what the hook enqueued. Ends
  // the hook's communicator at once.
  std::function<void(const absl::Status& status)> fail;

  bool is_last() const { return index + 1 == count; }
};

// Issued by the thread that filled the bucket, one at a time.
class CommHook {
 public:
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  // For people, and equal on all ranks.
  virtual std::string name() const = 0;
  virtual bool communicates() const { return true; }

  // Enqueues the work for the bucket. The data are there when the stream reaches this point, and the result is when it
  // has passed what was enqueued. An error means that the hook has failed.
  virtual absl::Status Issue(HookBucket& bucket, Stream& stream) = 0;

 protected:
  CommHook() = default;
};

// Leaves buckets as they are.
std::unique_ptr<CommHook> MakeNoopHook();

// By this a host-completed hook reports its end. Thread-safe; may outlive everything.
class HookCompletion {
 public:
  virtual ~HookCompletion() = default;
  // The first call counts; one after the deadline does nothing.
  virtual void Done(const absl::Status& status) = 0;
};

// Makes a hook that the host completes. `start` is called on the collective stream's thread when the bucket's data are
// there. The stream goes on once any thread calls `completion`. After `timeout` the hook has failed with
// DEADLINE_EXCEEDED. Once the reducer's communicator or the hook's has ended, the hook has failed with that error.
//
// On a device `start` is called on a thread of the hook's, lockstep-hook, where it may use the device; the result is
// left in `data`. The stream awaits a flag meanwhile (Stream::AwaitValue), so the hook's own work must not be behind it
// in a queue of the device.
std::unique_ptr<CommHook> MakeHostCompletedHook(
    std::string name, std::chrono::milliseconds timeout,
    std::function<void(HookBucket& bucket, std::shared_ptr<HookCompletion> completion)> start);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_COMM_HOOK_H_

// CommHook: what is done with a bucket instead of an all-reduce.
//
// With a hook the reducer only copies: gradients come as they are (cast to the wire's dtype, where one is set), and what the hook leaves
// is taken for the average. A hook is issued for every bucket in the order of launch, the same on all ranks, also where this rank has
// only zeros to give. It has a communicator of its own, so whatever becomes of it the reducer's stays good: a hook that fails on
// one rank ends its communicator on all of them, every rank's EndBackward says so, and the next backward begins with a new one.

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

// A bucket as a hook sees it, from its issue until the backward has ended.
struct HookBucket {
  const BucketPlan::Bucket* plan = nullptr;  // its slots: which parameters lie where
  size_t index = 0;                          // in the order of launch
  size_t count = 0;                          // of buckets
  uint64_t step = 0;                         // synchronised backwards begun, from 1
  DType dtype = DType::kF32;
  void* data = nullptr;
  size_t elements = 0;                   // gaps between slots included
  Communicator* communicator = nullptr;  // the hook's own; null for a hook that does not communicate

  // What the hook leaves, where it is not `data`: as many elements of a real float dtype (complex: of the same). It stays there
  // until the next backward begins.
  absl::optional<TensorView> result;
  // Of a sparse bucket, which has no elements, instead of `data`: this rank's rows and values. What the hook leaves for an average, or
  // else they are left as they are.
  const SparseGradient* sparse = nullptr;
  absl::optional<CoalescedGradient> sparse_result;
  // Set by a hook that fails after its issue, by work in the stream.
  absl::Status status;
  // The same for a hook on a device, on any other thread, before the stream passes what it enqueued: ends the hook's communicator at once.
  std::function<void(const absl::Status& status)> fail;

  bool is_last() const { return index + 1 == count; }
};

// Thread-safe: it is issued by whichever thread filled the bucket, one at a time.
class CommHook {
 public:
  virtual ~CommHook() = default;
  CommHook(const CommHook&) = delete;
  CommHook& operator=(const CommHook&) = delete;

  // For people, and equal on all ranks.
  virtual std::string name() const = 0;
  virtual bool communicates() const { return true; }

  // Enqueues what is to be done with the bucket: its data are there once the stream reaches this point, and the result is once it
  // passes what was enqueued. An error means that the hook has failed.
  virtual absl::Status Issue(HookBucket& bucket, Stream& stream) = 0;

 protected:
  CommHook() = default;
};

// Leaves buckets as they are: nothing moves.
std::unique_ptr<CommHook> MakeNoopHook();

// How a host-completed hook says that it is done. Thread-safe; may outlive everything.
class HookCompletion {
 public:
  virtual ~HookCompletion() = default;
  // The first call counts; one after the deadline does nothing.
  virtual void Done(const absl::Status& status) = 0;
};

// Host-completed: `start` is called on the collective stream's thread when the bucket's data are there; the stream goes on when
// `completion` is told, by any thread. Past `timeout` the hook has failed with DEADLINE_EXCEEDED.
//
// On a device `start` is called on a thread of the hook's, lockstep-hook, where it may use the device; the result is left in `data`. The
// stream awaits a word meanwhile (Stream::AwaitValue): what the hook issues must not be behind it in a queue of the device.
std::unique_ptr<CommHook> MakeHostCompletedHook(
    std::string name, std::chrono::milliseconds timeout,
    std::function<void(HookBucket& bucket, std::shared_ptr<HookCompletion> completion)> start);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_COMM_HOOK_H_

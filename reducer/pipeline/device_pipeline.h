// DevicePipeline: buckets on a device. Kernels copy in the order of the device's streams. They read the status trailer, and write averages
// only if it allows that. Everything is issued without waiting for data. A thread of ours, lockstep-watch, follows the device and reads
// a copy of each trailer some time after the averages were written.
//
// So a failure reaches the trailer only if it is known when the bucket is launched, or if a hook's communicator failed.
// The watching thread calls the optimizer. No thread follows a captured step: its replays leave a trailer for
// CheckReplays. When a collective fails, the work issued after it runs all the same: unlike on the host, gradients of
// that step are undefined.

#ifndef REDUCER_PIPELINE_DEVICE_PIPELINE_H_
#define REDUCER_PIPELINE_DEVICE_PIPELINE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "kernels/bucket_kernels.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/bucket_pipeline.h"

namespace lockstep {

class DevicePipeline final : public BucketPipeline {
 public:
  // The kernels outlive it.
  DevicePipeline(const Parts& parts, const kernels::BucketKernels* kernels, Settings settings)
      : BucketPipeline(parts, std::move(settings), /*copies_at_once=*/false), kernels_(kernels) {}
  ~DevicePipeline() override;

  absl::Status CreateStreams() override;
  absl::Status CreateEvents(Bucket& bucket) override;
  // With an optimizer, blocks until the last bucket is reduced: only then is the work enqueued that the stream waits
  // for.
  absl::Status MakeWait(Stream& stream, Bucket& last) override;
  absl::Status Synchronize(Deadline deadline) override;
  absl::Status Await(Bucket& last, Deadline deadline) override;
  Event* ReleasedBy(Bucket& bucket) override { return bucket.told.get(); }

 private:
  absl::Status EnqueueCopyIn(Bucket& bucket) override;
  absl::Status EnqueueBegan(Bucket& bucket) override;
  absl::Status EnqueueSparse(Bucket& bucket) override;
  absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) override;
  absl::Status EnqueueCopyOut(Bucket& bucket) override;
  absl::Status EnqueueEnd(Bucket& bucket) override;

  std::vector<kernels::BucketEntry> TrailerEntries(Bucket& bucket);
  // On the copy-in stream: what the slot keeps, into its spare memory.
  absl::Status EnqueueKeep(Bucket& bucket, size_t slot);
  // Where the slot's average goes: spare memory if no target was marked, or if the gradient in the view may have to stay.
  absl::Status FindTarget(Bucket& bucket, size_t slot);
  // Behind a hook: the trailer, to which the stream adds whether the hook failed.
  absl::Status EnqueueTrailer(Bucket& bucket);
  // In a closure of the stream, behind the hook: whether it failed, for the trailer.
  void LookAtHook(Bucket& bucket);
  // On the watching thread, while the next step may have begun.
  void Follow(Bucket& bucket, const Step& step);

  const kernels::BucketKernels* const kernels_;
  // Constant once created.
  std::unique_ptr<Stream> watch_;           // of the host
  std::unique_ptr<Event> optimized_event_;  // null where there is no optimizer
};

// Makes a HostPipeline if `kernels` is null, else a DevicePipeline with the device's kernels.
std::unique_ptr<BucketPipeline> MakePipeline(const BucketPipeline::Parts& parts, const kernels::BucketKernels* kernels,
                                             BucketPipeline::Settings settings);

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_DEVICE_PIPELINE_H_

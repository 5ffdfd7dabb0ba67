// HostPipeline: buckets on the host. The streams are threads. They copy, and know the failures so far and the status
// trailer.

#ifndef REDUCER_PIPELINE_HOST_PIPELINE_H_
#define REDUCER_PIPELINE_HOST_PIPELINE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "reducer/pipeline/bucket.h"
#include "reducer/pipeline/bucket_pipeline.h"

namespace lockstep {

class HostPipeline final : public BucketPipeline {
 public:
  HostPipeline(const Parts& parts, Settings settings)
      : BucketPipeline(parts, std::move(settings), /*copies_at_once=*/true) {}
  ~HostPipeline() override;

  absl::Status CreateStreams() override;
  absl::Status MakeWait(Stream& stream, Bucket& last) override;
  absl::Status Synchronize(Deadline deadline) override;
  absl::Status Await(Bucket&, Deadline deadline) override { return Synchronize(deadline); }

 private:
  absl::Status EnqueueCopyIn(Bucket& bucket) override;
  absl::Status EnqueueBegan(Bucket& bucket) override;
  absl::Status EnqueueSparse(Bucket& bucket) override;
  absl::Status EnqueueReduction(Bucket& bucket, const CollectiveRequest& request) override;
  absl::Status EnqueueCopyOut(Bucket& bucket) override;
  absl::Status EnqueueEnd(Bucket& bucket) override;

  // On the streams' threads.
  void WriteTrailer(Bucket& bucket);
  void GatherSparse(Bucket& bucket);
  absl::Status CopyOut(Bucket& bucket);
  double CopyOutFactor(int joined) const;

  std::unique_ptr<Event> optimized_event_;  // constant once created; null where there is no optimizer
};

}  // namespace lockstep

#endif  // REDUCER_PIPELINE_HOST_PIPELINE_H_

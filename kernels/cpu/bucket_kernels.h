// BucketKernels on the host: closures on host streams. Tests compare a device's kernels with these, and use these where
// there is no device.

#ifndef KERNELS_CPU_BUCKET_KERNELS_H_
#define KERNELS_CPU_BUCKET_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/types/dtype.h"
#include "kernels/bucket_kernels.h"

namespace lockstep::kernels {

class HostKernels : public BucketKernels {
 public:
  absl::Status Gather(absl::Span<const BucketPiece> pieces, absl::Span<const BucketEntry> entries, void* flat,
                      DType flat_dtype, double factor, Stream& stream) const override;
  absl::Status Spread(absl::Span<const BucketPiece> pieces, const void* flat, DType flat_dtype, double factor,
                      const BucketGate& gate, Stream& stream) const override;
  absl::Status Hash(const void* data, size_t bytes, uint64_t first_word, uint64_t* sum, Stream& stream) const override;

 protected:
  // Puts what a call does into the stream. Where that is captured, `work` runs at each replay.
  virtual absl::Status Issue(absl::AnyInvocable<absl::Status()> work, Stream& stream) const {
    return stream.Enqueue(std::move(work));
  }
};

// For streams whose memory the host can address, whatever device they name. Never destroyed.
const BucketKernels* HostBucketKernels();

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_BUCKET_KERNELS_H_

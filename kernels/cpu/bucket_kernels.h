// BucketKernels on the host: closures on host streams. Tests compare a device's kernels with these, and use these where
// there is no device.

#ifndef KERNELS_CPU_BUCKET_KERNELS_H_
#define KERNELS_CPU_BUCKET_KERNELS_H_

#include "kernels/bucket_kernels.h"

namespace lockstep {
namespace kernels {

// For streams whose memory the host can address, whatever device they name. Never destroyed.
const BucketKernels* HostBucketKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_BUCKET_KERNELS_H_

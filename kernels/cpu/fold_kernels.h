// FoldKernels on the host: closures on host streams. What a device's are compared with, and what stands in for them
// where there is none.

#ifndef KERNELS_CPU_FOLD_KERNELS_H_
#define KERNELS_CPU_FOLD_KERNELS_H_

#include "kernels/fold_kernels.h"

namespace lockstep {
namespace kernels {

// Of streams whose memory the host can address, whatever they call their device. Never destroyed.
const FoldKernels* HostFoldKernels();

}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CPU_FOLD_KERNELS_H_

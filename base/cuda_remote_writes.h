// Memory of a GPU into which other devices write, such as a network's: when the GPU's own work sees that.

#ifndef BASE_CUDA_REMOTE_WRITES_H_
#define BASE_CUDA_REMOTE_WRITES_H_

#include "absl/status/status.h"

namespace lockstep {

// Whether what another device has written, as the host knows, is there for what comes behind a stream's wait for a word of
// the host's (Stream::AwaitValue): the GPU keeps the order of such writes for its own work
// (cudaDevAttrGPUDirectRDMAWritesOrdering), or streams flush them as they wait (cudaDevAttrCanFlushRemoteWrites).
// UNIMPLEMENTED where neither is so. OK for a GPU that there is not: nobody writes there.
absl::Status CheckCudaRemoteWrites(int device);

}  // namespace lockstep

#endif  // BASE_CUDA_REMOTE_WRITES_H_

// Element-wise reduction of arrays on a GPU, in order and in one pass, into any number of targets: the bits of
// kernels/cpu/reduce.h and reduce_many.h. Streams, threads and errors as in cast.h.
//
// Arrays are aligned to their elements, also complex ones. A target may equal a source exactly and overlaps none in any other
// way. INVALID_ARGUMENT for what is neither. Targets do not overlap each other, which is the caller's duty.

#ifndef KERNELS_CUDA_REDUCE_H_
#define KERNELS_CUDA_REDUCE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "kernels/cuda/executor.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// So many targets and sources are reduced by one launch, and by one call.
inline constexpr size_t kReduceArraysMax = 8;

// target[i] = left[i] op right[i]. INVALID_ARGUMENT where CombineFor (kernels/cpu/reduce.h) fails: pairs without a
// meaning, kAvg and kPremulSum.
absl::Status Reduce(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count,
                    Stream& stream);

// targets[t][i] = ((sources[0][i] * factor op sources[1][i] * factor) op ...) for every t. 16- and 8-bit floats are
// computed in float32 and rounded once, at the end; products with the factor are rounded to the dtype, as if the
// sources had been scaled before. With a factor of 1 they are taken as they are, and a single source is copied.
// INVALID_ARGUMENT as in Reduce, for another factor than 1 with another operation than kSum or with integers and bool,
// and for none or more than kReduceArraysMax targets or sources.
absl::Status ReduceMany(DType dtype, ReduceOp op, absl::Span<void* const> targets,
                        absl::Span<const void* const> sources, size_t count, double factor, Stream& stream);

namespace internal {

absl::Status Reduce(DType dtype, ReduceOp op, void* target, const void* left, const void* right, size_t count,
                    Executor& executor);
absl::Status ReduceMany(DType dtype, ReduceOp op, absl::Span<void* const> targets,
                        absl::Span<const void* const> sources, size_t count, double factor, Executor& executor);

}  // namespace internal
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_REDUCE_H_

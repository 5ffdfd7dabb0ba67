// The reduction of a collective on a device, when every rank's operand is there: what its op and factor mean for kernels
// that fold.
//
// Averages are sums of inputs that are scaled as they are folded, or, of integers, divided afterwards; premultiplied sums
// are sums of inputs that every rank has scaled before.

#ifndef COMM_DEVICE_FOLD_H_
#define COMM_DEVICE_FOLD_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device.h"
#include "comm/communicator.h"
#include "kernels/fold_kernels.h"

namespace lockstep {

// Whether a rank's own factor has to be applied to its input before anybody folds it.
bool ScalesInput(const CollectiveRequest& request);

// Issues target[i] = operands[0][i] op operands[1][i] op ..., in the stream's order; all are borrowed until that is done. The
// target may be one of the operands: they are of `count` elements, one of each rank, in rank order. Those of more than
// kFoldSourcesMax ranks are written to as well; else they stay as they are.
//
// Narrow floats are accumulated in float32 and rounded once where there are up to kFoldSourcesMax ranks; beyond, once for
// every kFoldSourcesMax - 1 that come on top, and each of an average's operands among those when it is scaled.
absl::Status FoldOnDevice(const CollectiveRequest& request, const kernels::FoldKernels& kernels, void* target,
                          absl::Span<const void* const> operands, size_t count, Stream& stream);

}  // namespace lockstep

#endif  // COMM_DEVICE_FOLD_H_

// Coalesced broadcast of many tensors, for the initial parameters and for buffers.

#ifndef REDUCER_BUFFERS_BROADCAST_H_
#define REDUCER_BUFFERS_BROADCAST_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "comm/communicator.h"

namespace lockstep {

// The root's tensors overwrite the other ranks'. Small tensors of the host travel together in messages of up to 250 MiB,
// larger ones and those on the communicator's device in place; two messages are under way at a time. No stream may still
// have something to do with them. Blocks.
//
// Tensors are dense memory (any order of dimensions, no gaps) of the host or of the communicator's device;
// INVALID_ARGUMENT names one that is not, on its own rank, and the others get a FAILED_PRECONDITION that quotes it. So do
// all ranks when roots, or number, dtypes, shapes or strides of tensors differ: that is compared first, by one small
// collective, and nothing is written then.
absl::Status BroadcastCoalesced(Communicator& communicator, absl::Span<const TensorView> tensors, Rank root);

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BROADCAST_H_

// Coalesced broadcast of many tensors, for the initial parameters and for buffers.

#ifndef REDUCER_BUFFERS_BROADCAST_H_
#define REDUCER_BUFFERS_BROADCAST_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "comm/communicator.h"

namespace lockstep {

// Overwrites the other ranks' tensors by the root's. Blocks. REQUIRES that no stream still uses them. Small tensors of
// the host travel together in messages of up to 250 MiB; larger ones, and those on the communicator's device, travel in
// place. Two messages are under way at a time.
//
// Tensors are dense memory (any order of dimensions, no gaps) of the host or of the communicator's device; A rank with
// another tensor returns INVALID_ARGUMENT, which names it; the others return a FAILED_PRECONDITION that quotes it. If
// roots, or number, dtypes, shapes or strides of tensors differ, all ranks return FAILED_PRECONDITION. One small
// collective compares them first; nothing is written then.
absl::Status BroadcastCoalesced(Communicator& communicator, absl::Span<const TensorView> tensors, Rank root);

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BROADCAST_H_

// Broadcasts a model's buffers (running statistics and other state beside its parameters) from one rank to all, as
// before each forward pass.
//
// Buffers arrive in fresh memory, because a later backward pass may still read those of the forward pass before. In
// place is possible, too. All buffers travel as one message, which is not copied again.
//
// Create compares the buffers of the ranks, once. A broadcast only moves bytes.

#ifndef REDUCER_BUFFERS_BUFFERS_H_
#define REDUCER_BUFFERS_BUFFERS_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/device/tensor_view.h"
#include "base/rank.h"
#include "comm/communicator.h"

namespace lockstep {

// Buffers as they came from the root. Owns their memory: one block in which each begins at a multiple of 256 bytes.
// Depends only on its device.
class FreshBuffers {
 public:
  // In the buffers' order, with their dtypes, shapes and strides.
  absl::Span<const TensorView> views() const { return views_; }

 private:
  friend class BufferSet;

  DeviceMemory memory_;
  std::vector<TensorView> views_;
};

// Used by one thread at a time. The communicator must outlive it, and its collectives must not be called out of order.
class BufferSet {
 public:
  // Collective. Compares dtypes, shapes and strides of the buffers across ranks, and `settings` as AgreeOnParameters
  // does. Buffers are dense memory (any order of dimensions, no gaps), all on the host or all on the communicator's
  // device. `local` is another reason why this rank cannot take part, or OK. A rank with a bad buffer returns
  // INVALID_ARGUMENT, which names it. All others return the same FAILED_PRECONDITION, about the lowest such rank or the
  // first that differs from rank 0.
  static absl::StatusOr<std::unique_ptr<BufferSet>> Create(Communicator* communicator, const absl::Status& local,
                                                           absl::Span<const TensorView> buffers,
                                                           const std::string& settings = "");

  // Collective, with the same root on all ranks. Blocks. `buffers` need not lie where those of Create did; only the
  // root's are read. REQUIRES that no stream still uses them. timeout 0: the communicator's.
  //
  // INVALID_ARGUMENT for a root that is no rank, before anything is sent; and for buffers that differ from those of
  // Create. A rank with such buffers, or with a reason of its own (`local`), takes part all the same. It alone returns
  // its error; if it is the root, the others return FAILED_PRECONDITION. The communicator stays usable.
  absl::StatusOr<FreshBuffers> Broadcast(const absl::Status& local, absl::Span<const TensorView> buffers, Rank root,
                                         std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

  // The same, overwriting the other ranks' buffers. On an error this rank's are as they were.
  absl::Status BroadcastInPlace(const absl::Status& local, absl::Span<const TensorView> buffers, Rank root,
                                std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

 private:
  BufferSet(Communicator* communicator, absl::Span<const TensorView> buffers);
  // The device's streams and memory, where buffers are on one.
  absl::Status Open();
  absl::Status CheckBuffers(absl::Span<const TensorView> buffers) const;
  // With undefined contents.
  absl::StatusOr<FreshBuffers> Allocate() const;
  // The root's block.
  absl::Status Fill(char* block, absl::Span<const TensorView> buffers) const;
  absl::Status FillWithNothing(char* block) const;
  // Between the buffers' device and memory there or on the host. Done once AwaitCopies has returned.
  absl::Status Copy(void* target, const void* source, size_t bytes) const;
  absl::Status AwaitCopies() const;

  Communicator* const communicator_;
  const std::vector<TensorView> like_;  // only dtypes and geometry are looked at
  std::vector<size_t> offsets_;         // of each in the block, in bytes
  size_t mark_offset_ = 0;              // behind them one byte: 1 when the root had no buffers to give
  Device* device_;
  std::unique_ptr<Stream> copies_;  // null on the host
};

}  // namespace lockstep

#endif  // REDUCER_BUFFERS_BUFFERS_H_

// Packs pieces into argument blocks of transfer kernels and launches them. What flatten.cc needs.
// Private to kernels/cuda.

#ifndef KERNELS_CUDA_TRANSFER_H_
#define KERNELS_CUDA_TRANSFER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/types/dtype.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep {
namespace kernels {
namespace cuda {

// How kernels see a dtype: a float of the same bits, or two of them. Integers and bool are only ever copied.
struct RealForm {
  DType dtype;
  uint32_t parts;
};
RealForm RealFormOf(DType dtype);

// One row of transfers: of real forms, all between the same flat array and pieces of one dtype.
struct TransferSetup {
  DType to;
  DType from;
  TransferHeader header;  // but for what counts pieces, blocks and entries
  size_t pieces;
  size_t entries;
};

// Pieces first, then entries; Flush at the end. Launches whenever a block of arguments is full. Empty pieces are left
// out.
template <size_t kBytes>
class TransferBatch {
 public:
  // `kernel` takes TransferArguments<kBytes>.
  TransferBatch(const TransferSetup& setup, KernelFunction kernel, Executor& executor);

  absl::Status Add(void* data, uint64_t offset, uint64_t count, uint32_t entry);
  // `index` counts from the setup's entry_base.
  absl::Status AddEntry(uint32_t index, float value);
  absl::Status Flush();

 private:
  const KernelFunction kernel_;
  Executor& executor_;
  TransferArguments<kBytes> arguments_;
};

// Of strided pieces, without entries.
class StridedBatch {
 public:
  StridedBatch(const TransferSetup& setup, Executor& executor);

  // At most kDimensionsMax dimensions, in row-major order.
  static constexpr size_t kDimensionsMax = 33;
  absl::Status Add(const Piece& piece, absl::Span<const Dimension> dimensions);
  absl::Status Flush();

 private:
  const KernelFunction kernel_;
  Executor& executor_;
  uint32_t dimensions_ = 0;
  StridedArguments arguments_;
};

// Calls fill(batch) with a batch whose arguments are no larger than they must be, and flushes it.
template <typename Fill>
absl::Status RunTransfer(const TransferSetup& setup, Executor& executor, const Fill& fill) {
  const int to = static_cast<int>(setup.to);
  const int from = static_cast<int>(setup.from);
  const auto run = [&](auto& batch) {
    const absl::Status status = fill(batch);
    return status.ok() ? batch.Flush() : status;
  };
  const size_t slots = setup.pieces + (setup.entries + kEntriesPerSlot - 1) / kEntriesPerSlot;
  if (slots > TransferArguments<kSmallArgumentBytes>::kSlots && executor.takes_large_arguments()) {
    TransferBatch<kLargeArgumentBytes> batch(setup, executor.kernels().transfer_large[to][from], executor);
    return run(batch);
  }
  TransferBatch<kSmallArgumentBytes> batch(setup, executor.kernels().transfer_small[to][from], executor);
  return run(batch);
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_TRANSFER_H_

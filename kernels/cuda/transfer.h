// Packs pieces into argument blocks of transfer kernels and launches them. Private to flatten.cc.

#ifndef KERNELS_CUDA_TRANSFER_H_
#define KERNELS_CUDA_TRANSFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/kernel_table.h"

namespace lockstep::kernels::cuda {

// How kernels see a dtype: a float of the same bits, or two of them. Integers and bool are only ever copied.
struct RealForm {
  DType dtype;
  uint32_t parts;
};
constexpr DType FloatOfSize(size_t bytes) {
  return bytes == 1 ? DType::kF8E5M2 : bytes == 2 ? DType::kF16 : bytes == 4 ? DType::kF32 : DType::kF64;
}

inline RealForm RealFormOf(DType dtype) {
  switch (dtype) {
#define LOCKSTEP_DTYPE_BOOL(number, id, name, Type) \
  case DType::k##id:                                \
    return {FloatOfSize(sizeof(Type)), 1};
#define LOCKSTEP_DTYPE_INTEGER(...) LOCKSTEP_DTYPE_BOOL(__VA_ARGS__)
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) \
  case DType::k##id:                                         \
    return {DType::k##part, 2};
#define LOCKSTEP_DTYPE(number, id, name, Kind) \
  case DType::k##id:                           \
    break;
#include "base/types/dtypes.inc"
  }
  return {dtype, 1};
}

// One row of transfers: of real forms, all between the same flat array and pieces of one dtype.
struct TransferSetup {
  DType to;
  DType from;
  TransferHeader header;  // but for what counts pieces, blocks and entries
  size_t pieces;
  size_t entries;
};

inline TransferHeader Begin(const TransferSetup& setup) {
  TransferHeader header = setup.header;
  header.pieces = 0;
  header.piece_blocks = 0;
  header.entries = 0;
  // Each thread does one round of loads: on an H200 that was faster than blocks that loop, for large totals and for
  // small ones.
  header.block_elements = UnitElements(static_cast<uint32_t>(std::max(SizeOf(setup.to), SizeOf(setup.from))));
  return header;
}

// Blocks of `block_elements` that `elements` need.
inline uint32_t BlockCount(uint64_t elements, uint32_t block_elements) {
  return static_cast<uint32_t>((elements + block_elements - 1) / block_elements);
}

// Pieces first, then entries; Flush at the end. Launches whenever a block of arguments is full. Empty pieces are left
// out.
template <size_t kBytes>
class TransferBatch {
 public:
  // `kernel` takes TransferArguments<kBytes>.
  TransferBatch(const TransferSetup& setup, KernelFunction kernel, Executor& executor)
      : kernel_(kernel), executor_(executor) {
    arguments_.header = Begin(setup);
  }

  absl::Status Add(void* data, uint64_t offset, uint64_t count, uint32_t entry) {
    TransferHeader& header = arguments_.header;
    if (count == 0) return absl::OkStatus();
    if (header.pieces == TransferArguments<kBytes>::kSlots) LOCKSTEP_RETURN_IF_ERROR(Flush());
    arguments_.slots[header.pieces++].piece = {data, offset, count, header.piece_blocks, entry};
    header.piece_blocks += BlockCount(count, header.block_elements);
    return absl::OkStatus();
  }

  // `index` counts from the setup's entry_base.
  absl::Status AddEntry(uint32_t index, float value) {
    TransferHeader& header = arguments_.header;
    if (header.pieces + header.entries / kEntriesPerSlot == TransferArguments<kBytes>::kSlots) {
      LOCKSTEP_RETURN_IF_ERROR(Flush());
    }
    arguments_.slots[header.pieces + header.entries / kEntriesPerSlot].entries[header.entries % kEntriesPerSlot] = {
        index, value};
    ++header.entries;
    return absl::OkStatus();
  }

  absl::Status Flush() {
    TransferHeader& header = arguments_.header;
    const uint32_t blocks = header.piece_blocks + BlockCount(header.entries, kThreads);
    if (blocks == 0) return absl::OkStatus();
    const absl::Status status = executor_.Launch(kernel_, blocks, &arguments_);
    header.pieces = 0;
    header.piece_blocks = 0;
    header.entries = 0;
    return status;
  }

 private:
  const KernelFunction kernel_;
  Executor& executor_;
  TransferArguments<kBytes> arguments_;
};

// Of strided pieces, without entries.
class StridedBatch {
 public:
  static constexpr size_t kDimensionsMax = 33;
  static_assert(kDimensionsMax <= StridedArguments::kDimensions, "a piece must fit");

  StridedBatch(const TransferSetup& setup, Executor& executor)
      : kernel_(executor.kernels().transfer_strided[static_cast<int>(setup.to)][static_cast<int>(setup.from)]),
        executor_(executor) {
    arguments_.header = Begin(setup);
  }

  // At most kDimensionsMax dimensions, in row-major order.
  absl::Status Add(const Piece& piece, absl::Span<const Dimension> dimensions) {
    TransferHeader& header = arguments_.header;
    LOCKSTEP_CHECK(dimensions.size() <= kDimensionsMax) << dimensions.size() << " dimensions";
    if (header.pieces == StridedArguments::kPieces || dimensions_ + dimensions.size() > StridedArguments::kDimensions) {
      LOCKSTEP_RETURN_IF_ERROR(Flush());
    }
    StridedPiece& strided = arguments_.pieces[header.pieces++];
    strided.piece = piece;
    strided.piece.first_block = header.piece_blocks;
    strided.first_dimension = dimensions_;
    strided.dimensions = static_cast<uint32_t>(dimensions.size());
    std::copy(dimensions.begin(), dimensions.end(), arguments_.dimensions + dimensions_);
    dimensions_ += strided.dimensions;
    header.piece_blocks += BlockCount(piece.count, header.block_elements);
    return absl::OkStatus();
  }

  absl::Status Flush() {
    TransferHeader& header = arguments_.header;
    if (header.pieces == 0) return absl::OkStatus();
    const absl::Status status = executor_.Launch(kernel_, header.piece_blocks, &arguments_);
    header.pieces = 0;
    header.piece_blocks = 0;
    dimensions_ = 0;
    return status;
  }

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

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_TRANSFER_H_

#include "kernels/cuda/transfer.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

TransferHeader Begin(const TransferSetup& setup) {
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
uint32_t BlockCount(uint64_t elements, uint32_t block_elements) {
  return static_cast<uint32_t>((elements + block_elements - 1) / block_elements);
}

constexpr DType FloatOfSize(size_t bytes) {
  return bytes == 1 ? DType::kF8E5M2 : bytes == 2 ? DType::kF16 : bytes == 4 ? DType::kF32 : DType::kF64;
}

}  // namespace

RealForm RealFormOf(DType dtype) {
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

template <size_t kBytes>
TransferBatch<kBytes>::TransferBatch(const TransferSetup& setup, KernelFunction kernel, Executor& executor)
    : kernel_(kernel), executor_(executor) {
  arguments_.header = Begin(setup);
}

template <size_t kBytes>
absl::Status TransferBatch<kBytes>::Add(void* data, uint64_t offset, uint64_t count, uint32_t entry) {
  TransferHeader& header = arguments_.header;
  if (count == 0) return absl::OkStatus();
  if (header.pieces == TransferArguments<kBytes>::kSlots) LOCKSTEP_RETURN_IF_ERROR(Flush());
  arguments_.slots[header.pieces++].piece = {data, offset, count, header.piece_blocks, entry};
  header.piece_blocks += BlockCount(count, header.block_elements);
  return absl::OkStatus();
}

template <size_t kBytes>
absl::Status TransferBatch<kBytes>::AddEntry(uint32_t index, float value) {
  TransferHeader& header = arguments_.header;
  if (header.pieces + header.entries / kEntriesPerSlot == TransferArguments<kBytes>::kSlots) {
    LOCKSTEP_RETURN_IF_ERROR(Flush());
  }
  arguments_.slots[header.pieces + header.entries / kEntriesPerSlot].entries[header.entries % kEntriesPerSlot] = {
      index, value};
  ++header.entries;
  return absl::OkStatus();
}

template <size_t kBytes>
absl::Status TransferBatch<kBytes>::Flush() {
  TransferHeader& header = arguments_.header;
  const uint32_t blocks = header.piece_blocks + BlockCount(header.entries, kThreads);
  if (blocks == 0) return absl::OkStatus();
  const absl::Status status = executor_.Launch(kernel_, blocks, &arguments_);
  header.pieces = 0;
  header.piece_blocks = 0;
  header.entries = 0;
  return status;
}

template class TransferBatch<kSmallArgumentBytes>;
template class TransferBatch<kLargeArgumentBytes>;

StridedBatch::StridedBatch(const TransferSetup& setup, Executor& executor)
    : kernel_(executor.kernels().transfer_strided[static_cast<int>(setup.to)][static_cast<int>(setup.from)]),
      executor_(executor) {
  static_assert(kDimensionsMax <= StridedArguments::kDimensions, "a piece must fit");
  arguments_.header = Begin(setup);
}

absl::Status StridedBatch::Add(const Piece& piece, absl::Span<const Dimension> dimensions) {
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

absl::Status StridedBatch::Flush() {
  TransferHeader& header = arguments_.header;
  if (header.pieces == 0) return absl::OkStatus();
  const absl::Status status = executor_.Launch(kernel_, header.piece_blocks, &arguments_);
  header.pieces = 0;
  header.piece_blocks = 0;
  dimensions_ = 0;
  return status;
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

// The arguments of kernels. They are passed by value, in the constant memory of a launch, so no table has to be copied
// to the device beforehand. Plain C++ that host compilers and nvcc lay out alike. Private to kernels/cuda.

#ifndef KERNELS_CUDA_ARGUMENTS_H_
#define KERNELS_CUDA_ARGUMENTS_H_

#include <cstddef>
#include <cstdint>

#include "base/types/dtype.h"

namespace lockstep::kernels::cuda {

// Every kernel is launched with blocks of so many threads,
inline constexpr uint32_t kThreads = 256;
// each of which has so many loads of up to so many bytes under way at once.
inline constexpr uint32_t kUnroll = 4;
inline constexpr uint32_t kVectorBytes = 16;

// What a block does in one go, in elements of at most `element_bytes`.
constexpr uint32_t UnitElements(uint32_t element_bytes) { return kThreads * kUnroll * (kVectorBytes / element_bytes); }

// A launch takes 4 KiB of arguments everywhere, and 32,764 bytes on sm_70 and later with a driver for CUDA 12.1 or
// later. What needs little takes the small form in any case: a launch copies all the bytes that its kernel declares.
inline constexpr size_t kSmallArgumentBytes = 4096;
inline constexpr size_t kLargeArgumentBytes = 32764;

// bucket_kernels.h's BucketGate. A null trailer is always open.
struct Gate {
  const void* trailer;
  DType dtype;  // a float, or complex: then real parts
  bool divide_by_live;
  uint32_t closed_by;
  uint32_t joined;
  int32_t ranks;
  int32_t count_max;
};

struct TransferHeader {
  void* flat;
  double factor;
  uint64_t entry_base;
  Gate gate;
  uint32_t pieces;
  uint32_t piece_blocks;  // blocks from here on write entries, kThreads each
  uint32_t entries;
  uint32_t block_elements;  // of a piece for each block; a multiple of UnitElements
  bool to_flat;             // else from it
};

// Elements flat[offset, offset + count) and those at `data`; null is zeros to be put into the flat array.
struct Piece {
  void* data;
  uint64_t offset;
  uint64_t count;
  uint32_t first_block;
  uint32_t entry;  // of the gate's trailer
};

// flat[entry_base + index] = value.
struct FlatEntry {
  uint32_t index;
  float value;
};

inline constexpr uint32_t kEntriesPerSlot = sizeof(Piece) / sizeof(FlatEntry);

// The pieces, in the order of their blocks, then the entries.
union TransferSlot {
  Piece piece;
  FlatEntry entries[kEntriesPerSlot];
};

template <size_t kBytes>
struct TransferArguments {
  static constexpr uint32_t kSlots = (kBytes - sizeof(TransferHeader)) / sizeof(TransferSlot);

  TransferHeader header;
  TransferSlot slots[kSlots];
};
static_assert(sizeof(TransferArguments<kSmallArgumentBytes>) <= kSmallArgumentBytes, "a kernel's arguments");
static_assert(sizeof(TransferArguments<kLargeArgumentBytes>) <= kLargeArgumentBytes, "a kernel's arguments");

struct Dimension {
  uint64_t extent;
  uint64_t stride;  // in elements
};

// A piece whose elements lie apart: in the flat array in row-major order.
struct StridedPiece {
  Piece piece;
  uint32_t first_dimension;
  uint32_t dimensions;
};

struct StridedArguments {
  static constexpr uint32_t kPieces = 48;
  static constexpr uint32_t kDimensions = 112;  // of all pieces together

  TransferHeader header;
  StridedPiece pieces[kPieces];
  Dimension dimensions[kDimensions];
};
static_assert(sizeof(StridedArguments) <= kSmallArgumentBytes, "a kernel's arguments");

inline constexpr uint32_t kHashWordsPerBlock = 16 * kThreads;

struct HashArguments {
  const void* data;
  uint64_t bytes;
  uint64_t first_word;  // the number of the array's first word
  uint64_t* sum;
};

}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_ARGUMENTS_H_

// As transfer_inl.h, for pieces whose elements do not lie side by side: element by element, in row-major order on the
// flat side. See execution_inl.h for who includes this.
//
// Launch: as a Transfer without entries. Neighbouring threads take neighbouring elements of the flat array.

#ifndef KERNELS_CUDA_STRIDED_INL_H_
#define KERNELS_CUDA_STRIDED_INL_H_

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/execution_inl.h"
#include "kernels/cuda/transfer_inl.h"

namespace lockstep::kernels::cuda {
namespace {

// `Index` holds every index of the piece: 32 bits, where they do, are several times faster to divide.
template <typename Index>
LOCKSTEP_BODY uint64_t OffsetOf(const Dimension* dimensions, uint32_t count, Index index) {
  uint64_t offset = 0;
  for (uint32_t d = count; d-- > 0;) {
    const auto extent = static_cast<Index>(dimensions[d].extent);
    const Index outer = index / extent;
    offset += static_cast<uint64_t>(index - outer * extent) * dimensions[d].stride;
    index = outer;
  }
  return offset;
}

template <typename To, typename From>
struct StridedTransfer {
  using Arguments = StridedArguments;

  static LOCKSTEP_BODY void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    const TransferHeader& header = arguments.header;
    const StridedPiece& strided =
        arguments
            .pieces[FindPiece(header.pieces, block, [&](uint32_t i) { return arguments.pieces[i].piece.first_block; })];
    const Piece& piece = strided.piece;
    const Passage passage = Pass(header.gate, piece.entry, header.factor);
    if (!passage.open) return;
    const bool copies = std::is_same<To, From>::value && passage.factor == 1;
    const auto factor = static_cast<typename Conversion<To, From>::Factor>(passage.factor);
    const Dimension* const dimensions = arguments.dimensions + strided.first_dimension;
    const uint64_t begin = static_cast<uint64_t>(block - piece.first_block) * header.block_elements;
    const uint64_t end = piece.count - begin < header.block_elements ? piece.count : begin + header.block_elements;
    for (uint64_t i = begin + thread; i < end; i += kThreads) {
      const uint64_t apart = piece.count <= 0xFFFFFFFF
                                 ? OffsetOf(dimensions, strided.dimensions, static_cast<uint32_t>(i))
                                 : OffsetOf(dimensions, strided.dimensions, i);
      const uint64_t flat = piece.offset + i;
      const auto bits = header.to_flat ? static_cast<const typename From::Bits*>(piece.data)[apart]
                                       : static_cast<const typename From::Bits*>(header.flat)[flat];
      auto* const target = header.to_flat ? static_cast<typename To::Bits*>(header.flat) + flat
                                          : static_cast<typename To::Bits*>(piece.data) + apart;
      if constexpr (std::is_same<To, From>::value) {
        *target = copies ? bits : Conversion<To, From>::Apply(bits, factor);
      } else {
        *target = Conversion<To, From>::Apply(bits, factor);
      }
    }
  }
};

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_STRIDED_INL_H_

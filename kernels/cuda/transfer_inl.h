// Between many arrays and one flat one, with conversion and a factor on the way: flatten and unflatten are the same
// walk, in opposite directions. See execution_inl.h for who includes this.
//
// Launch: kThreads threads a block; a block does `block_elements` of one piece, which it finds by its index, and the
// blocks behind those of the pieces write entries. Vectors of the wider element's kVectorBytes are used where both
// arrays reach their alignment at the same element; up to a vector before and behind them go element by element, and so
// does all of a piece whose arrays do not agree. Every element is read and written by one thread, so a piece may be
// converted in place. No fences: nothing is shared.

#ifndef KERNELS_CUDA_TRANSFER_INL_H_
#define KERNELS_CUDA_TRANSFER_INL_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types/dtype.h"
#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/execution_inl.h"

namespace lockstep::kernels::cuda {
namespace {

// The two ways to make an element of another.
template <typename To, typename From>
struct Converting {
  typename Conversion<To, From>::Factor factor;

  LOCKSTEP_BODY typename To::Bits operator()(typename From::Bits bits) {
    return Conversion<To, From>::Apply(bits, factor);
  }
};

template <typename Format>
struct Copying {
  LOCKSTEP_BODY typename Format::Bits operator()(typename Format::Bits bits) { return bits; }
};

// `count` vectors, those of a warp side by side. All loads of a round are under way before the first is used.
template <uint32_t kRound, int kLanes, typename ToBits, typename FromBits, typename Convert>
LOCKSTEP_BODY void SweepVectors(ToBits* target, const FromBits* source, uint32_t count, uint32_t thread,
                                Convert& convert) {
  auto* const to = reinterpret_cast<Vector<ToBits, kLanes>*>(target) + thread;
  const auto* const from = reinterpret_cast<const Vector<FromBits, kLanes>*>(source) + thread;
  const auto store = [&](uint32_t at, const Vector<FromBits, kLanes>& loaded) {
    Vector<ToBits, kLanes> converted;
    LOCKSTEP_UNROLL
    for (int i = 0; i < kLanes; ++i) converted.lane[i] = convert(loaded.lane[i]);
    Store(to + at, converted);
  };
  uint32_t done = 0;
  for (; count - done >= kRound * kThreads; done += kRound * kThreads) {
    Vector<FromBits, kLanes> loaded[kRound];
    LOCKSTEP_UNROLL
    for (uint32_t r = 0; r < kRound; ++r) loaded[r] = Load(from + done + r * kThreads);
    LOCKSTEP_UNROLL
    for (uint32_t r = 0; r < kRound; ++r) store(done + r * kThreads, loaded[r]);
  }
  if (done == count) return;
  Vector<FromBits, kLanes> loaded[kRound] = {};
  LOCKSTEP_UNROLL
  for (uint32_t r = 0; r < kRound; ++r) {
    if (done + r * kThreads + thread < count) loaded[r] = Load(from + done + r * kThreads);
  }
  LOCKSTEP_UNROLL
  for (uint32_t r = 0; r < kRound; ++r) {
    if (done + r * kThreads + thread < count) store(done + r * kThreads, loaded[r]);
  }
}

template <typename ToBits, typename FromBits, typename Convert>
LOCKSTEP_BODY void ConvertRange(ToBits* target, const FromBits* source, uint32_t count, uint32_t thread,
                                Convert& convert) {
  constexpr int kLanes = kVectorBytes / (sizeof(ToBits) > sizeof(FromBits) ? sizeof(ToBits) : sizeof(FromBits));
  // Many lanes are many registers.
  constexpr uint32_t kRound = kLanes > 8 ? 1 : kLanes > 4 ? 2 : kUnroll;
  const uint32_t head = ElementsToAlignment(target, kLanes * sizeof(ToBits));
  if (head != ElementsToAlignment(source, kLanes * sizeof(FromBits))) {
    return SweepVectors<2 * kUnroll, 1>(target, source, count, thread, convert);
  }
  const uint32_t before = head < count ? head : count;
  const uint32_t vectors = (count - before) / kLanes;
  const uint32_t behind = before + vectors * kLanes;
  SweepVectors<kRound, kLanes>(target + before, source + before, vectors, thread, convert);
  // Fewer than kLanes each.
  SweepVectors<1, 1>(target, source, before, thread, convert);
  SweepVectors<1, 1>(target + behind, source + behind, count - behind, thread, convert);
}

// The real part of an entry of a gate's trailer.
template <typename Format>
LOCKSTEP_BODY double DecodeAt(const void* trailer, uint64_t index) {
  return static_cast<double>(Format::Decode(static_cast<const typename Format::Bits*>(trailer)[index]));
}

LOCKSTEP_BODY double TrailerValue(const Gate& gate, uint32_t entry) {
  switch (gate.dtype) {
#define LOCKSTEP_DTYPE_NARROW(number, id, ...) \
  case DType::k##id:                           \
    return DecodeAt<id>(gate.trailer, entry);
#define LOCKSTEP_DTYPE_FLOAT(...) LOCKSTEP_DTYPE_NARROW(__VA_ARGS__)
#define LOCKSTEP_DTYPE_COMPLEX(number, id, name, Part, part) \
  case DType::k##id:                                         \
    return DecodeAt<part>(gate.trailer, uint64_t{2} * entry);
#define LOCKSTEP_DTYPE(number, id, name, Kind) \
  case DType::k##id:                           \
    break;
#include "base/types/dtypes.inc"
  }
  return 0;  // unreachable: CheckGate() has seen it
}

// By what the piece is multiplied, or that it stays as it is.
struct Passage {
  bool open;
  double factor;
};

LOCKSTEP_BODY Passage Pass(const Gate& gate, uint32_t entry, double factor) {
  if (gate.trailer == nullptr) return {true, factor};
  const double closed = TrailerValue(gate, gate.closed_by);
  const double own = TrailerValue(gate, entry);
  const bool open = closed == 0 && own != 0;
  if (!gate.divide_by_live) return {open, factor};
  const double joined = TrailerValue(gate, gate.joined);
  if (joined == 0) return {open, factor};
  // As the host counts: a whole number of ranks, at least one, also of what is no number.
  const double counted = joined > 1 ? joined : 1;
  const auto rounded = static_cast<int32_t>(lround(counted < gate.count_max ? counted : gate.count_max));
  const int32_t live = gate.ranks - (rounded > 1 ? rounded : 1);
  return {open, factor * gate.ranks / (live > 1 ? live : 1)};
}

// The last whose first_block is not behind `block`.
template <typename FirstBlock>
LOCKSTEP_BODY uint32_t FindPiece(uint32_t pieces, uint32_t block, const FirstBlock& first_block) {
  uint32_t begin = 0;
  uint32_t end = pieces;
  while (end - begin > 1) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (first_block(middle) <= block) {
      begin = middle;
    } else {
      end = middle;
    }
  }
  return begin;
}

template <typename To, typename From, size_t kBytes>
struct Transfer {
  using Arguments = TransferArguments<kBytes>;

  static LOCKSTEP_BODY void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    const TransferHeader& header = arguments.header;
    if (block >= header.piece_blocks) return WriteEntry(arguments, (block - header.piece_blocks) * kThreads + thread);
    const uint32_t index =
        FindPiece(header.pieces, block, [&](uint32_t i) { return arguments.slots[i].piece.first_block; });
    const Piece& piece = arguments.slots[index].piece;
    const uint64_t begin = static_cast<uint64_t>(block - piece.first_block) * header.block_elements;
    const uint64_t rest = piece.count - begin;
    const uint32_t count = rest < header.block_elements ? static_cast<uint32_t>(rest) : header.block_elements;
    RunPiece(header, piece, begin, count, thread);
  }

 private:
  using ToBits = typename To::Bits;
  using FromBits = typename From::Bits;
  using Factor = typename Conversion<To, From>::Factor;

  static LOCKSTEP_BODY void RunPiece(const TransferHeader& header, const Piece& piece, uint64_t begin, uint32_t count,
                                     uint32_t thread) {
    const Passage passage = Pass(header.gate, piece.entry, header.factor);
    if (!passage.open) return;
    void* const to_array = header.to_flat ? header.flat : piece.data;
    const void* const from_array = header.to_flat ? piece.data : header.flat;
    ToBits* const target = static_cast<ToBits*>(to_array) + (header.to_flat ? piece.offset : 0) + begin;
    if (from_array == nullptr) return Clear(target, count, thread);
    const FromBits* const source =
        static_cast<const FromBits*>(from_array) + (header.to_flat ? 0 : piece.offset) + begin;
    const auto factor = static_cast<Factor>(passage.factor);
    if constexpr (std::is_same<To, From>::value) {
      if (passage.factor == 1) {
        Copying<To> convert;
        return ConvertRange(target, source, count, thread, convert);
      }
    }
    Converting<To, From> convert = {factor};
    ConvertRange(target, source, count, thread, convert);
  }

  static LOCKSTEP_BODY void Clear(ToBits* target, uint32_t count, uint32_t thread) {
    for (uint32_t i = thread; i < count; i += kThreads) target[i] = 0;
  }

  static LOCKSTEP_BODY void WriteEntry(const Arguments& arguments, uint32_t index) {
    const TransferHeader& header = arguments.header;
    if (index >= header.entries) return;
    const FlatEntry& entry = arguments.slots[header.pieces + index / kEntriesPerSlot].entries[index % kEntriesPerSlot];
    static_cast<ToBits*>(header.flat)[header.entry_base + entry.index] =
        Conversion<To, F32>::Apply(F32::Encode(entry.value), 1);
  }
};

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_TRANSFER_INL_H_

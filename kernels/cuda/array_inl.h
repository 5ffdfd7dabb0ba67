// What is done to one array alone: counting what is not finite, and filling. See execution_inl.h for who includes this.
//
// Launch: kThreads threads a block, which does `block_elements`; vectors of kVectorBytes from the first aligned element
// on, and what is before and behind them element by element.

#ifndef KERNELS_CUDA_ARRAY_INL_H_
#define KERNELS_CUDA_ARRAY_INL_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/elements_inl.h"
#include "kernels/cuda/execution_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

// Calls work(address of a vector, its lanes as a type) for what is the thread's of the block's part of the array.
template <typename Bits, typename Work>
LOCKSTEP_BODY void ForBlock(Bits* array, uint64_t total, uint32_t block_elements, uint32_t block, uint32_t thread,
                            Work& work) {
  constexpr int kLanes = kVectorBytes / sizeof(std::remove_const_t<Bits>);
  const uint64_t begin = static_cast<uint64_t>(block) * block_elements;
  const uint32_t count = total - begin < block_elements ? static_cast<uint32_t>(total - begin) : block_elements;
  array += begin;
  const uint32_t head = ElementsToAlignment(array, kVectorBytes);
  const uint32_t before = head < count ? head : count;
  const uint32_t vectors = (count - before) / kLanes;
  const uint32_t behind = before + vectors * kLanes;
  LOCKSTEP_UNROLL_BY_4
  for (uint32_t v = thread; v < vectors; v += kThreads) work.template Run<kLanes>(array + before + v * kLanes);
  if (thread < before) work.template Run<1>(array + thread);
  if (thread < count - behind) work.template Run<1>(array + behind + thread);
}

template <typename Format>
struct CountNonFinite {
  using Arguments = CheckArguments;

  static LOCKSTEP_BODY void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    Counting counting;
    ForBlock(static_cast<const Bits*>(arguments.data), arguments.count, arguments.block_elements, block, thread,
             counting);
    AddToCounter(arguments.non_finite, counting.found);
  }

 private:
  using Bits = typename Format::Bits;

  struct Counting {
    template <int kLanes>
    LOCKSTEP_BODY void Run(const Bits* elements) {
      const auto loaded = Load(reinterpret_cast<const Vector<Bits, kLanes>*>(elements));
      LOCKSTEP_UNROLL
      for (int i = 0; i < kLanes; ++i) found += IsFinite<Format>(loaded.lane[i]) ? 0 : 1;
    }

    uint32_t found = 0;
  };
};

// 16 bytes, to be moved as such.
struct WideBits {
  uint64_t half[2];
};

template <typename Bits>
struct Fill {
  using Arguments = FillArguments;

  static LOCKSTEP_BODY void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    Filling filling;
    memcpy(&filling.pattern, arguments.pattern, sizeof(filling.pattern));
    ForBlock(static_cast<Bits*>(arguments.target), arguments.count, arguments.block_elements, block, thread, filling);
  }

 private:
  struct Filling {
    template <int kLanes>
    LOCKSTEP_BODY void Run(Bits* elements) {
      Vector<Bits, kLanes> values;
      LOCKSTEP_UNROLL
      for (int i = 0; i < kLanes; ++i) values.lane[i] = pattern.lane[i];
      Store(reinterpret_cast<Vector<Bits, kLanes>*>(elements), values);
    }

    Vector<Bits, kVectorBytes / sizeof(Bits)> pattern;
  };
};

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_ARRAY_INL_H_

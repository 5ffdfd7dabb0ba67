// targets[t][i] = ((sources[0][i] op sources[1][i]) op ...) for up to kReduceArrays of each. See execution_inl.h for
// who includes this.
//
// Launch: kThreads threads a block, which does `block_elements`. Vectors of kVectorBytes where all arrays reach their
// alignment at the same element; up to a vector before and behind them, and arrays that do not agree, element by
// element. Every element is read from all sources before it is written, by one thread, so targets may be sources. No
// fences: nothing is shared.

#ifndef KERNELS_CUDA_REDUCE_INL_H_
#define KERNELS_CUDA_REDUCE_INL_H_

#include <cstdint>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/combine_inl.h"
#include "kernels/cuda/execution_inl.h"

namespace lockstep {
namespace kernels {
namespace cuda {
namespace {

// How an element of a source becomes a value: as it is, or scaled.
template <typename Combination>
struct PlainReader {
  explicit LOCKSTEP_BODY PlainReader(double) {}
  LOCKSTEP_BODY typename Combination::Value operator()(typename Combination::Bits bits) const {
    return Combination::Read(bits);
  }
};

template <typename Combination>
struct ScalingReader {
  using Value = typename Combination::Value;
  explicit LOCKSTEP_BODY ScalingReader(double factor_in_double) : factor(static_cast<Value>(factor_in_double)) {}
  LOCKSTEP_BODY Value operator()(typename Combination::Bits bits) const { return Combination::Read(bits, factor); }

  Value factor;
};

template <typename Combination, template <typename> class Reader>
struct Reduce {
  using Arguments = ReduceArguments;

  static LOCKSTEP_BODY void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    constexpr int kLanes = kVectorBytes / sizeof(Bits);
    const uint64_t begin = static_cast<uint64_t>(block) * arguments.block_elements;
    const uint64_t rest = arguments.count - begin;
    const uint32_t count = rest < arguments.block_elements ? static_cast<uint32_t>(rest) : arguments.block_elements;
    const Reader<Combination> read(arguments.factor);
    if (!arguments.vectors) return Sweep<kUnroll, 1>(arguments, begin, count, thread, read);
    const uint32_t head = ElementsToAlignment(static_cast<const Bits*>(arguments.targets[0]) + begin, kVectorBytes);
    const uint32_t before = head < count ? head : count;
    const uint32_t vectors = (count - before) / kLanes;
    const uint32_t behind = before + vectors * kLanes;
    // Many lanes are many registers.
    constexpr uint32_t kRound = kLanes > 8 ? 1 : 2;
    Sweep<kRound, kLanes>(arguments, begin + before, vectors, thread, read);
    Sweep<1, 1>(arguments, begin, before, thread, read);
    Sweep<1, 1>(arguments, begin + behind, count - behind, thread, read);
  }

 private:
  using Bits = typename Combination::Bits;
  using Value = typename Combination::Value;

  // `count` vectors from element `begin` on; kRound at a time for each thread.
  template <uint32_t kRound, int kLanes>
  static LOCKSTEP_BODY void Sweep(const Arguments& arguments, uint64_t begin, uint32_t count, uint32_t thread,
                                  const Reader<Combination>& read) {
    using Lanes = Vector<Bits, kLanes>;
    for (uint32_t first = thread; first < count; first += kRound * kThreads) {
      Value values[kRound][kLanes] = {};
      for (uint32_t s = 0; s < arguments.source_count; ++s) {
        const auto* const source =
            reinterpret_cast<const Lanes*>(static_cast<const Bits*>(arguments.sources[s]) + begin) + first;
        Lanes loaded[kRound] = {};
        LOCKSTEP_UNROLL
        for (uint32_t r = 0; r < kRound; ++r) {
          if (first + r * kThreads < count) loaded[r] = Load(source + r * kThreads);
        }
        LOCKSTEP_UNROLL
        for (uint32_t r = 0; r < kRound; ++r) {
          LOCKSTEP_UNROLL
          for (int i = 0; i < kLanes; ++i) {
            const Value value = read(loaded[r].lane[i]);
            values[r][i] = s == 0 ? value : Combination::Apply(values[r][i], value);
          }
        }
      }
      Lanes results[kRound];
      LOCKSTEP_UNROLL
      for (uint32_t r = 0; r < kRound; ++r) {
        LOCKSTEP_UNROLL
        for (int i = 0; i < kLanes; ++i) results[r].lane[i] = Combination::Write(values[r][i]);
      }
      for (uint32_t t = 0; t < arguments.target_count; ++t) {
        auto* const target = reinterpret_cast<Lanes*>(static_cast<Bits*>(arguments.targets[t]) + begin) + first;
        LOCKSTEP_UNROLL
        for (uint32_t r = 0; r < kRound; ++r) {
          if (first + r * kThreads < count) Store(target + r * kThreads, results[r]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_REDUCE_INL_H_

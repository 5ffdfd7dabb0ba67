// Adds the hash of an array to a sum: kernels/hash_word.h. See execution_inl.h for who includes this.
//
// Launch: kThreads threads per block. A block takes kHashWordsPerBlock words of 8 bytes, the threads of a warp neighbouring ones. If the
// array is not aligned to 8 bytes, a word is put together from bytes. Bytes missing from the last word are zero.

#ifndef KERNELS_CUDA_HASH_INL_H_
#define KERNELS_CUDA_HASH_INL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/arguments.h"
#include "kernels/cuda/execution_inl.h"
#include "kernels/hash_word.h"

namespace lockstep::kernels::cuda {
namespace {

struct Hash {
  using Arguments = HashArguments;

  LOCKSTEP_BODY static void Run(const Arguments& arguments, uint32_t block, uint32_t thread) {
    const auto* const data = static_cast<const uint8_t*>(arguments.data);
    const bool aligned = reinterpret_cast<uintptr_t>(data) % sizeof(uint64_t) == 0;
    const uint64_t first = static_cast<uint64_t>(block) * kHashWordsPerBlock + thread;
    uint64_t sum = 0;
    for (uint32_t done = 0; done < kHashWordsPerBlock; done += kThreads) {
      const uint64_t index = first + done;
      const uint64_t begin = index * sizeof(uint64_t);
      if (begin >= arguments.bytes) break;
      uint64_t word = 0;
      if (aligned && arguments.bytes - begin >= sizeof(uint64_t)) {
        word = Load(reinterpret_cast<const Vector<uint64_t, 1>*>(data + begin)).lane[0];
      } else {
        for (uint32_t b = 0; b < sizeof(uint64_t) && begin + b < arguments.bytes; ++b) {
          word |= static_cast<uint64_t>(data[begin + b]) << (8 * b);
        }
      }
      sum += HashWord(word, arguments.first_word + index);
    }
    AddToSum(arguments.sum, sum);
  }
};

}  // namespace
}  // namespace lockstep::kernels::cuda

#endif  // KERNELS_CUDA_HASH_INL_H_

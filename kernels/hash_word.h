// The hash by which replicas on a device are compared: a sum over the words of an array, so that any number of threads may add to it in
// any order. Host compilers and nvcc compile it to the same bits.

#ifndef KERNELS_HASH_WORD_H_
#define KERNELS_HASH_WORD_H_

#include <cstdint>

namespace lockstep::kernels {

// Returns what word number `index` adds to the sum, modulo 2^64. It is a bijection of the word, so a change of one word always changes the
// sum. The finalizer is that of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
constexpr uint64_t HashWord(uint64_t word, uint64_t index) {
  uint64_t mixed = word ^ ((index + 1) * 0x9E3779B97F4A7C15u);
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
  return mixed ^ (mixed >> 31);
}

}  // namespace lockstep::kernels

#endif  // KERNELS_HASH_WORD_H_

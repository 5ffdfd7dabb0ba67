// Inputs and guarded memory for tests of kernels.

#ifndef KERNELS_ARRAYS_TESTING_H_
#define KERNELS_ARRAYS_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/types/dtype.h"

namespace lockstep::kernels {

// Codes of a dtype (of a complex one's part) that kernels get wrong: zeros, the ends of the subnormals, one and its
// neighbours, the largest finite, infinities, NaNs of both signs with several payloads; for integers the ends of the
// range.
std::vector<uint64_t> SpecialCodes(DType dtype);

// `count` elements: a mixture of special codes, random bits, and (for floats) numbers within a few binades of each
// other, whose sums round.
std::vector<uint8_t> TestElements(DType dtype, size_t count, std::mt19937_64& random);

// Writes a code of `bytes` bytes as element `index` of an array of them.
void PutCode(std::vector<uint8_t>& array, size_t index, size_t bytes, uint64_t code);

// `bytes` bytes that begin `offset` bytes after a 64-byte boundary, with a known pattern on both sides.
class GuardedBytes {
 public:
  GuardedBytes(size_t bytes, size_t offset);
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  uint8_t* data() { return data_; }
  void Fill(const uint8_t* source);
  // Whether what surrounds the array still has its pattern.
  bool GuardsIntact() const;

 private:
  static constexpr size_t kGuard = 128;

  const size_t bytes_;
  std::vector<uint8_t> storage_;
  uint8_t* const data_;
};

}  // namespace lockstep::kernels

#endif  // KERNELS_ARRAYS_TESTING_H_

// How an array is cut into blocks of threads, and what a device asks of its address. Private to kernels/cuda.

#ifndef KERNELS_CUDA_BLOCKS_H_
#define KERNELS_CUDA_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {
namespace kernels {
namespace cuda {

struct Blocks {
  uint32_t elements;  // of each block but the last
  uint32_t count;
};

// Blocks for elements of at most `element_bytes`. Each thread does one round of loads: on an H200 that was faster than
// blocks that loop, for large totals and for small ones.
Blocks BlocksFor(uint64_t elements, size_t element_bytes);

// Blocks of `block_elements` that `elements` need.
uint32_t BlockCount(uint64_t elements, uint32_t block_elements);

// INVALID_ARGUMENT when `array` is not a multiple of `alignment`: a device would fault. `what` names it.
absl::Status CheckAligned(const char* what, const void* array, size_t alignment);

// INVALID_ARGUMENT when a target and a source share memory, unless they begin together and their elements have one size:
// one thread would write what another is still to read.
absl::Status CheckOverlap(const void* target, size_t target_bytes, const void* source, size_t source_bytes);

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

#endif  // KERNELS_CUDA_BLOCKS_H_

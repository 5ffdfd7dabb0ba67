// Memory that lies in several places, for the kernels that copy it: see GatherBlocks (kernels/cpu/flatten.h).

#ifndef KERNELS_CPU_BLOCKS_H_
#define KERNELS_CPU_BLOCKS_H_

#include <cstddef>

namespace lockstep::kernels {

// One block of an array of them. They follow each other in a sequence of bytes.
struct Block {
  size_t begin = 0;  // in the sequence; it ends where the next one begins
  char* data = nullptr;
};

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_BLOCKS_H_

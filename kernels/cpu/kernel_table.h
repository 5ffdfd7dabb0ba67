// All CPU kernels of one variant, as data. Private to kernels/cpu: callers use reduce.h, cast.h and
// flatten.h.

#ifndef KERNELS_CPU_KERNEL_TABLE_H_
#define KERNELS_CPU_KERNEL_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "base/types/reduction.h"
#include "kernels/cpu/blocks.h"

namespace lockstep::kernels {

using ScaleFunction = void (*)(void* target, const void* source, size_t count, double factor);
using DivideFunction = void (*)(void* data, size_t count, int64_t divisor);
// Of `count` blocks, whose end is where one more begins, to contiguous memory, and back.
using GatherFunction = void (*)(const Block* blocks, size_t count, char* flat);
using ScatterFunction = void (*)(const Block* blocks, size_t count, const char* flat);

// Indexed by the enumerators' values; null where the combination has no meaning. Nothing here is ever written, so a
// function taken from a table may be called from any thread for ever.
struct KernelTable {
  CombineFunction combine[kDTypeCount][kReduceOpCount];
  ReduceManyFunction reduce_many[kDTypeCount][kReduceOpCount];
  ScaledSumFunction scaled_sum[kDTypeCount];
  DivideFunction divide[kDTypeCount];
  ScaleFunction cast[kDTypeCount][kDTypeCount];  // [to][from]; of floats, and complex to themselves: a scaling
  GatherFunction gather;
  ScatterFunction scatter;
};

// Each has a file: table_scalar.cc, table_avx2.cc and so on. Calling into one that the processor does not support is an illegal
// instruction: TableOf() in variant.h asks first.
extern const KernelTable kScalarTable;
#if defined(__x86_64__)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
#elif defined(__aarch64__)
extern const KernelTable kNeonTable;
extern const KernelTable kNeonFp16Table;
extern const KernelTable kNeonBf16Table;
#endif

}  // namespace lockstep::kernels

#endif  // KERNELS_CPU_KERNEL_TABLE_H_

// Steps on operands of which some lie in pieces (comm/pieces.h): what both executors do where a caller's vector is not contiguous.
//
// Long plain pieces are worked on where they lie. What is to be reduced, and is short, converted or nothing, goes by way of memory that
// stays in the processor's cache. Results are those of contiguous memory: elements are computed one by one.

#ifndef COMM_ENGINE_OPERAND_MEMORY_H_
#define COMM_ENGINE_OPERAND_MEMORY_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/types/dtype.h"
#include "comm/pieces.h"
#include "comm/plan/execution_plan.h"

namespace lockstep {

// Where an operand of a step begins.
struct OperandMemory {
  char* data = nullptr;            // contiguous, unless there are pieces
  const Pieces* pieces = nullptr;  // then its bytes are theirs from `position` on
  size_t position = 0;

  OperandMemory operator+(size_t bytes) const {
    if (pieces == nullptr) return {data + bytes};
    return {nullptr, pieces, position + bytes};
  }
  // The address of the first `bytes` of it if they are contiguous and plain, else null.
  char* At(size_t bytes) const;
  // Those bytes as a list, in place of what it holds, if they are plain and no more than `max` pieces. Whether they are.
  bool ListRuns(size_t bytes, size_t max, std::vector<iovec>* runs) const;
};

// Externally synchronised. Allocates nothing once it has grown.
class OperandSteps {
 public:
  // target = source. Does nothing for memory that is its own target.
  void Copy(const OperandMemory& target, const OperandMemory& source, size_t bytes);
  // Each target = the fold of the terms, as plan.ReduceMany. A target may be exactly a term's memory.
  void Reduce(const ExecutionPlan& plan, absl::Span<const OperandMemory> targets, absl::Span<const OperandMemory> terms,
              size_t bytes);

  // target[i] = source[i] * factor, as kernels::Scale. ERRORS  INVALID_ARGUMENT, also its
  absl::Status Scale(DType dtype, const OperandMemory& target, const OperandMemory& source, size_t bytes,
                     double factor);

 private:
  std::vector<char> buffers_;  // one for each operand that is not worked on where it lies
  std::vector<void*> targets_;
  std::vector<const void*> terms_;
};

}  // namespace lockstep

#endif  // COMM_ENGINE_OPERAND_MEMORY_H_

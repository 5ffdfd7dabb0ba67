#include "kernels/cuda/blocks.h"

#include "absl/strings/str_format.h"
#include "kernels/cuda/arguments.h"

namespace lockstep {
namespace kernels {
namespace cuda {

Blocks BlocksFor(uint64_t elements, size_t element_bytes) {
  const uint32_t block_elements = UnitElements(static_cast<uint32_t>(element_bytes));
  return {block_elements, BlockCount(elements, block_elements)};
}

uint32_t BlockCount(uint64_t elements, uint32_t block_elements) {
  return static_cast<uint32_t>((elements + block_elements - 1) / block_elements);
}

absl::Status CheckAligned(const char* what, const void* array, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(array) % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s at %p is not aligned to %d bytes", what, array, alignment));
}

absl::Status CheckOverlap(const void* target, size_t target_bytes, const void* source, size_t source_bytes) {
  const auto target_begin = reinterpret_cast<uintptr_t>(target);
  const auto source_begin = reinterpret_cast<uintptr_t>(source);
  const bool apart = target_begin + target_bytes <= source_begin || source_begin + source_bytes <= target_begin;
  if (apart || (target == source && target_bytes == source_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("a target of %d bytes at %p overlaps a source of %d bytes at %p",
                                                    target_bytes, target, source_bytes, source));
}

}  // namespace cuda
}  // namespace kernels
}  // namespace lockstep

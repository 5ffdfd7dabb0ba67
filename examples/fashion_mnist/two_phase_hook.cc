#include "examples/fashion_mnist/two_phase_hook.h"

#include <cstddef>
#include <cstdint>

namespace fashion_mnist {
namespace {

// Elements begin to begin + *count of a vector whose elements have so many bytes. Borrows the count.
lockstep_tensor Slice(const lockstep_tensor& vector, size_t element_bytes, int64_t begin, const int64_t* count) {
  lockstep_tensor slice = vector;
  slice.data = static_cast<char*>(vector.data) + static_cast<size_t>(begin) * element_bytes;
  slice.shape = count;
  slice.strides = nullptr;
  return slice;
}

size_t BytesOf(int32_t dtype) { return dtype == LOCKSTEP_F16 || dtype == LOCKSTEP_BF16 ? 2 : 4; }

}  // namespace

lockstep_error* AverageInTwoPhases(void* /*context*/, lockstep_hook_bucket* bucket) {
  lockstep_tensor all;
  if (lockstep_error* error = lockstep_hook_bucket_tensor(bucket, &all)) return error;
  lockstep_communicator* const communicator = lockstep_hook_bucket_communicator(bucket);
  const int64_t ranks = lockstep_communicator_size(communicator);
  const size_t element_bytes = BytesOf(all.dtype);

  // Parts of equal size, one for each rank, both phases in place; and what then is left, fewer elements than ranks.
  const int64_t part_count = all.shape[0] / ranks;
  const int64_t whole_count = part_count * ranks;
  const int64_t rest_count = all.shape[0] - whole_count;
  if (part_count > 0) {
    const int64_t begin = part_count * lockstep_communicator_rank(communicator);
    const lockstep_tensor part = Slice(all, element_bytes, begin, &part_count);
    const lockstep_tensor whole = Slice(all, element_bytes, 0, &whole_count);
    if (lockstep_error* error = lockstep_hook_reduce_scatter(bucket, &whole, &part, LOCKSTEP_AVG, nullptr))
      return error;
    if (lockstep_error* error = lockstep_hook_all_gather(bucket, &part, &whole, nullptr)) return error;
  }
  if (rest_count == 0) return nullptr;
  const lockstep_tensor rest = Slice(all, element_bytes, whole_count, &rest_count);
  return lockstep_hook_all_reduce(bucket, &rest, &rest, LOCKSTEP_AVG, nullptr);
}

}  // namespace fashion_mnist

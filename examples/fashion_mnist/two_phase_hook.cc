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

}  // namespace

lockstep_error* AverageInTwoPhases(void* /*context*/, lockstep_hook_bucket* bucket, lockstep_communicator* communicator,
                                   const lockstep_stream* stream) {
  lockstep_tensor all;
  if (lockstep_error* error = lockstep_hook_bucket_tensor(bucket, &all)) return error;
  const int64_t ranks = lockstep_communicator_size(communicator);
  const size_t element_bytes = lockstep_dtype_size(all.dtype);

  // Parts of equal size, one for each rank, both phases in place; and what then is left, fewer elements than ranks.
  const int64_t part_count = all.shape[0] / ranks;
  const int64_t whole_count = part_count * ranks;
  const int64_t rest_count = all.shape[0] - whole_count;
  if (part_count > 0) {
    const int64_t begin = part_count * lockstep_communicator_rank(communicator);
    const lockstep_tensor part = Slice(all, element_bytes, begin, &part_count);
    const lockstep_tensor whole = Slice(all, element_bytes, 0, &whole_count);
    if (lockstep_error* error =
            lockstep_reduce_scatter(communicator, &whole, &part, LOCKSTEP_AVG, nullptr, stream, nullptr))
      return error;
    if (lockstep_error* error = lockstep_all_gather(communicator, &part, &whole, nullptr, stream, nullptr))
      return error;
  }
  if (rest_count == 0) return nullptr;
  const lockstep_tensor rest = Slice(all, element_bytes, whole_count, &rest_count);
  return lockstep_all_reduce(communicator, &rest, &rest, LOCKSTEP_AVG, nullptr, stream, nullptr);
}

}  // namespace fashion_mnist

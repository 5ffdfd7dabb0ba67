// ReplicaHash: a hash of a part of the model for each step, by which ranks find out whether their replicas are still equal.
//
// The bytes of all tensors, one tensor after the other, are cut into 61 slices, between elements, or are one slice of at most 16 KiB. Step
// n hashes slice n modulo their number, so 61 steps cover every byte, and a step costs a 61st of one pass over the model. The number is
// prime: a tensor that is left out of every other step, as when two models are trained in turns, is hashed in the others. On the host the
// hash is XXH3 (Collet). On a device a kernel adds up kernels/hash_word.h in the order of the embedder's stream. The host does not wait
// for it: a step gets the hash of the step before last, which has ended.
//
// THREADS  Externally synchronised.

#ifndef REDUCER_REPLICAS_REPLICA_HASH_H_
#define REDUCER_REPLICAS_REPLICA_HASH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/device/tensor_view.h"
#include "kernels/bucket_kernels.h"
#include "reducer/plan/parameter.h"

namespace lockstep {

// Some elements of a tensor, in the order of its memory (row-major if that has gaps).
struct TensorRange {
  size_t tensor = 0;
  size_t first = 0;
  size_t count = 0;
};

// The slices, each of which is a list of ranges; the last may be empty. Without bytes there is no slice.
std::vector<std::vector<TensorRange>> CutIntoSlices(absl::Span<const Parameter> tensors);

// A tensor's shape and strides, as a view of memory that is not the tensor's.
// ERRORS  INVALID_ARGUMENT  as of TensorView::Create
absl::StatusOr<TensorView> GeometryOf(const Parameter& tensor);

// Whether HashOf can read a tensor of the table there. One with gaps has to be aligned to its elements.
// ERRORS  INVALID_ARGUMENT  it is not; the message names the tensor
absl::Status CheckAddress(size_t index, const Parameter& tensor, const void* data);

// XXH3 of a range's bytes, after `seed`. `data` is memory of the host, where the tensor begins. REQUIRES  CheckAddress is OK
uint64_t HashOf(const Parameter& tensor, const void* data, const TensorRange& range, uint64_t seed);

class ReplicaHash {
 public:
  // kernels: for the device; null on the host. The device outlives this.
  // ERRORS  INVALID_ARGUMENT    a tensor is not on `device`, or on a device and not dense
  //         RESOURCE_EXHAUSTED  a device has no memory for the sums
  static absl::StatusOr<std::unique_ptr<ReplicaHash>> Create(absl::Span<const Parameter> tensors, Device* device,
                                                             const kernels::BucketKernels* kernels);

  static constexpr size_t kSlices = 61;  // or one
  size_t slices() const { return slices_.size(); }

  // ERRORS  INVALID_ARGUMENT  there are too few or too many addresses, or one that is not aligned, or they are on a device and there is no
  //                           stream
  absl::Status Check(absl::Span<const void* const> data, const Stream* stream) const;

  // Hashes the slice of this step. `data` has the address of each tensor, or null for a tensor that is left out of this step; empty: no
  // tensor is hashed. On a device the memory is read in the order of `stream`. REQUIRES  Check(data, stream)
  // RETURNS  the hash that the ranks are to compare in this step: of this step on the host, of step - 2 on a device. nullopt: there is
  //          none, so this rank compares nothing.
  // ERRORS   the stream's
  absl::StatusOr<absl::optional<uint32_t>> Next(uint64_t step, absl::Span<const void* const> data, Stream* stream);

 private:
  // A hash on its way from a device.
  struct OnDevice {
    absl::optional<uint64_t> step;
    DeviceMemory sum;   // of the device
    DeviceMemory told;  // of the host
    std::unique_ptr<Event> copied;
  };

  ReplicaHash(absl::Span<const Parameter> tensors, const kernels::BucketKernels* kernels);

  absl::Status Enqueue(absl::Span<const TensorRange> slice, absl::Span<const void* const> data, Stream& stream,
                       OnDevice& place);

  const std::vector<Parameter> tensors_;
  std::vector<size_t> with_gaps_;
  const std::vector<std::vector<TensorRange>> slices_;
  const kernels::BucketKernels* const kernels_;
  OnDevice on_device_[2];
  DeviceMemory zero_;  // of the host
};

}  // namespace lockstep

#endif  // REDUCER_REPLICAS_REPLICA_HASH_H_

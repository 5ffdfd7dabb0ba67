#include "reducer/replicas/replica_hash.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/flatten.h"
#include "reducer/plan/bucket_plan.h"
#include "xxhash.h"

namespace lockstep {
namespace {

constexpr size_t kOneSliceBytesMax = size_t{16} << 10;

TensorView ViewOf(const Parameter& tensor, const void* data) {
  return TensorView::Create(const_cast<void*>(data), tensor.dtype, tensor.shape, tensor.strides, tensor.device).value();
}

uint32_t Folded(uint64_t hash) { return static_cast<uint32_t>(hash ^ (hash >> 32)); }

}  // namespace

std::vector<std::vector<TensorRange>> CutIntoSlices(absl::Span<const Parameter> tensors) {
  size_t total = 0;
  for (const Parameter& tensor : tensors) total += tensor.bytes();
  if (total == 0) return {};
  const size_t count = total > kOneSliceBytesMax ? ReplicaHash::kSlices : 1;
  const size_t slice_bytes = (total + count - 1) / count;
  std::vector<std::vector<TensorRange>> slices(1);
  size_t room = slice_bytes;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const size_t elements = tensors[t].elements();
    const size_t size = SizeOf(tensors[t].dtype);
    for (size_t first = 0; first < elements;) {
      // The element that is in both slices belongs to the first.
      const size_t taken = std::min(elements - first, (room + size - 1) / size);
      slices.back().push_back({t, first, taken});
      first += taken;
      room -= std::min(room, taken * size);
      if (room > 0) continue;
      slices.emplace_back();
      room = slice_bytes;
    }
  }
  slices.resize(count);
  return slices;
}

absl::StatusOr<TensorView> GeometryOf(const Parameter& tensor) {
  alignas(BucketPlan::kAlignment) static char anywhere;
  return TensorView::Create(&anywhere, tensor.dtype, tensor.shape, tensor.strides, tensor.device);
}

absl::Status CheckAddress(size_t index, const Parameter& tensor, const void* data) {
  if (data == nullptr || GeometryOf(tensor)->dense()) return absl::OkStatus();
  const auto view =
      TensorView::Create(const_cast<void*>(data), tensor.dtype, tensor.shape, tensor.strides, tensor.device);
  return Annotate(view.status(), Describe(index, tensor));
}

uint64_t HashOf(const Parameter& tensor, const void* data, const TensorRange& range, uint64_t seed) {
  const size_t size = SizeOf(tensor.dtype);
  if (GeometryOf(tensor)->dense()) {  // it may lie at any address
    return XXH3_64bits_withSeed(static_cast<const char*>(data) + range.first * size, range.count * size, seed);
  }
  const TensorView view = ViewOf(tensor, data);
  char staging[4096];
  const size_t step = sizeof(staging) / size;
  for (size_t done = 0; done < range.count; done += step) {
    const size_t count = std::min(step, range.count - done);
    kernels::ReadElements(view, range.first + done, count, staging, tensor.dtype, 1.0);
    seed = XXH3_64bits_withSeed(staging, count * size, seed);
  }
  return seed;
}

absl::StatusOr<std::unique_ptr<ReplicaHash>> ReplicaHash::Create(absl::Span<const Parameter> tensors, Device* device,
                                                                 const kernels::BucketKernels* kernels) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    const Parameter& tensor = tensors[t];
    if (tensor.device != device->id()) {
      return absl::InvalidArgumentError(absl::StrCat("replicas: ", Describe(t, tensor), " is on ", Name(tensor.device),
                                                     ", and the gradients are on ", Name(device->id())));
    }
    const auto view = GeometryOf(tensor);
    LOCKSTEP_RETURN_IF_ERROR(Annotate(view.status(), absl::StrCat("replicas: ", Describe(t, tensor))));
    if (kernels != nullptr && !view->dense()) {
      return absl::InvalidArgumentError(
          absl::StrCat("replicas: ", Describe(t, tensor), " has gaps between its elements, on a device"));
    }
  }
  std::unique_ptr<ReplicaHash> hash(new ReplicaHash(tensors, kernels));
  if (kernels == nullptr) return hash;
  LOCKSTEP_ASSIGN_OR_RETURN(hash->zero_, DeviceMemory::AllocateOnHost(device, sizeof(uint64_t)));
  std::memset(hash->zero_.data(), 0, sizeof(uint64_t));
  for (OnDevice& place : hash->on_device_) {
    LOCKSTEP_ASSIGN_OR_RETURN(place.sum, DeviceMemory::Allocate(device, sizeof(uint64_t)));
    LOCKSTEP_ASSIGN_OR_RETURN(place.told, DeviceMemory::AllocateOnHost(device, sizeof(uint64_t)));
    LOCKSTEP_ASSIGN_OR_RETURN(place.copied, device->CreateEvent());
  }
  return hash;
}

ReplicaHash::ReplicaHash(absl::Span<const Parameter> tensors, const kernels::BucketKernels* kernels)
    : tensors_(tensors.begin(), tensors.end()), slices_(CutIntoSlices(tensors)), kernels_(kernels) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!GeometryOf(tensors[t])->dense()) with_gaps_.push_back(t);
  }
}

absl::Status ReplicaHash::Check(absl::Span<const void* const> data, const Stream* stream) const {
  if (!data.empty() && data.size() != tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas: ", data.size(), " addresses for ", tensors_.size(), " tensors"));
  }
  if (kernels_ != nullptr && !data.empty() && stream == nullptr) {
    return absl::InvalidArgumentError("replicas: they are on a device, and no stream is given");
  }
  for (const size_t t : with_gaps_) {
    if (data.empty()) break;
    LOCKSTEP_RETURN_IF_ERROR(Annotate(CheckAddress(t, tensors_[t], data[t]), "replicas"));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<uint32_t>> ReplicaHash::Next(uint64_t step, absl::Span<const void* const> data,
                                                           Stream* stream) {
  if (slices_.empty()) return absl::nullopt;
  const absl::Span<const TensorRange> slice = slices_[step % slices_.size()];
  const bool any = !data.empty() && std::any_of(slice.begin(), slice.end(), [&data](const TensorRange& range) {
    return data[range.tensor] != nullptr;
  });
  if (kernels_ != nullptr) {
    OnDevice& place = on_device_[step % 2];
    absl::optional<uint32_t> hash;
    if (place.step.has_value() && *place.step + 2 == step && place.copied->Query()) {
      uint64_t sum = 0;
      std::memcpy(&sum, place.told.data(), sizeof(sum));
      hash = Folded(sum);
    }
    place.step.reset();
    if (any) {
      LOCKSTEP_RETURN_IF_ERROR(Enqueue(slice, data, *stream, place));
      place.step = step;
    }
    return hash;
  }
  if (!any) return absl::nullopt;
  uint64_t hash = step % slices_.size();
  for (const TensorRange& range : slice) {
    // So that a tensor that is left out on one rank alone makes a difference, which the ranks then look into.
    hash = data[range.tensor] == nullptr ? hash * 31 : HashOf(tensors_[range.tensor], data[range.tensor], range, hash);
  }
  return Folded(hash);
}

absl::Status ReplicaHash::Enqueue(absl::Span<const TensorRange> slice, absl::Span<const void* const> data,
                                  Stream& stream, OnDevice& place) {
  auto* const sum = reinterpret_cast<uint64_t*>(place.sum.data());
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(sum, zero_.data(), sizeof(uint64_t)));
  uint64_t word = 0;
  for (const TensorRange& range : slice) {
    const size_t size = SizeOf(tensors_[range.tensor].dtype);
    const size_t bytes = range.count * size;
    if (data[range.tensor] != nullptr) {
      const char* const begin = static_cast<const char*>(data[range.tensor]) + range.first * size;
      LOCKSTEP_RETURN_IF_ERROR(kernels_->Hash(begin, bytes, word, sum, stream));
    }
    word += (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  }
  LOCKSTEP_RETURN_IF_ERROR(stream.Copy(place.told.data(), sum, sizeof(uint64_t)));
  return stream.Record(place.copied.get());
}

}  // namespace lockstep

#include "reducer/pipeline/bucket_memory.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/log.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/pieces.h"

namespace lockstep {
namespace {

// So that every bucket begins where its slots may.
size_t RoundedUp(size_t bytes) {
  return (bytes + BucketPlan::kAlignment - 1) / BucketPlan::kAlignment * BucketPlan::kAlignment;
}

// Of gradients that live beside their bucket.
size_t ViewBytes(const BucketPlan::Bucket& bucket) {
  return bucket.dtype == bucket.wire ? 0 : RoundedUp(bucket.trailer * SizeOf(bucket.dtype));
}

size_t Sum(const std::vector<size_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), size_t{0}); }

absl::Status Clear(const Accelerator& accelerator, char* data, size_t bytes) {
  if (accelerator.kernels == nullptr) {
    std::memset(data, 0, bytes);
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, accelerator.device->CreateStream("lockstep-clear"));
  LOCKSTEP_RETURN_IF_ERROR(accelerator.kernels->Gather({{nullptr, 0, bytes}}, {}, data, DType::kU8, 1, *stream));
  return stream->Synchronize(Deadline::Infinite());
}

}  // namespace

absl::StatusOr<std::unique_ptr<BucketMemory>> BucketMemory::Allocate(Communicator& communicator,
                                                                     const Accelerator& accelerator,
                                                                     const BucketPlan& plan, size_t bytes_max,
                                                                     const Use& use) {
  std::unique_ptr<BucketMemory> memory(new BucketMemory(use));
  if (memory->InPieces(plan)) return memory;
  const size_t bytes = use.buckets_max == 0 ? bytes_max : Sum(memory->Regions(plan));
  size_t view_bytes = 0;
  for (const BucketPlan::Bucket& bucket : plan.buckets) view_bytes += use.views ? ViewBytes(bucket) : 0;
  Device* const device = accelerator.device;
  const bool on_host = device->id().kind == DeviceKind::kHost;
  if (on_host) {
    const absl::Status fits = communicator.CheckMemory(bytes + view_bytes);
    // Of another rank's lack.
    if (absl::IsUnavailable(fits)) return absl::FailedPreconditionError(fits.message());
    LOCKSTEP_RETURN_IF_ERROR(fits);
  }
  // First, since the other ranks do.
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> flat =
      on_host ? communicator.Allocate(bytes) : communicator.AllocateOnDevice(bytes);
  if (on_host && (absl::IsResourceExhausted(flat.status()) || absl::IsUnavailable(flat.status()))) {
    LOCKSTEP_LOG(kWarning) << "rank " << communicator.rank()
                           << ": buckets go over memory that ranks do not share: " << flat.status().message();
    flat = MakePrivateBuffer(bytes);
  }
  LOCKSTEP_RETURN_IF_ERROR(flat.status());
  memory->flat_ = *std::move(flat);
  if (view_bytes > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(memory->views_, DeviceMemory::Allocate(device, view_bytes));
    LOCKSTEP_RETURN_IF_ERROR(Clear(accelerator, memory->views_.data(), view_bytes));
  } else if (use.views && !on_host) {
    LOCKSTEP_RETURN_IF_ERROR(Clear(accelerator, memory->flat_->data(), bytes));
  }
  return memory;
}

bool BucketMemory::IsFlat(const BucketPlan::Bucket& bucket) const {
  return !use_.pieces || (!bucket.sparse && !HasValuesOf(bucket.dtype, bucket.wire));
}

bool BucketMemory::InPieces(const BucketPlan& plan) const {
  return std::none_of(plan.buckets.begin(), plan.buckets.end(),
                      [this](const BucketPlan::Bucket& bucket) { return IsFlat(bucket); });
}

std::vector<size_t> BucketMemory::Regions(const BucketPlan& plan) const {
  const size_t count = plan.buckets.size();
  const size_t in_memory = use_.buckets_max == 0 ? count : std::min(count, use_.buckets_max);
  // Of the buckets that take turns with some memory, the largest.
  std::vector<size_t> regions(in_memory, 0);
  for (size_t b = 0; b < count; ++b) {
    if (!IsFlat(plan.buckets[b])) continue;
    regions[b % in_memory] = std::max(regions[b % in_memory], RoundedUp(plan.buckets[b].bytes()));
  }
  return regions;
}

bool BucketMemory::Fits(const BucketPlan& plan) const { return InPieces(plan) || Sum(Regions(plan)) <= flat_->bytes(); }

std::vector<std::unique_ptr<Bucket>> BucketMemory::LayOut(const BucketPlan& plan) const {
  std::vector<char*> begins;
  char* begin = flat_ == nullptr ? nullptr : flat_->data();
  for (const size_t bytes : Regions(plan)) {
    begins.push_back(begin);
    begin += bytes;
  }
  char* view = views_.data();
  std::vector<std::unique_ptr<Bucket>> buckets;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan.buckets[b];
    char* const flat = IsFlat(planned) ? begins[b % begins.size()] : nullptr;
    char* views = nullptr;
    if (use_.views) views = ViewBytes(planned) == 0 ? flat : view;
    if (view != nullptr) view += ViewBytes(planned);
    Bucket* const before = b < begins.size() || flat == nullptr ? nullptr : buckets[b - begins.size()].get();
    buckets.push_back(std::make_unique<Bucket>(planned, b, flat, views, before));
  }
  return buckets;
}

absl::Status BucketMemory::Detach() { return use_.views && flat_ != nullptr ? flat_->Detach() : absl::OkStatus(); }

bool BucketMemory::Holds(const void* data) const {
  const char* const at = static_cast<const char*>(data);
  const auto lies_in = [at](const char* begin, size_t bytes) { return at >= begin && at < begin + bytes; };
  return (flat_ != nullptr && lies_in(flat_->data(), flat_->bytes())) || lies_in(views_.data(), views_.bytes());
}

absl::StatusOr<KeptGradients> KeptGradients::Take(Device* device, absl::Span<const Parameter> parameters,
                                                  const ViewAt& view_at) {
  KeptGradients kept;
  size_t bytes = 0;
  for (size_t index = 0; index < parameters.size(); ++index) {
    if (parameters[index].ignored || parameters[index].sparse) continue;
    kept.gradients_.push_back({index, view_at(index), bytes});
    bytes += parameters[index].bytes();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(kept.bytes_, DeviceMemory::Allocate(device, bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("lockstep-keep"));
  for (const Gradient& gradient : kept.gradients_) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(kept.bytes_.data() + gradient.at, gradient.view, parameters[gradient.index].bytes()));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::Infinite()));
  return kept;
}

absl::Status KeptGradients::PutBack(Device* device, absl::Span<const Parameter> parameters,
                                    const ViewAt& view_at) const {
  if (gradients_.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("lockstep-keep"));
  for (const Gradient& gradient : gradients_) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(view_at(gradient.index), bytes_.data() + gradient.at, parameters[gradient.index].bytes()));
  }
  return stream->Synchronize(Deadline::Infinite());
}

}  // namespace lockstep

#include "comm/staging.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int64_t kDrainMs = 10'000;
// Of what kernels and network devices are given.
constexpr size_t kSlotAlignment = 256;
// What a device that does nothing else takes for the first write and wait, and more.
constexpr int64_t kTryMs = 10'000;

}  // namespace

Staging::Staging(Device* device, size_t slot_bytes, Place place, size_t spare_bytes)
    : device_(device),
      slot_bytes_(slot_bytes),
      stride_((slot_bytes + spare_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment),
      place_(place) {}

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device* device, int slots, size_t slot_bytes, Place place,
                                                         size_t spare_bytes) {
  auto staging = std::unique_ptr<Staging>(new Staging(device, slot_bytes, place, spare_bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->in_, device->CreateStream("staging-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->out_, device->CreateStream("staging-out"));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->ready_, device->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(staging->done_, device->CreateEvent());
  if (absl::Status allocated = staging->AllocateMemory(slots); !allocated.ok()) {
    return Annotate(allocated, absl::StrCat("staging memory of ", slots, " x ", staging->stride_, " bytes"));
  }
  if (absl::Status tried = staging->TryWords(); !tried.ok()) {
    return absl::UnavailableError(absl::StrCat("staging needs streams that await and write values: ", tried.message()));
  }
  return staging;
}

absl::Status Staging::AllocateMemory(int slots) {
  LOCKSTEP_ASSIGN_OR_RETURN(void* const words, device_->AllocateOnHost(sizeof(Words)));
  words_ = new (words) Words;
  const size_t bytes = slots * stride_;
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory,
                            place_ == Place::kOnHost ? device_->AllocateOnHost(bytes) : device_->Allocate(bytes));
  memory_ = static_cast<char*>(memory);
  for (int i = 0; i < slots; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.data = memory_ + i * stride_;
    LOCKSTEP_ASSIGN_OR_RETURN(slot.filled, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(slot.emptied, device_->CreateEvent());
  }
  return absl::OkStatus();
}

absl::Status Staging::TryWords() {
  const Deadline deadline = Deadline::AfterMs(kTryMs);
  LOCKSTEP_RETURN_IF_ERROR(in_->WriteValue(filled(), 0));
  LOCKSTEP_RETURN_IF_ERROR(out_->AwaitValue(exchanged(), 0));
  LOCKSTEP_RETURN_IF_ERROR(in_->Synchronize(deadline));
  LOCKSTEP_RETURN_IF_ERROR(out_->Synchronize(deadline));
  if (filled()->load(std::memory_order_acquire) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a value that a stream of ", Name(device_->id()), " wrote is not there"));
}

Staging::~Staging() {
  const Deadline deadline = Deadline::AfterMs(kDrainMs);
  bool busy = false;
  // A stream that ends with an error has ended.
  if (in_ != nullptr) busy |= absl::IsDeadlineExceeded(in_->Synchronize(deadline));
  if (out_ != nullptr) busy |= absl::IsDeadlineExceeded(out_->Synchronize(deadline));
  if (busy) {
    LOCKSTEP_LOG(kError) << Name(device_->id()) << ": copies to staging memory are still in flight after " << kDrainMs
                         << " ms: " << memory_bytes() << " bytes are not freed";
    return;
  }
  if (memory_ != nullptr) place_ == Place::kOnHost ? device_->FreeOnHost(memory_) : device_->Free(memory_);
  if (words_ != nullptr) device_->FreeOnHost(words_);
}

}  // namespace lockstep

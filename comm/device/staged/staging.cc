#include "comm/device/staged/staging.h"

#include <new>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int64_t kDrainMs = 10'000;
// What a device that does nothing else takes for the first write and wait, and more.
constexpr int64_t kTryMs = 10'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device* device, int slots, size_t slot_bytes) {
  auto staging = std::unique_ptr<Staging>(new Staging(device, slot_bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->in_, device->CreateStream("staging-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->out_, device->CreateStream("staging-out"));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->ready_, device->CreateEvent());
  LOCKSTEP_ASSIGN_OR_RETURN(staging->done_, device->CreateEvent());
  if (absl::Status allocated = staging->AllocateMemory(slots); !allocated.ok()) {
    return Annotate(allocated, absl::StrCat("staging memory of ", slots, " x ", slot_bytes, " bytes"));
  }
  if (absl::Status tried = staging->TryWords(); !tried.ok()) {
    return absl::UnavailableError(absl::StrCat("staging needs streams that await and write values: ", tried.message()));
  }
  return staging;
}

absl::Status Staging::AllocateMemory(int slots) {
  LOCKSTEP_ASSIGN_OR_RETURN(void* const words, device_->AllocateOnHost(sizeof(Words)));
  words_ = new (words) Words;
  for (int i = 0; i < slots; ++i) {
    Slot& slot = slots_.emplace_back();
    LOCKSTEP_ASSIGN_OR_RETURN(slot.filled, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(slot.emptied, device_->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(void* const data, device_->AllocateOnHost(slot_bytes_));
    slot.data = static_cast<char*>(data);
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
                         << " ms: " << slots_.size() << " x " << slot_bytes_ << " bytes are not freed";
    return;
  }
  for (const Slot& slot : slots_) {
    if (slot.data != nullptr) device_->FreeOnHost(slot.data);
  }
  if (words_ != nullptr) device_->FreeOnHost(words_);
}

}  // namespace lockstep

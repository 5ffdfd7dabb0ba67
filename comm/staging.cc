#include "comm/staging.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int64_t kDrainMs = 10'000;

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(Device* device, int slots, size_t slot_bytes) {
  auto staging = std::unique_ptr<Staging>(new Staging(device, slot_bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->in_, device->CreateStream("staging-in"));
  LOCKSTEP_ASSIGN_OR_RETURN(staging->out_, device->CreateStream("staging-out"));
  for (int i = 0; i < slots; ++i) {
    Slot& slot = staging->slots_.emplace_back();
    LOCKSTEP_ASSIGN_OR_RETURN(slot.filled, device->CreateEvent());
    LOCKSTEP_ASSIGN_OR_RETURN(slot.emptied, device->CreateEvent());
    absl::StatusOr<void*> memory = device->AllocateOnHost(slot_bytes);
    if (!memory.ok()) {
      return Annotate(memory.status(), absl::StrCat("staging memory of ", slots, " x ", slot_bytes, " bytes"));
    }
    slot.data = static_cast<char*>(*memory);
  }
  return staging;
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
}

}  // namespace lockstep

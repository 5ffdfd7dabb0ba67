#include "transport/ofi/slot_pool.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"

namespace lockstep {

OfiSlotPool::OfiSlotPool(OfiEndpoint* endpoint, size_t slot_bytes, size_t slab_slots, size_t slots_max)
    : endpoint_(endpoint), slot_bytes_(slot_bytes), slab_slots_(slab_slots), slots_max_(slots_max) {}

OfiSlotPool::~OfiSlotPool() {
  for (const auto& slab : slabs_) {
    if (slab->registration != nullptr) endpoint_->CloseRegistration(slab->registration);
  }
}

bool OfiSlotPool::Grow() {
  const size_t count = std::min(slab_slots_, slots_max_ - slots_count_);
  if (count == 0 || !status_.ok()) return false;
  auto slab = std::make_unique<Slab>();
  slab->memory.resize(count * slot_bytes_ / sizeof(CacheLine));
  if (endpoint_->registers_all()) {
    absl::StatusOr<fid_mr*> registered = endpoint_->Register(slab->memory.data(), count * slot_bytes_);
    if (!registered.ok()) {
      status_ = registered.status();
      return false;
    }
    slab->registration = *registered;
  }
  slab->slots = std::vector<OfiSlot>(count);
  for (size_t i = 0; i < count; ++i) {
    OfiSlot& slot = slab->slots[i];
    slot.post.buffer = slab->memory.front().bytes + i * slot_bytes_;
    slot.post.descriptor = slab->registration == nullptr ? nullptr : slab->registration->mem_desc;
    Give(&slot);
  }
  slots_count_ += count;
  slabs_.push_back(std::move(slab));
  return true;
}

OfiSlot* OfiSlotPool::Take() {
  if (free_ == nullptr && !Grow()) return nullptr;
  OfiSlot* const slot = free_;
  free_ = slot->next;
  slot->next = nullptr;
  --free_count_;
  return slot;
}

void OfiSlotPool::Give(OfiSlot* slot) {
  slot->next = free_;
  free_ = slot;
  ++free_count_;
}

}  // namespace lockstep

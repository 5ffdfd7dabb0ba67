#include "transport/ofi/memory.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

uintptr_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

}  // namespace

OfiMemory::~OfiMemory() {
  for (const auto& entry : regions_) endpoint_->CloseRegistration(entry.second.registration);
}

OfiMemory::Region* OfiMemory::Find(uintptr_t begin, size_t bytes) {
  for (auto at = regions_.upper_bound(begin); at != regions_.begin();) {
    --at;
    Region& region = at->second;
    if (region.begin + longest_ < begin + bytes) break;
    if (!region.deregistered && region.begin + region.bytes >= begin + bytes) return &region;
  }
  return nullptr;
}

absl::StatusOr<OfiMemory::Region*> OfiMemory::Borrow(const void* memory, size_t bytes) {
  if (bytes == 0 || !endpoint_->registers_all()) return nullptr;
  Region* region = Find(AddressOf(memory), bytes);
  if (region == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(region, Add(memory, bytes));
  }
  ++region->users;
  return region;
}

void OfiMemory::Return(Region* region) {
  if (region == nullptr || --region->users > 0) return;
  if (region->deregistered || !region->by_caller) Erase(region);
}

absl::StatusOr<OfiMemory::Region*> OfiMemory::Add(const void* memory, size_t bytes) {
  LOCKSTEP_ASSIGN_OR_RETURN(fid_mr* const registration, endpoint_->Register(memory, bytes));
  Region& region = regions_.emplace(AddressOf(memory), Region())->second;
  region.begin = AddressOf(memory);
  region.bytes = bytes;
  region.registration = registration;
  longest_ = std::max(longest_, bytes);
  return &region;
}

absl::Status OfiMemory::Register(const void* memory, size_t bytes) {
  if (bytes == 0 || !endpoint_->registers_all()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(Region* const region, Add(memory, bytes));
  region->by_caller = true;
  return absl::OkStatus();
}

void OfiMemory::Deregister(const void* memory, size_t bytes) {
  const uintptr_t begin = AddressOf(memory);
  for (auto at = regions_.begin(); at != regions_.end();) {
    Region& region = at->second;
    ++at;
    const bool overlaps = region.begin < begin + bytes && begin < region.begin + region.bytes;
    if (region.deregistered || !overlaps) continue;
    region.deregistered = true;
    if (region.users == 0) Erase(&region);
  }
}

void OfiMemory::Erase(Region* region) {
  endpoint_->CloseRegistration(region->registration);
  const auto range = regions_.equal_range(region->begin);
  const auto found =
      std::find_if(range.first, range.second, [region](const auto& entry) { return &entry.second == region; });
  LOCKSTEP_CHECK(found != range.second) << "a registration that is not known";
  regions_.erase(found);
}

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
    slot.post.buffer = slab->memory.data() + i * slot_bytes_ / sizeof(CacheLine);
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

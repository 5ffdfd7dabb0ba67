#include "transport/ofi/memory.h"

#include <algorithm>

#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

uintptr_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

bool Overlap(const OfiMemory::Region& region, uintptr_t begin, size_t bytes) {
  return region.begin < begin + bytes && begin < region.begin + region.bytes;
}

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
  } else if (region->users == 0 && !region->by_caller) {
    idle_.erase(region->idle);
  }
  ++region->users;
  return region;
}

void OfiMemory::Return(Region* region) {
  if (region == nullptr || --region->users > 0) return;
  if (region->deregistered) return Erase(region);
  if (region->by_caller) return;
  region->idle = idle_.insert(idle_.end(), region);
  if (idle_.size() <= regions_max_) return;
  Region* const oldest = idle_.front();
  idle_.pop_front();
  Erase(oldest);
}

absl::StatusOr<OfiMemory::Region*> OfiMemory::Add(const void* memory, size_t bytes) {
  absl::StatusOr<fid_mr*> registration = endpoint_->Register(memory, bytes);
  // Providers have room for so many: what nobody uses makes room.
  while (!registration.ok() && !idle_.empty()) {
    Region* const oldest = idle_.front();
    idle_.pop_front();
    Erase(oldest);
    registration = endpoint_->Register(memory, bytes);
  }
  LOCKSTEP_RETURN_IF_ERROR(registration.status());
  Region& region = regions_.emplace(AddressOf(memory), Region())->second;
  region.begin = AddressOf(memory);
  region.bytes = bytes;
  region.registration = *registration;
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
  for (auto at = regions_.begin(); at != regions_.end();) {
    Region& region = at->second;
    ++at;
    if (region.deregistered || !Overlap(region, AddressOf(memory), bytes)) continue;
    region.deregistered = true;
    if (region.users > 0) continue;
    if (!region.by_caller) idle_.erase(region.idle);
    Erase(&region);
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

}  // namespace lockstep

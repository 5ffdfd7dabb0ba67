#include "transport/ofi/memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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
    if (!region.forgotten && region.begin + region.bytes >= begin + bytes) return &region;
  }
  return nullptr;
}

const OfiMemory::Region* OfiMemory::DeviceRegion(const void* memory, size_t bytes) const {
  const Region* const region = const_cast<OfiMemory*>(this)->Find(AddressOf(memory), bytes);
  return region != nullptr && region->device ? region : nullptr;
}

absl::StatusOr<OfiMemory::Region*> OfiMemory::Borrow(const void* memory, size_t bytes) {
  if (bytes == 0 || (!endpoint_->registers_all() && devices_ == 0)) return nullptr;
  Region* region = Find(AddressOf(memory), bytes);
  if (region == nullptr) {
    if (!endpoint_->registers_all()) return nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(region, Add(memory, bytes, /*cuda_device=*/-1));
  } else if (region->users == 0 && !region->kept) {
    idle_.erase(region->idle);
  }
  ++region->users;
  return region;
}

void OfiMemory::Return(Region* region) {
  if (region == nullptr || --region->users > 0) return;
  if (region->forgotten) return Erase(region);
  if (region->kept) return;
  region->idle = idle_.insert(idle_.end(), region);
  if (idle_.size() <= regions_max_) return;
  Region* const oldest = idle_.front();
  idle_.pop_front();
  Erase(oldest);
}

absl::StatusOr<OfiMemory::Region*> OfiMemory::Add(const void* memory, size_t bytes, int cuda_device) {
  absl::StatusOr<fid_mr*> registration = endpoint_->Register(memory, bytes, cuda_device);
  // Providers have room for so many: what nobody uses makes room.
  while (!registration.ok() && !idle_.empty()) {
    Region* const oldest = idle_.front();
    idle_.pop_front();
    Erase(oldest);
    registration = endpoint_->Register(memory, bytes, cuda_device);
  }
  LOCKSTEP_RETURN_IF_ERROR(registration.status());
  Region& region = regions_.emplace(AddressOf(memory), Region())->second;
  region.begin = AddressOf(memory);
  region.bytes = bytes;
  region.registration = *registration;
  region.device = region.kept = cuda_device >= 0;
  longest_ = std::max(longest_, bytes);
  return &region;
}

absl::Status OfiMemory::Keep(const void* memory, size_t bytes) {
  if (bytes == 0 || !endpoint_->registers_all()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(Region* const region, Add(memory, bytes, /*cuda_device=*/-1));
  region->kept = true;
  return absl::OkStatus();
}

absl::Status OfiMemory::AddDevice(const void* memory, size_t bytes, int cuda_device) {
  LOCKSTEP_RETURN_IF_ERROR(endpoint_->device_memory());
  if (bytes == 0) return absl::OkStatus();
  for (const auto& entry : regions_) {
    if (!entry.second.forgotten && Overlap(entry.second, AddressOf(memory), bytes)) {
      return absl::InvalidArgumentError("a part of this memory is registered already");
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(Add(memory, bytes, cuda_device).status());
  ++devices_;
  return absl::OkStatus();
}

void OfiMemory::Forget(const void* memory, size_t bytes) {
  for (auto at = regions_.begin(); at != regions_.end();) {
    Region& region = at->second;
    ++at;
    if (region.forgotten || !Overlap(region, AddressOf(memory), bytes)) continue;
    region.forgotten = true;
    if (region.device) --devices_;
    if (region.users > 0) continue;
    if (!region.kept) idle_.erase(region.idle);
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

// Memory that messages are sent from and received into, registered where the provider wants that.

#ifndef TRANSPORT_OFI_MEMORY_H_
#define TRANSPORT_OFI_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/ofi/endpoint.h"

namespace lockstep {

// Memory of callers. A registration that a caller asked for stays until it is deregistered. Any other ends with the messages
// that need it: nobody tells when such memory is unmapped, and to the device a registration outlives the mapping. (Providers
// of fabrics have caches of their own, which watch for that.)
//
// Externally synchronised. All registrations that were borrowed are given back before it is destroyed.
class OfiMemory {
 public:
  struct Region {
    uintptr_t begin = 0;
    size_t bytes = 0;
    fid_mr* registration = nullptr;
    int users = 0;
    bool by_caller = false;     // stays until it is deregistered
    bool deregistered = false;  // closed when its last user gives it back
    void* descriptor() const { return registration == nullptr ? nullptr : registration->mem_desc; }
  };

  // Borrows the endpoint.
  explicit OfiMemory(OfiEndpoint* endpoint) : endpoint_(endpoint) {}
  ~OfiMemory();
  OfiMemory(const OfiMemory&) = delete;
  OfiMemory& operator=(const OfiMemory&) = delete;

  // The region that holds all of this memory, registered now if need be. Null if the provider wants none. The caller gives
  // it back when no operation uses it any more. Errors are the provider's, for example RESOURCE_EXHAUSTED.
  absl::StatusOr<Region*> Borrow(const void* memory, size_t bytes);
  void Return(Region* region);
  // Borrows it once more. Each borrower gives it back.
  static Region* Share(Region* region) {
    if (region != nullptr) ++region->users;
    return region;
  }

  // Registers memory until it is deregistered, if the provider wants registrations.
  absl::Status Register(const void* memory, size_t bytes);
  // Closes every registration that overlaps this memory, now or when its last user gives it back.
  void Deregister(const void* memory, size_t bytes);

 private:
  Region* Find(uintptr_t begin, size_t bytes);
  absl::StatusOr<Region*> Add(const void* memory, size_t bytes);
  void Erase(Region* region);

  OfiEndpoint* const endpoint_;
  std::multimap<uintptr_t, Region> regions_;  // by where they begin
  size_t longest_ = 0;                        // of all regions: how far before an address one that holds it may begin
};

// Whoever takes a slot fills in `post`. Its buffer is that of the slot, its descriptor the registration's.
struct OfiSlot {
  OfiPost post;  // first: found again from the post that completes
  void* owner = nullptr;
  OfiSlot* next = nullptr;  // the pool's while it has it, else the owner's
  unsigned char* data() const { return static_cast<unsigned char*>(post.buffer); }
};

// Memory of our own, in slots of one size.
//
// Externally synchronised. All slots are given back, or the endpoint is gone, before it is destroyed.
class OfiSlotPool {
 public:
  // Borrows the endpoint. Memory is taken in slabs of `slab_slots`, up to `slots_max` slots. `slot_bytes` is a multiple
  // of 64.
  OfiSlotPool(OfiEndpoint* endpoint, size_t slot_bytes, size_t slab_slots, size_t slots_max)
      : endpoint_(endpoint), slot_bytes_(slot_bytes), slab_slots_(slab_slots), slots_max_(slots_max) {}
  ~OfiSlotPool();
  OfiSlotPool(const OfiSlotPool&) = delete;
  OfiSlotPool& operator=(const OfiSlotPool&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  size_t slots_max() const { return slots_max_; }

  // Null when all slots are taken, or the provider did not take more memory: status() says why.
  OfiSlot* Take();
  void Give(OfiSlot* slot);

  // How many more can be taken without asking the provider for anything that it has refused.
  size_t available() const { return free_count_ + (status_.ok() ? slots_max_ - slots_count_ : 0); }
  const absl::Status& status() const { return status_; }

 private:
  struct alignas(64) CacheLine {
    unsigned char bytes[64];
  };
  struct Slab {
    std::vector<CacheLine> memory;
    std::vector<OfiSlot> slots;
    fid_mr* registration = nullptr;
  };

  bool Grow();

  OfiEndpoint* const endpoint_;
  const size_t slot_bytes_;
  const size_t slab_slots_;
  const size_t slots_max_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  size_t slots_count_ = 0;
  OfiSlot* free_ = nullptr;
  size_t free_count_ = 0;
  absl::Status status_;
};

// Records of one kind, used again and again: taking one allocates only when more are in use than ever before. `Record` has a
// member `Record* next`. Externally synchronised.
template <typename Record>
class OfiRecordPool {
 public:
  Record* Take() {
    Record* record = free_;
    if (record == nullptr) return &records_.emplace_back();
    free_ = record->next;
    *record = Record();
    return record;
  }
  void Give(Record* record) {
    record->next = free_;
    free_ = record;
  }

 private:
  std::deque<Record> records_;
  Record* free_ = nullptr;
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_MEMORY_H_

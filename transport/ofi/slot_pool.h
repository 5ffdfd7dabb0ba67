// Pieces of memory of one size that messages are sent from and received into, registered where the provider wants that.

#ifndef TRANSPORT_OFI_SLOT_POOL_H_
#define TRANSPORT_OFI_SLOT_POOL_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "transport/ofi/endpoint.h"

namespace lockstep {

// `post` is to be filled in by whoever takes it; its buffer is that of the slot, its descriptor the registration's.
struct OfiSlot {
  OfiPost post;  // first: found again from the post that completes
  void* owner = nullptr;
  OfiSlot* next = nullptr;  // the pool's while it has it, else the owner's
  unsigned char* data() const { return static_cast<unsigned char*>(post.buffer); }
};

// Externally synchronised. All slots are given back, or the endpoint is gone, before it is destroyed.
class OfiSlotPool {
 public:
  // Borrows the endpoint. Memory is taken in slabs of `slab_slots`, up to `slots_max` slots. `slot_bytes` is a multiple
  // of 64.
  OfiSlotPool(OfiEndpoint* endpoint, size_t slot_bytes, size_t slab_slots, size_t slots_max);
  ~OfiSlotPool();
  OfiSlotPool(const OfiSlotPool&) = delete;
  OfiSlotPool& operator=(const OfiSlotPool&) = delete;

  size_t slot_bytes() const { return slot_bytes_; }
  size_t slots_max() const { return slots_max_; }

  // Null when there are as many as may be, or the provider did not take more memory: status() says why.
  OfiSlot* Take();
  void Give(OfiSlot* slot);

  // How many more could be taken without asking the provider for anything that it has refused.
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

}  // namespace lockstep

#endif  // TRANSPORT_OFI_SLOT_POOL_H_

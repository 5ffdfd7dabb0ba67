// Registered memory: the buffers that messages are sent from and received into, where the provider wants registrations.
//
// A registration that a caller asked for stays until it is deregistered. Any other ends with the messages that need it:
// nobody says when such memory is unmapped, and to the device a registration outlives the mapping. (Providers of fabrics
// have caches of their own, which watch for that.)

#ifndef TRANSPORT_OFI_MEMORY_H_
#define TRANSPORT_OFI_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/ofi/endpoint.h"

namespace lockstep {

// Externally synchronised. All registrations that were borrowed are given back before it is destroyed.
class OfiMemory {
 public:
  struct Region {
    uintptr_t begin = 0;
    size_t bytes = 0;
    fid_mr* registration = nullptr;
    int users = 0;
    bool by_caller = false;                  // stays until it is deregistered
    bool deregistered = false;               // closed when its last user gives it back
    std::list<Region*>::iterator idle = {};  // valid while `users` is 0 and `by_caller` is false
    void* descriptor() const { return registration == nullptr ? nullptr : registration->mem_desc; }
  };

  // Borrows the endpoint. `regions_max`: how many stay that nobody uses and nobody asked for; beyond that the one that was
  // used least lately is closed.
  OfiMemory(OfiEndpoint* endpoint, size_t regions_max) : endpoint_(endpoint), regions_max_(regions_max) {}
  ~OfiMemory();
  OfiMemory(const OfiMemory&) = delete;
  OfiMemory& operator=(const OfiMemory&) = delete;

  // The region that holds all of this memory, registered now if need be. Null where the provider wants none. To be
  // given back when no operation uses it any more. Errors are the provider's, RESOURCE_EXHAUSTED for one.
  absl::StatusOr<Region*> Borrow(const void* memory, size_t bytes);
  void Return(Region* region);
  // The same once more, to be given back, too.
  static Region* Share(Region* region) {
    if (region != nullptr) ++region->users;
    return region;
  }

  // Registers memory until it is deregistered, where the provider wants registrations.
  absl::Status Register(const void* memory, size_t bytes);
  // Closes every registration that overlaps this memory, now or when its last user gives it back.
  void Deregister(const void* memory, size_t bytes);

  size_t registered() const { return regions_.size(); }

 private:
  using Regions = std::multimap<uintptr_t, Region>;  // by where they begin

  Region* Find(uintptr_t begin, size_t bytes);
  absl::StatusOr<Region*> Add(const void* memory, size_t bytes);
  void Erase(Region* region);

  OfiEndpoint* const endpoint_;
  const size_t regions_max_;
  Regions regions_;
  size_t longest_ = 0;       // of all regions: how far before an address one that holds it may begin
  std::list<Region*> idle_;  // the one that was used least lately in front
};

}  // namespace lockstep

#endif  // TRANSPORT_OFI_MEMORY_H_

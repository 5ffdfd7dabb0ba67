// Memory that several processes of one host map: a memfd, whole and sealed before anybody else sees it.
//
// It has no name, so nothing is left behind by a crash, and no limit of /dev/shm applies. Every page is allocated when
// it is made, and it can be neither shrunk nor grown from then on, so that no access ends in SIGBUS. Limits that stand
// in the way are found before they are hit and named: RLIMIT_FSIZE (whose signal would end the process), the memory that the
// machine and the process's control group have left (beyond which the kernel would), RLIMIT_AS, RLIMIT_NOFILE. A forked child
// does not inherit the mapping.

#ifndef TRANSPORT_SHM_SHARED_MEMORY_H_
#define TRANSPORT_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "base/fork.h"

namespace lockstep {

// Owns the mapping, not what is in it. Movable. A forked child must not touch data(); there the destructor unmaps nothing.
class SharedMemory {
 public:
  // kHuge: pages of 2 MiB where the system gives them on request (shmem_enabled of transparent huge pages). A hint.
  enum class Pages { kSmall, kHuge };

  SharedMemory() = default;
  ~SharedMemory() { Unmap(); }
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  // `bytes` of zeros, rounded up to whole pages. RESOURCE_EXHAUSTED naming the limit; UNAVAILABLE where this process
  // may not make such memory at all.
  static absl::StatusOr<SharedMemory> Create(size_t bytes, Pages pages = Pages::kSmall);

  // Memory that a peer made. FAILED_PRECONDITION unless it is sealed and of exactly the size (rounded up) that it is
  // said to have; RESOURCE_EXHAUSTED as above.
  static absl::StatusOr<SharedMemory> Attach(UniqueFd descriptor, size_t bytes, Pages pages = Pages::kSmall);

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

  // Of memory that was created, to be handed to peers. The mapping needs it no more.
  int descriptor() const { return descriptor_.get(); }
  UniqueFd TakeDescriptor() { return std::move(descriptor_); }

 private:
  static absl::StatusOr<SharedMemory> Map(UniqueFd descriptor, size_t bytes, Pages pages);
  void Unmap();

  void* data_ = nullptr;
  size_t bytes_ = 0;
  UniqueFd descriptor_;
  uint64_t fork_generation_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHARED_MEMORY_H_

// SymmetricBuffer: memory of a communicator's allocator (Communicator::Allocate).

#ifndef COMM_SYMMETRIC_BUFFER_H_
#define COMM_SYMMETRIC_BUFFER_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Owned by whoever allocated it. May outlive the communicator. Shared memory is not there in a forked child.
class SymmetricBuffer final {
 public:
  // The destructor calls `release`, then destroys it.
  SymmetricBuffer(char* data, size_t bytes, bool shared, absl::AnyInvocable<void()> release)
      : data_(data), bytes_(bytes), shared_(shared), release_(std::move(release)) {}
  ~SymmetricBuffer() { release_(); }
  SymmetricBuffer(const SymmetricBuffer&) = delete;
  SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;

  // Aligned to pages, and zero at first.
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whether the other ranks map this memory too, so that collectives need not move it. False where ranks are on several hosts, and
  // in a world of one: the memory is then like any other.
  bool shared() const { return shared_; }

  // Makes shared memory this process's own, where it is and with what it holds: peers that were stopped before the communicator failed
  // write elsewhere from now on. RESOURCE_EXHAUSTED: it may be so in part.
  // REQUIRES  no collective uses it any more, and no thread writes it meanwhile
  absl::Status Detach();

 private:
  char* const data_;
  const size_t bytes_;
  bool shared_;
  absl::AnyInvocable<void()> release_;
};

// Allocates a buffer that is not shared. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::unique_ptr<SymmetricBuffer>> MakePrivateBuffer(size_t bytes);

}  // namespace lockstep

#endif  // COMM_SYMMETRIC_BUFFER_H_

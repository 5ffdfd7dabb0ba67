// SymmetricBuffer: memory of a communicator's allocator (Communicator::Allocate).

#ifndef COMM_SYMMETRIC_BUFFER_H_
#define COMM_SYMMETRIC_BUFFER_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace lockstep {

// Belongs to whoever allocated it and may outlive the communicator. A forked child has none of it where it is shared.
class SymmetricBuffer {
 public:
  virtual ~SymmetricBuffer() = default;
  SymmetricBuffer(const SymmetricBuffer&) = delete;
  SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;

  // Aligned to pages, and zero at first.
  virtual char* data() const = 0;
  virtual size_t bytes() const = 0;
  // Whether the other ranks have it before them, so that collectives need not carry it. Where ranks are on several hosts, or
  // there is one, it is memory like any other.
  virtual bool shared() const = 0;

 protected:
  SymmetricBuffer() = default;
};

// One that is not shared. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::unique_ptr<SymmetricBuffer>> MakePrivateBuffer(size_t bytes);

}  // namespace lockstep

#endif  // COMM_SYMMETRIC_BUFFER_H_

// SymmetricBuffer: memory of a communicator's allocator (Communicator::Allocate).

#ifndef COMM_SYMMETRIC_BUFFER_H_
#define COMM_SYMMETRIC_BUFFER_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"

namespace lockstep {

// Belongs to whoever allocated it and may outlive the communicator. A forked child has none of it where it is shared.
class SymmetricBuffer final {
 public:
  // `release` is called at the end, and what it holds goes after that.
  SymmetricBuffer(char* data, size_t bytes, bool shared, absl::AnyInvocable<void()> release)
      : data_(data), bytes_(bytes), shared_(shared), release_(std::move(release)) {}
  ~SymmetricBuffer() { release_(); }
  SymmetricBuffer(const SymmetricBuffer&) = delete;
  SymmetricBuffer& operator=(const SymmetricBuffer&) = delete;

  // Aligned to pages, and zero at first.
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Whether the other ranks have it before them, so that collectives need not carry it. Where ranks are on several hosts, or
  // there is one, it is memory like any other.
  bool shared() const { return shared_; }

 private:
  char* const data_;
  const size_t bytes_;
  const bool shared_;
  absl::AnyInvocable<void()> release_;
};

// One that is not shared. RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<std::unique_ptr<SymmetricBuffer>> MakePrivateBuffer(size_t bytes);

}  // namespace lockstep

#endif  // COMM_SYMMETRIC_BUFFER_H_

// Memory of NCCL's allocator, which NCCL can share between the ranks of a host and register with its transports.

#ifndef TRANSPORT_NCCL_NCCL_MEMORY_H_
#define TRANSPORT_NCCL_NCCL_MEMORY_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/nccl/nccl_library.h"

namespace lockstep {

// Immutable. The destructor waits, as cudaFree does, until the device has no more work of this process's.
class NcclMemory {
 public:
  // Of a library that can_register(), which outlives what is returned; uninitialised. RESOURCE_EXHAUSTED says how
  // much was asked for.
  static absl::StatusOr<std::unique_ptr<NcclMemory>> Allocate(const NcclLibrary* library, int device, size_t bytes);

  ~NcclMemory();
  NcclMemory(const NcclMemory&) = delete;
  NcclMemory& operator=(const NcclMemory&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  NcclMemory(const NcclLibrary* library, int device, char* data, size_t bytes)
      : library_(library), device_(device), data_(data), bytes_(bytes) {}

  const NcclLibrary* const library_;
  const int device_;
  char* const data_;
  const size_t bytes_;
};

}  // namespace lockstep

#endif  // TRANSPORT_NCCL_NCCL_MEMORY_H_

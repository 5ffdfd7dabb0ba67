#include "bench/memory.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

void Memory::Free::operator()(char* memory) const { free(memory); }

absl::StatusOr<Memory> Memory::Create(int vectors, size_t vector_bytes) {
  Memory memory;
  memory.vector_bytes_ = std::max(vector_bytes, kPageBytes);
  for (int i = 0; i < vectors; ++i) {
    void* allocated = nullptr;
    if (posix_memalign(&allocated, kPageBytes, memory.vector_bytes_) != 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", vectors, " vectors of ", memory.vector_bytes_, " bytes"));
    }
    memory.ordinary_.emplace_back(static_cast<char*>(allocated));
    memory.vectors_.push_back(static_cast<char*>(allocated));
    std::memset(allocated, 0, memory.vector_bytes_);
  }
  return memory;
}

absl::StatusOr<Memory> Memory::Allocate(Communicator* communicator, int vectors, size_t vector_bytes) {
  Memory memory;
  memory.vector_bytes_ = std::max(vector_bytes, kPageBytes);
  for (int i = 0; i < vectors; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<SymmetricBuffer> buffer, communicator->Allocate(memory.vector_bytes_));
    memory.vectors_.push_back(buffer->data());
    std::memset(buffer->data(), 0, memory.vector_bytes_);
    memory.allocated_.push_back(std::move(buffer));
  }
  return memory;
}

}  // namespace bench
}  // namespace lockstep

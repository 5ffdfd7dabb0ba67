#include "comm/symmetric_buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> MakePrivateBuffer(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a buffer of 0 bytes");
  if (const std::string why = WhyNoMemory(bytes); !why.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat("allocate ", bytes, " bytes: ", why));
  }
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("allocate ", bytes, " bytes: ", ErrnoStatus(errno, "mmap").message()));
  }
  return std::make_unique<SymmetricBuffer>(static_cast<char*>(data), bytes, /*shared=*/false,
                                           [data, bytes] { munmap(data, bytes); });
}

}  // namespace lockstep

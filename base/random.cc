#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/status.h"

namespace lockstep {

absl::StatusOr<uint64_t> RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof(number), 0) < 0 && errno != EINTR) return ErrnoStatus(errno, "getrandom");
  }
  return number;
}

}  // namespace lockstep

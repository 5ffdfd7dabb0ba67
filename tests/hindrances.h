// Keeps this process from what it could do otherwise: refused system calls, limits. For ranks that are processes (tests/processes.h) and
// forked children.

#ifndef TESTS_HINDRANCES_H_
#define TESTS_HINDRANCES_H_

#include <sys/resource.h>

#include <cstdint>

#include "absl/status/status.h"

namespace lockstep {

struct RefusedCall {
  int number = 0;  // SYS_...
  int error = 0;   // the errno that it fails with
  // With `argument` (0 to 5) only calls whose argument equals `value` in its lower 32 bits.
  int argument = -1;
  uint32_t value = 0;
};

// Makes the call fail until the process ends, on this thread and those that it starts, as a container's filter does. UNAVAILABLE if the
// system has no such filters.
absl::Status Refuse(const RefusedCall& call);

// Sets the soft limit, as far as the hard one allows; it may be raised again.
absl::Status Limit(__rlimit_resource resource, rlim_t most);

}  // namespace lockstep

#endif  // TESTS_HINDRANCES_H_

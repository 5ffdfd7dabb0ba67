// Numbers that nobody can guess.

#ifndef BASE_RANDOM_H_
#define BASE_RANDOM_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace lockstep {

// A number from the system's random generator, not 0. Thread-safe. Waits until that generator is seeded, which it is once the system is up.
// ERRORS  as getrandom(2), where the system refuses it
absl::StatusOr<uint64_t> RandomNumber();

}  // namespace lockstep

#endif  // BASE_RANDOM_H_

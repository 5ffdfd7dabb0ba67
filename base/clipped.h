// Text from outside, for a message.

#ifndef BASE_CLIPPED_H_
#define BASE_CLIPPED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// What a user, an environment or a peer gave, as a message echoes it: control characters as escapes, at most 100 bytes, then "..." and
// how many there are.
std::string Clipped(absl::string_view text);

}  // namespace lockstep

#endif  // BASE_CLIPPED_H_

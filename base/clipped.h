// Text from outside, for a message.

#ifndef BASE_CLIPPED_H_
#define BASE_CLIPPED_H_

#include <string>

#include "absl/strings/string_view.h"

namespace lockstep {

// Text of a user, the environment or a peer, ready to be quoted in a message: control characters are escaped; beyond
// 100 bytes it ends with "..." and the number of bytes.
std::string Clipped(absl::string_view text);

}  // namespace lockstep

#endif  // BASE_CLIPPED_H_

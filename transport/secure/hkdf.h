// Keys out of keys.

#ifndef TRANSPORT_SECURE_HKDF_H_
#define TRANSPORT_SECURE_HKDF_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace lockstep {

// HKDF-Expand of RFC 5869 with SHA-384: `bytes` bytes that nobody can tell from random ones without the key, others for each label.
// The key is as good as random already, 32 bytes or more, so that HKDF-Extract has nothing to do. At most 255 * 48 bytes.
void HkdfExpand(absl::string_view key, absl::string_view label, void* out, size_t bytes);

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_HKDF_H_

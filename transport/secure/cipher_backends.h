// What RecordCipher::Create chooses from. For this folder.

#ifndef TRANSPORT_SECURE_CIPHER_BACKENDS_H_
#define TRANSPORT_SECURE_CIPHER_BACKENDS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/secure/cipher.h"
#include "transport/secure/ipsec_mb_library.h"

namespace lockstep {

// INTERNAL tells OpenSSL's error.
absl::StatusOr<std::unique_ptr<RecordCipher>> NewOpenSslCipher(CipherMode mode, const DirectionKey& key);

// Borrows the library.
std::unique_ptr<RecordCipher> NewIpsecMbCipher(const IpsecMbLibrary& library, CipherMode mode, const DirectionKey& key);

// Loads the library, and compares its answers with OpenSSL's in both modes and directions. UNAVAILABLE says why it is not to be used.
absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>> LoadAgreeingIpsecMb(const std::string& file);

// The process's, loaded and compared at the first call. Thread-safe. UNAVAILABLE as above, or because of the processor.
absl::StatusOr<const IpsecMbLibrary*> TheIpsecMb();

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_CIPHER_BACKENDS_H_

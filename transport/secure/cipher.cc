#include "transport/secure/cipher.h"

#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "transport/secure/cipher_backends.h"
#include "transport/secure/openssl.h"

namespace lockstep {

absl::StatusOr<std::string> CipherBackendVersion(CipherBackend backend) {
  if (backend == CipherBackend::kOpenSsl) return OpenSslVersion();
  LOCKSTEP_ASSIGN_OR_RETURN(const IpsecMbLibrary* const library, TheIpsecMb());
  return library->VersionName();
}

absl::StatusOr<std::unique_ptr<RecordCipher>> RecordCipher::Create(CipherBackend backend, CipherMode mode,
                                                                   const DirectionKey& key) {
  if (backend == CipherBackend::kOpenSsl) return NewOpenSslCipher(mode, key);
  LOCKSTEP_ASSIGN_OR_RETURN(const IpsecMbLibrary* const library, TheIpsecMb());
  return NewIpsecMbCipher(*library, mode, key);
}

size_t RecordCipher::Pass(Direction direction, uint64_t sequence, absl::Span<const unsigned char> header,
                          absl::Span<const iovec> payload, unsigned char* out) {
  LOCKSTEP_CHECK(mode_ == CipherMode::kEncrypt || out == nullptr);
  Nonce nonce = nonce_base_;
  for (int i = 0; i < 8; ++i) nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(sequence >> (8 * i));
  Begin(direction, nonce, header);
  size_t total = 0;
  for (const iovec& piece : payload) {
    LOCKSTEP_CHECK(piece.iov_len <= kPayloadBytesMax - total) << "a payload of more than " << kPayloadBytesMax;
    if (piece.iov_len == 0) continue;
    Update(direction, static_cast<const unsigned char*>(piece.iov_base), piece.iov_len,
           out != nullptr ? out + total : nullptr);
    total += piece.iov_len;
  }
  return total;
}

void RecordCipher::Seal(uint64_t sequence, absl::Span<const unsigned char> header, absl::Span<const iovec> payload,
                        unsigned char* out, unsigned char* tag) {
  Pass(Direction::kSeal, sequence, header, payload, out);
  FinishSealing(tag);
}

bool RecordCipher::Open(uint64_t sequence, absl::Span<const unsigned char> header, absl::Span<const iovec> payload,
                        const unsigned char* tag, unsigned char* out) {
  const size_t bytes = Pass(Direction::kOpen, sequence, header, payload, out);
  if (FinishOpening(tag)) return true;
  if (out != nullptr) std::memset(out, 0, bytes);
  return false;
}

}  // namespace lockstep

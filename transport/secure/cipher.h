// AES-256-GCM (NIST SP 800-38D) over the records of one direction of a connection, by OpenSSL or by Intel's ipsec-mb.

#ifndef TRANSPORT_SECURE_CIPHER_H_
#define TRANSPORT_SECURE_CIPHER_H_

#include <string.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep {

enum class CipherMode {
  kAuthenticate,  // GMAC: the tag is over header and payload, and nothing is ciphered
  kEncrypt,       // GCM: the payload is ciphered, and the tag is over header and ciphered payload
};

enum class CipherBackend {
  kOpenSsl,  // always there
  kIpsecMb,  // where libIPSec_MB.so.1 is installed and the processor has AES on vectors of 512 bits
};

// "OpenSSL 3.0.19", "ipsec-mb 1.3.0". The first call for ipsec-mb loads the library and compares its answers with OpenSSL's, in about
// a millisecond. Thread-safe.
// ERRORS  UNAVAILABLE  why ipsec-mb cannot be used
absl::StatusOr<std::string> CipherBackendVersion(CipherBackend backend);

// What one direction of a connection is sealed with, in one mode. Overwritten with zeros at its end.
struct DirectionKey {
  ~DirectionKey() { explicit_bzero(this, sizeof(*this)); }

  std::array<unsigned char, 32> key = {};
  std::array<unsigned char, 12> nonce_base = {};
};

// Seals or opens records. Its nonces are the base with the record's sequence number xored into the last 8 bytes, big-endian, as TLS 1.3
// makes them (RFC 8446, section 5.3). So a sequence number must be sealed once only under a key.
//
// Externally synchronised. Holds no memory of a record between calls.
class RecordCipher {
 public:
  static constexpr size_t kTagBytes = 16;
  static constexpr size_t kPayloadBytesMax = size_t{1} << 30;

  // ERRORS  UNAVAILABLE  why the backend cannot be used
  //         INTERNAL     OpenSSL refuses the cipher
  static absl::StatusOr<std::unique_ptr<RecordCipher>> Create(CipherBackend backend, CipherMode mode,
                                                              const DirectionKey& key);

  virtual ~RecordCipher() = default;
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // Writes the tag of kTagBytes. kEncrypt: and the ciphered payload, contiguous, to `out`, which is either where a payload of one piece
  // begins or overlaps none. kAuthenticate: `out` is null.
  // REQUIRES  a payload of at most kPayloadBytesMax
  void Seal(uint64_t sequence, absl::Span<const unsigned char> header, absl::Span<const iovec> payload,
            unsigned char* out, unsigned char* tag);

  // The opposite: kEncrypt writes the deciphered payload to `out`. False if the record is not genuine: sealed with another key, under
  // another sequence number, or changed. Then `out` holds zeros, as long as the payload.
  ABSL_MUST_USE_RESULT bool Open(uint64_t sequence, absl::Span<const unsigned char> header,
                                 absl::Span<const iovec> payload, const unsigned char* tag, unsigned char* out);

 protected:
  using Nonce = std::array<unsigned char, 12>;
  enum class Direction { kSeal, kOpen };

  RecordCipher(CipherMode mode, const DirectionKey& key) : mode_(mode), nonce_base_(key.nonce_base) {}

  CipherMode mode() const { return mode_; }

 private:
  // A backend. Begin is given what is authenticated only; pieces of the payload follow, none of them empty. `out` is null for
  // kAuthenticate.
  virtual void Begin(Direction direction, const Nonce& nonce, absl::Span<const unsigned char> header) = 0;
  virtual void Update(Direction direction, const unsigned char* in, size_t bytes, unsigned char* out) = 0;
  virtual void FinishSealing(unsigned char* tag) = 0;
  virtual bool FinishOpening(const unsigned char* tag) = 0;

  // Returns the payload's length.
  size_t Pass(Direction direction, uint64_t sequence, absl::Span<const unsigned char> header,
              absl::Span<const iovec> payload, unsigned char* out);

  const CipherMode mode_;
  const Nonce nonce_base_;
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_CIPHER_H_

// The keys of a connection's records, of each way by itself.
//
//   secret_0 = Channel::Export     secret_(n+1) = HKDF-Expand(secret_n, "next", 48)
//   key_n = HKDF-Expand(secret_n, "key", 32), the base of its nonces HKDF-Expand(secret_n, "iv", 12)

#ifndef TRANSPORT_LINK_RECORD_KEYS_H_
#define TRANSPORT_LINK_RECORD_KEYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "transport/secure/channel.h"
#include "transport/secure/cipher.h"
#include "transport/secure/credentials.h"

namespace lockstep {

// 64 GiB of full records: far from the 2^24.5 full records of 16 KiB that RFC 8446, section 5.5, allows a key of AES-GCM.
inline constexpr uint64_t kRecordsPerKey = uint64_t{1} << 20;

// From which the keys of one direction follow. Overwritten with zeros at its end.
class RecordSecret {
 public:
  static constexpr size_t kBytes = 48;

  // What both ends of a channel derive alike; another one for each context.
  static RecordSecret Of(const Channel& channel, absl::string_view context);
  explicit RecordSecret(const std::array<char, kBytes>& bytes) : bytes_(bytes) {}
  RecordSecret(const RecordSecret&) = default;
  RecordSecret& operator=(const RecordSecret&) = default;
  ~RecordSecret();

  DirectionKey Key() const;
  // From which the next key follows.
  void Step();

 private:
  RecordSecret() = default;
  void Expand(absl::string_view label, void* out, size_t bytes) const;

  std::array<char, kBytes> bytes_;
};

// The records of one direction as both ends count them. Externally synchronised.
class RecordSequence {
 public:
  // The level is not kNone.
  RecordSequence(SecurityLevel level, const RecordSecret& secret, uint64_t records_per_key);

  bool encrypts() const { return mode_ == CipherMode::kEncrypt; }
  uint64_t number() const { return number_; }
  uint32_t key() const { return key_; }
  RecordCipher* cipher() const { return cipher_.get(); }
  // The next record is due, under the next key if that is the time for it.
  void Step();

 private:
  void MakeCipher();

  const CipherMode mode_;
  const uint64_t records_per_key_;
  RecordSecret secret_;
  std::unique_ptr<RecordCipher> cipher_;
  uint64_t number_ = 0;
  uint32_t key_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_RECORD_KEYS_H_

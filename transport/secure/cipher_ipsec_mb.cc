// RecordCipher by intel-ipsec-mb, and why it may be trusted: because it agrees with OpenSSL.

#include <openssl/crypto.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/secure/cipher.h"
#include "transport/secure/cipher_backends.h"

namespace lockstep {
namespace {

class IpsecMbCipher final : public RecordCipher {
 public:
  IpsecMbCipher(const ipsec_mb::Api& api, CipherMode mode, const DirectionKey& key)
      : RecordCipher(mode, key), api_(api) {
    api_.gcm_pre(key.key.data(), &key_);
  }
  ~IpsecMbCipher() override {
    explicit_bzero(&key_, sizeof(key_));
    explicit_bzero(&record_, sizeof(record_));
  }

 private:
  void Begin(Direction /*direction*/, const Nonce& nonce, absl::Span<const unsigned char> header) override {
    if (mode() == CipherMode::kEncrypt) {
      api_.gcm_init(&key_, &record_, nonce.data(), header.data(), header.size());
      return;
    }
    api_.gmac_init(&key_, &record_, nonce.data(), nonce.size());
    if (!header.empty()) api_.gmac_update(&key_, &record_, header.data(), header.size());
  }

  void Update(Direction direction, const unsigned char* in, size_t bytes, unsigned char* out) override {
    if (mode() == CipherMode::kAuthenticate) {
      api_.gmac_update(&key_, &record_, in, bytes);
    } else {
      (direction == Direction::kSeal ? api_.gcm_enc_update : api_.gcm_dec_update)(&key_, &record_, out, in, bytes);
    }
  }

  void FinishSealing(unsigned char* tag) override { Finish(api_.gcm_enc_finalize, tag); }

  bool FinishOpening(const unsigned char* tag) override {
    unsigned char expected[kTagBytes];
    Finish(api_.gcm_dec_finalize, expected);
    return CRYPTO_memcmp(expected, tag, kTagBytes) == 0;
  }

  void Finish(decltype(ipsec_mb::Api::gcm_enc_finalize) gcm, unsigned char* tag) {
    (mode() == CipherMode::kEncrypt ? gcm : api_.gmac_finalize)(&key_, &record_, tag, kTagBytes);
  }

  const ipsec_mb::Api& api_;
  ipsec_mb::Key key_;
  ipsec_mb::Context record_ = {};
};

// Around the widths of the library's loops: a block, 16 and 48 blocks. And those of records.
constexpr size_t kLengths[] = {0, 1, 15, 16, 17, 255, 256, 257, 768, 1000, 4096 + 3, 16384, 65536 + 48};

// Seals with `from`, and opens with `to`, a payload in two pieces.
class Agreement {
 public:
  Agreement(CipherMode mode, size_t bytes) : mode_(mode), payload_(bytes), sealed_(bytes), opened_(bytes) {
    for (size_t i = 0; i < bytes; ++i) payload_[i] = static_cast<unsigned char>(i * 31 + i / 251);
  }

  bool Holds(RecordCipher* from, RecordCipher* to) {
    const bool encrypts = mode_ == CipherMode::kEncrypt;
    const uint64_t sequence = payload_.size();
    unsigned char tag[RecordCipher::kTagBytes] = {};
    from->Seal(sequence, kHeader, InPieces(&payload_), encrypts ? sealed_.data() : nullptr, tag);
    std::vector<unsigned char>* const arrived = encrypts ? &sealed_ : &payload_;
    unsigned char* const out = encrypts ? opened_.data() : nullptr;
    if (!to->Open(sequence, kHeader, InPieces(arrived), tag, out) || (encrypts && opened_ != payload_)) return false;
    tag[sequence % sizeof(tag)] ^= 1;
    return !to->Open(sequence, kHeader, InPieces(arrived), tag, out);
  }

 private:
  static constexpr unsigned char kHeader[16] = {7, 1, 255};

  static std::array<iovec, 2> InPieces(std::vector<unsigned char>* bytes) {
    const size_t cut = bytes->size() / 3;
    return {{{bytes->data(), cut}, {bytes->data() + cut, bytes->size() - cut}}};
  }

  const CipherMode mode_;
  std::vector<unsigned char> payload_, sealed_, opened_;
};

absl::Status CompareWithOpenSsl(const IpsecMbLibrary& library) {
  DirectionKey key;
  for (size_t i = 0; i < key.key.size(); ++i) key.key[i] = static_cast<unsigned char>(i * 37 + 11);
  for (size_t i = 0; i < key.nonce_base.size(); ++i) key.nonce_base[i] = static_cast<unsigned char>(i * 59 + 3);
  for (const CipherMode mode : {CipherMode::kAuthenticate, CipherMode::kEncrypt}) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<RecordCipher> openssl, NewOpenSslCipher(mode, key));
    const std::unique_ptr<RecordCipher> ipsec_mb = NewIpsecMbCipher(library, mode, key);
    for (const size_t bytes : kLengths) {
      Agreement agreement(mode, bytes);
      if (agreement.Holds(openssl.get(), ipsec_mb.get()) && agreement.Holds(ipsec_mb.get(), openssl.get())) continue;
      return absl::UnavailableError(
          absl::StrCat(library.VersionName(), " disagrees with OpenSSL over a record of ", bytes, " bytes, ",
                       mode == CipherMode::kEncrypt ? "encrypted" : "authenticated", ": it is not used"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<RecordCipher> NewIpsecMbCipher(const IpsecMbLibrary& library, CipherMode mode,
                                               const DirectionKey& key) {
  return std::make_unique<IpsecMbCipher>(library.api(), mode, key);
}

absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>> LoadAgreeingIpsecMb(const std::string& file) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<const IpsecMbLibrary> library, IpsecMbLibrary::Load(file));
  LOCKSTEP_RETURN_IF_ERROR(CompareWithOpenSsl(*library));
  return library;
}

absl::StatusOr<const IpsecMbLibrary*> TheIpsecMb() {
  static const auto* const result = new absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>>(
      []() -> absl::StatusOr<std::unique_ptr<const IpsecMbLibrary>> {
        LOCKSTEP_RETURN_IF_ERROR(IpsecMbLibrary::CheckProcessor());
        return LoadAgreeingIpsecMb(IpsecMbLibrary::kFile);
      }());
  LOCKSTEP_RETURN_IF_ERROR(result->status());
  return (*result)->get();
}

}  // namespace lockstep

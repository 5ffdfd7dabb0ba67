// RecordCipher by OpenSSL's EVP interface. A cipher context keeps the expanded key; a record gives it a nonce only.

#include <openssl/evp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/secure/cipher.h"
#include "transport/secure/cipher_backends.h"
#include "transport/secure/openssl.h"

namespace lockstep {
namespace {

struct Free {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }  // overwrites the key
};

class OpenSslCipher final : public RecordCipher {
 public:
  OpenSslCipher(CipherMode mode, const DirectionKey& key, std::unique_ptr<EVP_CIPHER_CTX, Free> context)
      : RecordCipher(mode, key), context_(std::move(context)) {}

 private:
  void Begin(Direction direction, const Nonce& nonce, absl::Span<const unsigned char> header) override {
    const int seals = direction == Direction::kSeal ? 1 : 0;
    Must(EVP_CipherInit_ex2(context_.get(), nullptr, nullptr, nonce.data(), seals, nullptr));
    if (!header.empty()) Update(direction, header.data(), header.size(), nullptr);
  }

  // What has nowhere to go to is authenticated only.
  void Update(Direction /*direction*/, const unsigned char* in, size_t bytes, unsigned char* out) override {
    int written = 0;
    Must(EVP_CipherUpdate(context_.get(), out, &written, in, static_cast<int>(bytes)));
  }

  void FinishSealing(unsigned char* tag) override {
    Must(Finish());
    Must(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag));
  }

  bool FinishOpening(const unsigned char* tag) override {
    Must(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTagBytes, const_cast<unsigned char*>(tag)));
    return Finish() == 1;
  }

  int Finish() {
    unsigned char none[16];
    int written = 0;
    return EVP_CipherFinal_ex(context_.get(), none, &written);
  }

  // Nothing else can fail with arguments such as these.
  static void Must(int result) { LOCKSTEP_CHECK(result == 1) << "OpenSSL: " << OpenSslError(); }

  const std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RecordCipher>> NewOpenSslCipher(CipherMode mode, const DirectionKey& key) {
  const std::unique_ptr<EVP_CIPHER, Free> cipher(EVP_CIPHER_fetch(OpenSslLibrary(), "AES-256-GCM", nullptr));
  std::unique_ptr<EVP_CIPHER_CTX, Free> state(EVP_CIPHER_CTX_new());
  if (cipher == nullptr || state == nullptr ||
      EVP_CipherInit_ex2(state.get(), cipher.get(), key.key.data(), key.nonce_base.data(), 1, nullptr) != 1) {
    return absl::InternalError(absl::StrCat("AES-256-GCM of OpenSSL: ", OpenSslError()));
  }
  return std::make_unique<OpenSslCipher>(mode, key, std::move(state));
}

}  // namespace lockstep

// A libIPSec_MB for tests, whose answers are OpenSSL's. LockstepFakeIpsecMb sets its version, and by a literal how it misbehaves:
//   "tag"     tags are wrong
//   "cipher"  ciphered bytes are wrong, and their tags right
//   "long"    tags of records of more than 32 KiB are wrong
// LOCKSTEP_FAKE_LACKS_GMAC leaves a function out.

#include <openssl/evp.h>

#include <cstdint>
#include <string_view>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

unsigned version = 0x10300;
std::string_view misbehaviour;

// In the caller's structures.
struct Key {
  unsigned char bytes[32];
};
struct Record {
  EVP_CIPHER_CTX* seals;
  EVP_CIPHER_CTX* opens;
  uint64_t bytes;
};

void Begin(const Key* key, Record* record, const uint8_t* nonce) {
  *record = {EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_new(), 0};
  EVP_EncryptInit_ex(record->seals, EVP_aes_256_gcm(), nullptr, key->bytes, nonce);
  EVP_DecryptInit_ex(record->opens, EVP_aes_256_gcm(), nullptr, key->bytes, nonce);
}

void Seal(Record* record, uint8_t* out, const uint8_t* in, uint64_t bytes) {
  int written = 0;
  EVP_EncryptUpdate(record->seals, out, &written, in, static_cast<int>(bytes));
  record->bytes += bytes;
}

void End(Record* record, uint8_t* tag, uint64_t tag_bytes) {
  unsigned char none[16];
  int written = 0;
  EVP_EncryptFinal_ex(record->seals, none, &written);
  EVP_CIPHER_CTX_ctrl(record->seals, EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag_bytes), tag);
  EVP_CIPHER_CTX_free(record->seals);
  EVP_CIPHER_CTX_free(record->opens);
  if (misbehaviour == "tag" || (misbehaviour == "long" && record->bytes > 32768)) tag[0] ^= 0x80;
}

}  // namespace

EXPORTED void LockstepFakeIpsecMb(unsigned new_version, const char* how) {
  version = new_version;
  misbehaviour = how;
}

EXPORTED unsigned imb_get_version() { return version; }

EXPORTED void aes_gcm_pre_256_vaes_avx512(const void* key, Key* expanded) { *expanded = *static_cast<const Key*>(key); }

EXPORTED void aes_gcm_init_256_vaes_avx512(const Key* key, Record* record, const uint8_t* nonce, const uint8_t* aad,
                                           uint64_t aad_bytes) {
  Begin(key, record, nonce);
  int written = 0;
  EVP_EncryptUpdate(record->seals, nullptr, &written, aad, static_cast<int>(aad_bytes));
}

EXPORTED void aes_gcm_enc_256_update_vaes_avx512(const Key*, Record* record, uint8_t* out, const uint8_t* in,
                                                 uint64_t bytes) {
  Seal(record, out, in, bytes);
  if (misbehaviour == "cipher") out[bytes - 1] ^= 1;
}

EXPORTED void aes_gcm_enc_256_finalize_vaes_avx512(const Key*, Record* record, uint8_t* tag, uint64_t tag_bytes) {
  End(record, tag, tag_bytes);
}

// EVP compares tags and does not tell them. So what was opened is sealed again.
EXPORTED void aes_gcm_dec_256_update_vaes_avx512(const Key*, Record* record, uint8_t* out, const uint8_t* in,
                                                 uint64_t bytes) {
  int written = 0;
  EVP_DecryptUpdate(record->opens, out, &written, in, static_cast<int>(bytes));
  std::vector<uint8_t> sealed(bytes);
  Seal(record, sealed.data(), out, bytes);
}

EXPORTED void aes_gcm_dec_256_finalize_vaes_avx512(const Key*, Record* record, uint8_t* tag, uint64_t tag_bytes) {
  End(record, tag, tag_bytes);
}

EXPORTED void imb_aes_gmac_init_256_vaes_avx512(const Key* key, Record* record, const uint8_t* nonce, uint64_t) {
  Begin(key, record, nonce);
}

#if !defined(LOCKSTEP_FAKE_LACKS_GMAC)
EXPORTED void imb_aes_gmac_update_256_vaes_avx512(const Key*, Record* record, const uint8_t* in, uint64_t bytes) {
  Seal(record, nullptr, in, bytes);
}
#endif

EXPORTED void imb_aes_gmac_finalize_256_vaes_avx512(const Key*, Record* record, uint8_t* tag, uint64_t tag_bytes) {
  End(record, tag, tag_bytes);
}

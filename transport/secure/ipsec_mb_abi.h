// The part of intel-ipsec-mb's binary interface that we use, in plain types: the library is found when a program runs, so we build without
// its header. After lib/include/gcm.h of versions 1.0 to 1.5 (https://github.com/intel/intel-ipsec-mb), which declare these alike.
//
// These are the direct entry points for processors with AES and carry-less multiplication on vectors of 512 bits. Those for other
// processors are left out: there OpenSSL is as fast, or faster.

#ifndef TRANSPORT_SECURE_IPSEC_MB_ABI_H_
#define TRANSPORT_SECURE_IPSEC_MB_ABI_H_

#include <cstdint>

namespace lockstep::ipsec_mb {

// IMB_VERSION
constexpr unsigned VersionCode(unsigned major, unsigned minor, unsigned patch) {
  return major << 16 | minor << 8 | patch;
}

// struct gcm_key_data, of 1008 bytes in 1.3: the expanded key and powers of the hash key.
struct alignas(64) Key {
  unsigned char bytes[4096];
};

// struct gcm_context_data, of 88 bytes in 1.3: a record that goes on.
struct alignas(64) Context {
  unsigned char bytes[1024];
};

// Without "aes_gcm_" or "imb_aes_", and "256" and "vaes_avx512". None keeps a pointer. Ciphered bytes may go where they came from. Nonces
// have 12 bytes.
struct Api {
  unsigned (*get_version)();
  void (*gcm_pre)(const void* key, Key* expanded);
  void (*gcm_init)(const Key* key, Context* context, const uint8_t* nonce, const uint8_t* aad, uint64_t aad_bytes);
  void (*gcm_enc_update)(const Key* key, Context* context, uint8_t* out, const uint8_t* in, uint64_t bytes);
  void (*gcm_enc_finalize)(const Key* key, Context* context, uint8_t* tag, uint64_t tag_bytes);
  void (*gcm_dec_update)(const Key* key, Context* context, uint8_t* out, const uint8_t* in, uint64_t bytes);
  void (*gcm_dec_finalize)(const Key* key, Context* context, uint8_t* tag, uint64_t tag_bytes);
  void (*gmac_init)(const Key* key, Context* context, const uint8_t* nonce, uint64_t nonce_bytes);
  void (*gmac_update)(const Key* key, Context* context, const uint8_t* in, uint64_t bytes);
  void (*gmac_finalize)(const Key* key, Context* context, uint8_t* tag, uint64_t tag_bytes);
};

}  // namespace lockstep::ipsec_mb

#endif  // TRANSPORT_SECURE_IPSEC_MB_ABI_H_

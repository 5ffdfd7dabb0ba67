#include "transport/secure/hkdf.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include "base/check.h"
#include "transport/secure/openssl.h"

namespace lockstep {

void HkdfExpand(absl::string_view key, absl::string_view label, void* out, size_t bytes) {
  // Lives as long as the process.
  static EVP_KDF* const hkdf = EVP_KDF_fetch(OpenSslLibrary(), "HKDF", nullptr);
  LOCKSTEP_CHECK(hkdf != nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(hkdf);
  LOCKSTEP_CHECK(context != nullptr);
  int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
  char digest[] = "SHA384";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(key.data()), key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(label.data()), label.size()),
      OSSL_PARAM_construct_end()};
  LOCKSTEP_CHECK(EVP_KDF_derive(context, static_cast<unsigned char*>(out), bytes, parameters) == 1);
  EVP_KDF_CTX_free(context);
}

}  // namespace lockstep

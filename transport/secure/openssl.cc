#include "transport/secure/openssl.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace lockstep {

OSSL_LIB_CTX* OpenSslLibrary() {
  static OSSL_LIB_CTX* const library = [] {
    LOCKSTEP_CHECK(OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) == 1);
    OSSL_LIB_CTX* const made = OSSL_LIB_CTX_new();
    LOCKSTEP_CHECK(made != nullptr);
    return made;
  }();
  return library;
}

std::string OpenSslVersion() { return absl::StrCat("OpenSSL ", OpenSSL_version(OPENSSL_VERSION_STRING)); }

std::string OpenSslError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "";
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : absl::StrCat("error ", error);
}

}  // namespace lockstep

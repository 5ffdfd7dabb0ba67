// Our use of OpenSSL, in one place. For the .cc files of this folder; who it is, for all.
//
// OpenSSL is linked statically with its symbols hidden, so that this copy and the one of Python or of another library in the process
// know nothing of each other. It reads no configuration file and registers nothing to run at exit: threads of ours may still use it.

#ifndef TRANSPORT_SECURE_OPENSSL_H_
#define TRANSPORT_SECURE_OPENSSL_H_

#include <string>

// OpenSSL's own declaration, so that who includes this needs none of its headers.
typedef struct ossl_lib_ctx_st OSSL_LIB_CTX;

namespace lockstep {

// The library context of this runtime, made at the first call and never freed. Any thread.
OSSL_LIB_CTX* OpenSslLibrary();

// "OpenSSL 3.0.19".
std::string OpenSslVersion();

// What OpenSSL's queue of errors of this thread says of the first of them, "" for none; empties the queue.
std::string OpenSslError();

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_OPENSSL_H_

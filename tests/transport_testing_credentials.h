// Credentials for tests of transports.

#ifndef TESTS_TRANSPORT_TESTING_CREDENTIALS_H_
#define TESTS_TRANSPORT_TESTING_CREDENTIALS_H_

#include <string>

#include "base/check.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"

namespace lockstep {

// With a secret of the test's own: another one for each `fill`.
inline Credentials TestCredentials(SecurityLevel level, char fill = 's') {
  Credentials credentials;
  credentials.level = level;
  if (level == SecurityLevel::kNone) return credentials;
  const auto secret = Secret::FromBytes(std::string(Secret::kBytes, fill));
  LOCKSTEP_CHECK(secret.ok()) << secret.status();
  credentials.secret = *secret;
  credentials.source = "the test";
  return credentials;
}

}  // namespace lockstep

#endif  // TESTS_TRANSPORT_TESTING_CREDENTIALS_H_

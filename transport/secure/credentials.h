// What a process has to show to its peers, and asks of them.

#ifndef TRANSPORT_SECURE_CREDENTIALS_H_
#define TRANSPORT_SECURE_CREDENTIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/secure/secret.h"

namespace lockstep {

// How connections are protected. The numbers are part of the wire format.
enum class SecurityLevel : uint8_t {
  kNone = 0,          // not at all: whoever reaches a port is believed
  kAuthenticate = 1,  // each side proves that it has the secret; data between hosts cannot be changed unnoticed
  kEncrypt = 2,       // data cannot be read either
};

// "none", "authenticate", "encrypt": in the order of the numbers.
inline constexpr const char* kSecurityLevelNames[] = {"none", "authenticate", "encrypt"};
inline const char* Name(SecurityLevel level) { return kSecurityLevelNames[static_cast<int>(level)]; }

// LOCKSTEP_SECURITY, or authenticate where it is not set.
// ERRORS  INVALID_ARGUMENT  names the variable, its value and what it takes
absl::StatusOr<SecurityLevel> SecurityLevelOfEnvironment();

// Regular value type. Without a secret the level is kNone.
struct Credentials {
  SecurityLevel level = SecurityLevel::kNone;
  std::shared_ptr<const Secret> secret;
  // Where the secret is from, for errors: "LOCKSTEP_SECRET_FILE=/etc/s".
  std::string source;
};

}  // namespace lockstep

#endif  // TRANSPORT_SECURE_CREDENTIALS_H_

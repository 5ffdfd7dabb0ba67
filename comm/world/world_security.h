// How a world is protected, as options and the environment say it. docs/security.md has the whole.

#ifndef COMM_WORLD_WORLD_SECURITY_H_
#define COMM_WORLD_WORLD_SECURITY_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/world/world.h"
#include "transport/secure/credentials.h"

namespace lockstep {

struct WorldSecurity {
  SecurityLevel level = SecurityLevel::kAuthenticate;
  // Where the job's secret is, and which option or variable says so. Empty: found while the ranks meet.
  std::string secret_file;
  std::string secret_file_from;
  // Data inside a host is protected as between hosts, where it goes over TCP.
  bool records_on_one_host = false;
  // Encryption is asked for, and these may go without all the same.
  bool unprotected_ofi = false;
  bool unprotected_nccl = false;
};

// ERRORS  INVALID_ARGUMENT  names the option or variable, its value and what it takes
absl::StatusOr<WorldSecurity> ReadSecurity(const WorldOptions& options);

// The level, and the secret of the file if there is one.
// ERRORS  those of Secret::ReadFile, which name the option or variable as well
absl::StatusOr<Credentials> ReadCredentials(const WorldSecurity& security);

// FAILED_PRECONDITION where encryption is asked for, and data goes by a `way` that cannot be protected and is not `allowed` to go without.
// The way is named as errors name it: "ofi", as the option transport does, and "NCCL". `name` is what LOCKSTEP_SECURITY_UNPROTECTED calls
// it: "ofi", "nccl".
absl::Status CheckProtected(const WorldSecurity& security, const char* way, const char* name, bool allowed);

// "security: authenticate, by a secret from LOCKSTEP_SECRET_FILE=/etc/s".
std::string Describe(const WorldSecurity& security, const std::string& source);

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_SECURITY_H_

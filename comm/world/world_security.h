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

// Ways for data that Lockstep cannot protect.
enum class Unprotected { kOfi, kNccl };

// FAILED_PRECONDITION where encryption is asked for, and LOCKSTEP_SECURITY_UNPROTECTED does not let data go that way without.
absl::Status CheckProtected(const WorldSecurity& security, Unprotected way);

// What rank 0 says where data goes that way; "" at level none, where none is protected.
std::string UnprotectedText(const WorldSecurity& security, Unprotected way);

// "security: authenticate by a secret from LOCKSTEP_SECRET_FILE=/etc/s; data is tagged between hosts". `over_ofi`: all of it goes that
// way, and is not protected.
std::string Describe(const WorldSecurity& security, const std::string& source, bool over_ofi);

}  // namespace lockstep

#endif  // COMM_WORLD_WORLD_SECURITY_H_

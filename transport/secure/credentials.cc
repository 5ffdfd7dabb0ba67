#include "transport/secure/credentials.h"

#include "absl/types/optional.h"
#include "base/env.h"
#include "base/status.h"

namespace lockstep {

absl::StatusOr<SecurityLevel> SecurityLevelOfEnvironment() {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<int> level, GetEnvWord("LOCKSTEP_SECURITY", kSecurityLevelNames));
  return level.has_value() ? static_cast<SecurityLevel>(*level) : SecurityLevel::kAuthenticate;
}

}  // namespace lockstep

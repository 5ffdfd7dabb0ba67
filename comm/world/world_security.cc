#include "comm/world/world_security.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/clipped.h"
#include "base/env.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr char kUnprotected[] = "LOCKSTEP_SECURITY_UNPROTECTED";

absl::StatusOr<SecurityLevel> ReadLevel(const std::string& option) {
  if (option.empty()) return SecurityLevelOfEnvironment();
  const auto found = std::find(std::begin(kSecurityLevelNames), std::end(kSecurityLevelNames), option);
  if (found == std::end(kSecurityLevelNames)) {
    return absl::InvalidArgumentError(
        absl::StrCat("security is '", Clipped(option), "', not ", absl::StrJoin(kSecurityLevelNames, ", ")));
  }
  return static_cast<SecurityLevel>(found - std::begin(kSecurityLevelNames));
}

const char* NameOf(Unprotected way) { return way == Unprotected::kOfi ? "libfabric" : "NCCL"; }

}  // namespace

absl::StatusOr<WorldSecurity> ReadSecurity(const WorldOptions& options) {
  WorldSecurity security;
  LOCKSTEP_ASSIGN_OR_RETURN(security.level, ReadLevel(options.security));
  security.secret_file = options.secret_file;
  security.secret_file_from = "secret_file";
  if (security.secret_file.empty()) {
    security.secret_file = GetEnv("LOCKSTEP_SECRET_FILE").value_or("");
    security.secret_file_from = "LOCKSTEP_SECRET_FILE";
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<bool> local, GetEnvBool("LOCKSTEP_SECURITY_LOCAL"));
  security.records_on_one_host = local.value_or(false);
  const std::string unprotected = GetEnv(kUnprotected).value_or("");
  for (const absl::string_view name : absl::StrSplit(unprotected, ',', absl::SkipEmpty())) {
    if (name != "ofi" && name != "nccl") {
      return absl::InvalidArgumentError(absl::StrCat("environment variable ", kUnprotected, "=\"", Clipped(unprotected),
                                                     "\": takes ofi, nccl, or both with a comma between"));
    }
    (name == "ofi" ? security.unprotected_ofi : security.unprotected_nccl) = true;
  }
  return security;
}

absl::StatusOr<Credentials> ReadCredentials(const WorldSecurity& security) {
  Credentials credentials;
  credentials.level = security.level;
  if (security.level == SecurityLevel::kNone || security.secret_file.empty()) return credentials;
  credentials.source = absl::StrCat(security.secret_file_from, "=", security.secret_file);
  auto secret = Secret::ReadFile(security.secret_file);
  if (!secret.ok()) return Annotate(secret.status(), security.secret_file_from);
  credentials.secret = *std::move(secret);
  return credentials;
}

absl::Status CheckProtected(const WorldSecurity& security, Unprotected way) {
  const bool ofi = way == Unprotected::kOfi;
  if (security.level != SecurityLevel::kEncrypt || (ofi ? security.unprotected_ofi : security.unprotected_nccl)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("security is encrypt, and what goes over ", NameOf(way),
                                                    " cannot be encrypted by Lockstep; ", kUnprotected, "=",
                                                    ofi ? "ofi" : "nccl", " lets it go in the clear"));
}

std::string UnprotectedText(const WorldSecurity& security, Unprotected way) {
  if (security.level == SecurityLevel::kNone) return "";
  return absl::StrCat("security is ", Name(security.level), ", and data over ", NameOf(way),
                      " is not protected: who is on that network can read and change it");
}

std::string Describe(const WorldSecurity& security, const std::string& source, bool over_ofi) {
  if (security.level == SecurityLevel::kNone) return "security: none: whoever reaches a port of this job is believed";
  const std::string text = absl::StrCat("security: ", Name(security.level), " by a secret from ", source, "; data ");
  if (over_ofi) return absl::StrCat(text, "over ", NameOf(Unprotected::kOfi), " is not protected");
  if (security.level == SecurityLevel::kEncrypt) return absl::StrCat(text, "is encrypted over TCP");
  return absl::StrCat(text, "is tagged between hosts",
                      security.records_on_one_host ? ", and inside a host over TCP" : "");
}

}  // namespace lockstep

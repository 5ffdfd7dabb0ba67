#include "base/env.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clipped.h"

namespace lockstep {
namespace {

constexpr absl::string_view kPrefix = "LOCKSTEP_";

constexpr const char* kVariables[] = {
    "LOCKSTEP_ALGORITHM",
    "LOCKSTEP_ARM64_ROOT",
    "LOCKSTEP_BAZEL",
    "LOCKSTEP_CHECKED",
    "LOCKSTEP_CHECK_OUTPUT",
    "LOCKSTEP_CHUNK_BYTES",
    "LOCKSTEP_CPU",
    "LOCKSTEP_DETERMINISTIC",
    "LOCKSTEP_DEVICE_BACKEND",
    "LOCKSTEP_FLIGHT_RECORDS",
    "LOCKSTEP_HOST_ID",
    "LOCKSTEP_INTERFACE",
    "LOCKSTEP_JOB_ID",
    "LOCKSTEP_LOCAL_RANK",
    "LOCKSTEP_LOCAL_WORLD_SIZE",
    "LOCKSTEP_LOG",
    "LOCKSTEP_NCCL_LIBRARY",
    "LOCKSTEP_NO_APT",
    "LOCKSTEP_OFI_DOMAIN",
    "LOCKSTEP_OFI_LIBRARY",
    "LOCKSTEP_OFI_PROVIDER",
    "LOCKSTEP_PEER_TIMEOUT_MS",
    "LOCKSTEP_PORTS",
    "LOCKSTEP_RANK",
    "LOCKSTEP_REPORT_FOLDER",
    "LOCKSTEP_RUN",
    "LOCKSTEP_SECRET_FILE",
    "LOCKSTEP_SECURITY",
    "LOCKSTEP_SECURITY_LOCAL",
    "LOCKSTEP_SECURITY_UNPROTECTED",
    "LOCKSTEP_STORE",
    "LOCKSTEP_STORE_SERVED",
    "LOCKSTEP_TCP_CONGESTION",
    "LOCKSTEP_TCP_RECEIVE_BUFFER",
    "LOCKSTEP_TCP_SEND_BUFFER",
    "LOCKSTEP_TCP_SOCKETS",
    "LOCKSTEP_TCP_ZERO_COPY",
    "LOCKSTEP_TIMEOUT_MS",
    "LOCKSTEP_TRACE",
    "LOCKSTEP_TRANSPORT",
    "LOCKSTEP_WORLD_SIZE",
};

absl::Status BadValue(absl::string_view name, absl::string_view value, absl::string_view takes) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, "=\"", Clipped(value), "\": takes ", takes));
}

}  // namespace

absl::Span<const char* const> EnvironmentVariables() { return kVariables; }

absl::optional<std::string> GetEnv(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr || *value == '\0') return absl::nullopt;
  return std::string(value);
}

absl::StatusOr<absl::optional<int>> GetEnvWord(absl::string_view name, absl::Span<const char* const> words) {
  const absl::optional<std::string> text = GetEnv(name);
  if (!text.has_value()) return absl::optional<int>();
  const auto found = std::find(words.begin(), words.end(), absl::string_view(*text));
  if (found == words.end()) return BadValue(name, *text, absl::StrJoin(words, ", "));
  return absl::optional<int>(found - words.begin());
}

bool ParseInteger(absl::string_view text, int64_t* value) {
  const absl::string_view digits = text.substr(absl::StartsWith(text, "-") ? 1 : 0);
  // SimpleAtoi takes white space and a plus, too.
  return !digits.empty() && std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value);
}

absl::StatusOr<absl::optional<int64_t>> GetEnvInt(absl::string_view name, int64_t min, int64_t max) {
  const absl::optional<std::string> text = GetEnv(name);
  if (!text.has_value()) return absl::optional<int64_t>();
  int64_t value = 0;
  if (!ParseInteger(*text, &value) || value < min || value > max) {
    return BadValue(name, *text, absl::StrCat("an integer from ", min, " to ", max));
  }
  return absl::optional<int64_t>(value);
}

absl::StatusOr<absl::optional<bool>> GetEnvBool(absl::string_view name) {
  const absl::optional<std::string> text = GetEnv(name);
  if (!text.has_value()) return absl::optional<bool>();
  for (const char* word : {"1", "true", "yes", "on"}) {
    if (absl::EqualsIgnoreCase(*text, word)) return absl::optional<bool>(true);
  }
  for (const char* word : {"0", "false", "no", "off"}) {
    if (absl::EqualsIgnoreCase(*text, word)) return absl::optional<bool>(false);
  }
  return BadValue(name, *text, "0 or 1, false or true, no or yes, off or on");
}

std::vector<std::string> UnknownEnvironmentVariables() {
  std::vector<std::string> unknown;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const absl::string_view name(*entry, std::strcspn(*entry, "="));
    const bool known = absl::StartsWith(name, "LOCKSTEP_TEST_") ||
                       std::find(std::begin(kVariables), std::end(kVariables), name) != std::end(kVariables);
    if (absl::StartsWith(name, kPrefix) && !known) unknown.emplace_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

}  // namespace lockstep

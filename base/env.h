// The environment, read in one place. docs/environment.md describes every LOCKSTEP_* variable.
//
// A value that cannot be parsed is INVALID_ARGUMENT naming the variable, its value and what it takes. Variables are read
// when a world, or a reducer, is created, not cached: an embedder may set them from code.

#ifndef BASE_ENV_H_
#define BASE_ENV_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace lockstep {

// The names of all LOCKSTEP_* variables, sorted: those of docs/environment.md, as a test checks.
absl::Span<const char* const> EnvironmentVariables();

// The value of a variable of any family; nothing when unset. An empty value counts as unset.
absl::optional<std::string> GetEnv(absl::string_view name);

// The index in `words` of the variable's value. Any other value is an error.
absl::StatusOr<absl::optional<int>> GetEnvWord(absl::string_view name, absl::Span<const char* const> words);

// Parses decimal digits, after a minus if the number is negative. False for any other text, and if the number does not
// fit in an int64_t.
bool ParseInteger(absl::string_view text, int64_t* value);

absl::StatusOr<absl::optional<int64_t>> GetEnvInt(absl::string_view name, int64_t min, int64_t max);
absl::StatusOr<absl::optional<bool>> GetEnvBool(absl::string_view name);  // 0/1, false/true, no/yes, off/on

// Names in this process's environment that begin with LOCKSTEP_ and are not ours: probably typing errors. Sorted.
std::vector<std::string> UnknownEnvironmentVariables();

}  // namespace lockstep

#endif  // BASE_ENV_H_

// Helpers around absl::Status. Which code to choose: docs/architecture.md, "Errors".

#ifndef BASE_STATUS_H_
#define BASE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// The same code with "context: " before the message. OK stays OK. Keeps what is attached to the error (base/error_info.h).
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// An error with another message, and perhaps another code. Keeps what is attached to it.
absl::Status Reworded(const absl::Status& status, absl::StatusCode code, absl::string_view message);
inline absl::Status Reworded(const absl::Status& status, absl::string_view message) {
  return Reworded(status, status.code(), message);
}

// What a failed system call says: "<attempt>: <strerror(error)>", with the code that tells the caller what to do
// (connection refused or reset, or an unreachable host: UNAVAILABLE; ETIMEDOUT: DEADLINE_EXCEEDED; EADDRINUSE:
// ALREADY_EXISTS; ENOENT: NOT_FOUND; EACCES, EPERM: PERMISSION_DENIED; ENOMEM, EMFILE, ENFILE: RESOURCE_EXHAUSTED;
// else INTERNAL).
absl::Status ErrnoStatus(int error, absl::string_view attempt);

namespace internal {
inline const absl::Status& AsStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}
}  // namespace internal

}  // namespace lockstep

// Returns from the enclosing function when `expression` (a Status) is not OK.
#define LOCKSTEP_RETURN_IF_ERROR(expression)                          \
  do {                                                                \
    if (auto lockstep_status = (expression); !lockstep_status.ok()) { \
      return ::lockstep::internal::AsStatus(lockstep_status);         \
    }                                                                 \
  } while (false)

// LOCKSTEP_ASSIGN_OR_RETURN(auto socket, Connect(address));
#define LOCKSTEP_ASSIGN_OR_RETURN(target, expression) \
  LOCKSTEP_ASSIGN_OR_RETURN_(LOCKSTEP_CONCAT_(lockstep_status_or_, __LINE__), target, expression)
#define LOCKSTEP_ASSIGN_OR_RETURN_(status_or, target, expression) \
  auto status_or = (expression);                                  \
  if (!status_or.ok()) return std::move(status_or).status();      \
  target = *std::move(status_or)
#define LOCKSTEP_CONCAT_(a, b) LOCKSTEP_CONCAT_INNER_(a, b)
#define LOCKSTEP_CONCAT_INNER_(a, b) a##b

#endif  // BASE_STATUS_H_

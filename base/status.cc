#include "base/status.h"

#include <sys/resource.h>

#include <cerrno>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace lockstep {

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  return Reworded(status, absl::StrCat(context, ": ", status.message()));
}

absl::Status Reworded(const absl::Status& status, absl::StatusCode code, absl::string_view message) {
  absl::Status reworded(code, message);
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) { reworded.SetPayload(type, payload); });
  return reworded;
}

absl::Status ErrnoStatus(int error, absl::string_view attempt) {
  char buffer[128];
  // The GNU strerror_r: thread-safe, and may return a static string instead of filling the buffer.
  std::string message = absl::StrCat(attempt, ": ", strerror_r(error, buffer, sizeof(buffer)));
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EAGAIN:
      return absl::UnavailableError(message);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(message);
    case EADDRINUSE:
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENOMEM:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": ", LimitsOnMemory()));
    case EMFILE: {
      rlimit limit = {};
      getrlimit(RLIMIT_NOFILE, &limit);
      return absl::ResourceExhaustedError(absl::StrCat(message, ": RLIMIT_NOFILE allows ", limit.rlim_cur));
    }
    case ENFILE:
    case ENOBUFS:
    case ENOSPC:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace lockstep

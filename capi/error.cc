#include "capi/error.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/fork.h"
#include "base/limits.h"

struct lockstep_error {
  lockstep_code code;
  std::string message;
  lockstep::ErrorInfo info;
};

namespace lockstep::capi {
namespace {

// absl's codes are gRPC's, as ours are, but for two that we never use.
lockstep_code ToCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnauthenticated:
      return LOCKSTEP_PERMISSION_DENIED;
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return static_cast<lockstep_code>(code);
    default:
      return LOCKSTEP_UNKNOWN;
  }
}

static_assert(static_cast<int>(absl::StatusCode::kAborted) == LOCKSTEP_ABORTED, "");
static_assert(static_cast<int>(absl::StatusCode::kDataLoss) == LOCKSTEP_DATA_LOSS, "");

lockstep_error* OutOfMemory() {
  static lockstep_error* const error = new lockstep_error{LOCKSTEP_RESOURCE_EXHAUSTED, "out of memory", {}};
  return error;
}

// Made while there is memory, so that there is something to return when there is none.
[[maybe_unused]] lockstep_error* const kOutOfMemoryMade = OutOfMemory();

}  // namespace

lockstep_error* ToError(const absl::Status& status) {
  if (status.ok()) return nullptr;
  try {
    return new lockstep_error{ToCode(status.code()), std::string(status.message()), GetErrorInfo(status)};
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

lockstep_error* CaughtError() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::system_error& error) {
    // The standard library throws it where a thread cannot be started.
    return ToError(absl::ResourceExhaustedError(absl::StrCat(error.what(), "; ", LimitsOnThreads())));
  } catch (const std::exception& error) {
    return ToError(absl::InternalError(error.what()));
  }
}

absl::Status TakeError(lockstep_error* error) {
  if (error == nullptr) return absl::OkStatus();
  const absl::Status status =
      WithErrorInfo(absl::Status(static_cast<absl::StatusCode>(error->code), error->message), error->info);
  lockstep_error_free(error);
  return status;
}

absl::Status NullArgument(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("argument '", name, "' is NULL"));
}

absl::StatusOr<std::chrono::milliseconds> ReadTimeout(int64_t timeout_ms, const char* name) {
  // Longer ones overflow as nanoseconds.
  constexpr int64_t kTimeoutMsMax = int64_t{100} * 365 * 24 * 3600 * 1000;
  if (timeout_ms < 0) return absl::InvalidArgumentError(absl::StrCat(name, " is negative"));
  return std::chrono::milliseconds(std::min(timeout_ms, kTimeoutMsMax));
}

absl::Status CheckFlag(int32_t flag, const char* name) {
  if (flag == 0 || flag == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", flag, ", and not 0 or 1"));
}

absl::Status CheckStructSize(size_t struct_size, const char* name) {
  if (struct_size >= sizeof(size_t)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ".struct_size is ", struct_size, ": LOCKSTEP_INIT sets it"));
}

char* CopyString(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

absl::Status CheckNotForked(uint64_t fork_generation, const char* handle) {
  if (fork_generation == ForkGeneration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this ", handle, " was made before fork() and cannot be used in the child, which may make its own"));
}

}  // namespace lockstep::capi

lockstep_code lockstep_error_code(const lockstep_error* error) { return error == nullptr ? LOCKSTEP_OK : error->code; }

const char* lockstep_error_message(const lockstep_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}

int32_t lockstep_error_failed_rank(const lockstep_error* error) {
  return error == nullptr ? -1 : error->info.failed_rank.value_or(-1);
}

const char* lockstep_error_collective(const lockstep_error* error) {
  return error == nullptr ? "" : error->info.collective.c_str();
}

int64_t lockstep_error_sequence(const lockstep_error* error) {
  if (error == nullptr || !error->info.sequence.has_value()) return -1;
  return static_cast<int64_t>(*error->info.sequence);
}

int64_t lockstep_error_bucket(const lockstep_error* error) {
  return error == nullptr ? -1 : error->info.bucket.value_or(-1);
}

int64_t lockstep_error_parameter(const lockstep_error* error) {
  return error == nullptr ? -1 : error->info.parameter.value_or(-1);
}

lockstep_error* lockstep_error_create(lockstep_code code, const char* message) {
  if (code == LOCKSTEP_OK) return nullptr;
  const bool known = code > LOCKSTEP_OK && code <= LOCKSTEP_DATA_LOSS;
  const auto status = static_cast<absl::StatusCode>(known ? code : LOCKSTEP_UNKNOWN);
  return lockstep::capi::Guard([&] { return absl::Status(status, message == nullptr ? "" : message); });
}

void lockstep_error_free(lockstep_error* error) {
  if (error != lockstep::capi::OutOfMemory()) delete error;
}

void lockstep_string_free(char* string) { std::free(string); }

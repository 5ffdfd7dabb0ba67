// How our statuses, and whatever the standard library throws, cross the C ABI.

#ifndef CAPI_ERROR_H_
#define CAPI_ERROR_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/default_floats.h"
#include "capi/lockstep.h"

namespace lockstep::capi {

// NULL for OK; else a new error, or a static one when there is no memory for it.
lockstep_error* ToError(const absl::Status& status);

// The status of an error that an embedder's callback returned. Frees the error.
absl::Status TakeError(lockstep_error* error);

// The error for the exception that is being handled.
lockstep_error* CaughtError();

// Runs `body`, which returns a Status; no exception leaves.
template <typename Body>
lockstep_error* Guard(Body&& body) {
  const DefaultFloats floats;
  try {
    return ToError(body());
  } catch (...) {
    return CaughtError();
  }
}

// "argument 'tensor' is NULL".
absl::Status NullArgument(const char* name);

// INVALID_ARGUMENT if it is negative.
absl::StatusOr<std::chrono::milliseconds> ReadTimeout(int64_t timeout_ms, const char* name = "timeout_ms");

// INVALID_ARGUMENT unless it is 0 or 1.
absl::Status CheckFlag(int32_t flag, const char* name);

// A malloc'ed copy for lockstep_string_free.
char* CopyString(const std::string& text);

// FAILED_PRECONDITION if the process has forked since the handle was made.
absl::Status CheckNotForked(uint64_t fork_generation, const char* handle);

// INVALID_ARGUMENT if the size cannot be that of a struct: the caller has not used LOCKSTEP_INIT.
absl::Status CheckStructSize(size_t struct_size, const char* name);

// Copies the options of a caller that may have been built with an older or newer header. Fields that the caller's header lacks keep
// their defaults.
// ERRORS  UNIMPLEMENTED  a field that this library lacks is not zero
template <typename Options>
absl::Status ReadOptions(const Options* given, const char* name, Options* options) {
  if (given == nullptr) return absl::OkStatus();
  const absl::Status size_said = CheckStructSize(given->struct_size, name);
  if (!size_said.ok()) return size_said;
  const size_t known = given->struct_size < sizeof(Options) ? given->struct_size : sizeof(Options);
  const char* const bytes = reinterpret_cast<const char*>(given);
  for (size_t i = known; i < given->struct_size; ++i) {
    if (bytes[i] != 0) {
      return absl::UnimplementedError(std::string(name) +
                                      ": a field is set that this version of the library does not know");
    }
  }
  __builtin_memcpy(options, given, known);
  options->struct_size = sizeof(Options);
  return absl::OkStatus();
}

// Copies as much of `filled` to the caller's struct, which may be of another version, as that has room for.
template <typename Struct>
absl::Status WriteStruct(const Struct& filled, const char* name, Struct* out) {
  const size_t room = out->struct_size;
  const absl::Status size_said = CheckStructSize(room, name);
  if (!size_said.ok()) return size_said;
  __builtin_memcpy(out, &filled, room < sizeof(Struct) ? room : sizeof(Struct));
  out->struct_size = room;
  return absl::OkStatus();
}

}  // namespace lockstep::capi

#endif  // CAPI_ERROR_H_

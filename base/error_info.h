// ErrorInfo: what an error is about, as data beside its text, so that programs need not parse the text.
//
// It is one payload of the absl::Status. Annotate and Reworded (base/status.h) keep it. Between ranks it travels as text
// (ToText).

#ifndef BASE_ERROR_INFO_H_
#define BASE_ERROR_INFO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace lockstep {

struct ErrorInfo {
  // The rank, in the world, that died, hangs, left, aborted or did something else than the others. If there are
  // several, the first named.
  absl::optional<int> failed_rank;
  absl::optional<int64_t> parameter;  // its index in the reducer's table
  // The operation that returned the error: "all_reduce", "send", ...; empty: none.
  std::string collective;
  absl::optional<uint64_t> sequence;  // of that collective; none where it was never started, and of messages
  absl::optional<int64_t> bucket;     // the reducer's

  bool empty() const;
  friend bool operator==(const ErrorInfo& a, const ErrorInfo& b) {
    return a.failed_rank == b.failed_rank && a.parameter == b.parameter && a.collective == b.collective &&
           a.sequence == b.sequence && a.bucket == b.bucket;
  }
};

// Adds `info` to the error's own: a field that is set stays, and a sequence number stays with its collective. OK stays OK.
absl::Status WithErrorInfo(absl::Status status, const ErrorInfo& info);

// Sets failed_rank, unless it is set already.
absl::Status WithFailedRank(absl::Status status, int rank);

// Inline, for what is called once for each gradient.
inline absl::Status WithParameter(absl::Status status, size_t index) {
  if (status.ok()) return status;
  ErrorInfo info;
  info.parameter = static_cast<int64_t>(index);
  return WithErrorInfo(std::move(status), info);
}

// The error's info; all unset if it has none.
ErrorInfo GetErrorInfo(const absl::Status& status);

// "failed_rank=1 collective=all_reduce sequence=17"; empty if nothing is set. FromText leaves unset what it does not understand.
std::string ToText(const ErrorInfo& info);
ErrorInfo ErrorInfoFromText(absl::string_view text);

// The error's info followed by its text, for another rank. The bare text if it has no info.
std::string PackMessage(const absl::Status& status);
absl::Status UnpackMessage(absl::StatusCode code, absl::string_view packed);

}  // namespace lockstep

#endif  // BASE_ERROR_INFO_H_

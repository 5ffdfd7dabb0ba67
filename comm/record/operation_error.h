// The errors of operations. Each names the operation, then how far it had come on this rank, then the cause, which is the same on
// all ranks. Pure functions.
//
//   all_reduce #17 (6553600 f32 sum, ring), 26214400 B, sent 13107200 B, received 6553600 B (rank 1: 13107200/6553600):
//   rank 2 (host b, pid 71) died: control connection closed

#ifndef COMM_RECORD_OPERATION_ERROR_H_
#define COMM_RECORD_OPERATION_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/error_info.h"
#include "comm/communicator.h"
#include "comm/point_to_point.h"
#include "comm/record/flight_recorder.h"
#include "comm/record/signature.h"

namespace lockstep {

// An operation in errors: as text, and as data beside it.
struct OperationName {
  std::string text;  // empty: there is no operation
  ErrorInfo info;
};

OperationName NameOf(const Signature& signature);
// Of a call that was not started, so it has no number.
OperationName NameOf(const CollectiveRequest& request);
OperationName NameOf(const MessageCall& message);

// "26214400 B, sent 13107200 B, received 6553600 B (rank 1: 13107200/6553600)"; "... not begun".
std::string ProgressOf(const FlightRecord& record);

// The operation's error for this cause, with the cause's code and failed rank. A name with which the cause begins already is not
// repeated. `progress` may be empty. OK stays OK.
absl::Status OperationError(const absl::Status& cause, const OperationName& operation, absl::string_view progress = "");

// The error of a call on a communicator that has ended for this cause. `last`: the operation that was under way then, if any.
absl::Status NotStarted(const absl::Status& cause, const OperationName& call, const OperationName& last);

}  // namespace lockstep

#endif  // COMM_RECORD_OPERATION_ERROR_H_

#include "comm/record/operation_error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "comm/schedule/schedule.h"

namespace lockstep {

OperationName NameOf(const Signature& signature) {
  OperationName name;
  name.text = ToString(signature);
  name.info.collective = Name(signature.collective);
  name.info.sequence = signature.sequence;
  return name;
}

OperationName NameOf(const CollectiveRequest& request) {
  OperationName name;
  name.info.collective = name.text = Name(request.collective);
  if (request.collective == Collective::kBarrier) return name;
  absl::StrAppend(&name.text, " (", request.count, " ", Name(request.dtype),
                  HasReduction(request.collective) ? absl::StrCat(" ", Name(request.op)) : "", ")");
  return name;
}

OperationName NameOf(const MessageCall& message) {
  OperationName name;
  name.text = ToString(message);
  name.info.collective = message.send ? "send" : "receive";
  return name;
}

std::string ProgressOf(const FlightRecord& record) {
  std::string text = absl::StrCat(record.bytes, " B, ");
  if (record.state == FlightRecord::State::kQueued) return absl::StrCat(text, "not begun");
  absl::StrAppend(&text, "sent ", record.sent_bytes, " B, received ", record.received_bytes, " B");
  for (int i = 0; i < record.peer_count; ++i) {
    const FlightRecord::Peer& peer = record.peers[i];
    absl::StrAppend(&text, i == 0 ? " (" : ", ", "rank ", peer.rank.value(), ": ", peer.sent_bytes, "/",
                    peer.received_bytes);
  }
  return absl::StrCat(text, record.peer_count > 0 ? ")" : "");
}

absl::Status OperationError(const absl::Status& cause, const OperationName& operation, absl::string_view progress) {
  if (cause.ok()) return cause;
  absl::string_view why = cause.message();
  // "all_reduce #17 (...), piece 2 of 5: ...", "all_reduce #17 (...) did not finish in time", "all_reduce #17 (...): connection lost".
  const bool goes_on = absl::ConsumePrefix(&why, operation.text) && absl::StartsWith(why, ", ");
  if (!goes_on) {
    absl::ConsumePrefix(&why, ":");
    why = absl::StripLeadingAsciiWhitespace(why);
  }
  const absl::Status error(
      cause.code(), absl::StrCat(operation.text, progress.empty() ? "" : ", ", progress, goes_on ? "" : ": ", why));
  // The operation's own collective, whatever the cause was about.
  return WithErrorInfo(WithErrorInfo(error, operation.info), GetErrorInfo(cause));
}

absl::Status NotStarted(const absl::Status& cause, const OperationName& call, const OperationName& last) {
  if (cause.ok()) return cause;
  const absl::Status ended = last.text.empty() ? cause : OperationError(cause, last);
  const absl::Status error(cause.code(), absl::StrCat(call.text, ": the communicator has ended",
                                                      last.text.empty() ? ": " : ", in ", ended.message()));
  return WithErrorInfo(WithErrorInfo(error, call.info), GetErrorInfo(cause));
}

}  // namespace lockstep

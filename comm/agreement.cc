#include "comm/agreement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_info.h"
#include "base/status.h"
#include "comm/byte_objects.h"

namespace lockstep {

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
}

absl::StatusOr<RankError> CompareResults(Communicator* communicator, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> codes,
                            AllGatherBytes(communicator, absl::StrCat(static_cast<int>(mine.code()))));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> messages, AllGatherBytes(communicator, PackMessage(mine)));
  RankError first;
  for (int r = 0; r < communicator->size(); ++r) {
    int code = 0;
    if (!absl::SimpleAtoi(codes[r], &code)) return absl::InternalError(absl::StrCat("rank ", r, " sent no code"));
    if (code == 0) continue;
    const absl::Status status = WithFailedRank(UnpackMessage(static_cast<absl::StatusCode>(code), messages[r]),
                                               communicator->WorldRank(Rank(r)).value());
    if (first.rank < 0 || (IsRefusal(first.status) && !IsRefusal(status))) first = {r, status};
  }
  return first;
}

absl::Status AgreeThatAllCan(Communicator* communicator, const absl::Status& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RankError first, CompareResults(communicator, mine));
  if (first.rank < 0 || !mine.ok()) return mine;
  return Reworded(first.status, absl::StatusCode::kUnavailable,
                  absl::StrCat("rank ", first.rank, ": ", first.status.message()));
}

absl::Status AgreeOnCalls(Communicator* communicator, const std::string& mine) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all, AllGatherBytes(communicator, mine));
  if (std::all_of(all.begin(), all.end(), [&](const std::string& other) { return other == all[0]; })) {
    return absl::OkStatus();
  }
  std::string text;
  for (int r = 0; r < communicator->size(); ++r) {
    absl::StrAppend(&text, r == 0 ? "" : "; ", "rank ", r, " called ", all[r]);
  }
  return absl::FailedPreconditionError(absl::StrCat("the ranks' collectives differ: ", text));
}

}  // namespace lockstep

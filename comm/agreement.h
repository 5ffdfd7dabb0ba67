// Comparing the results of all ranks, for set-ups that either all ranks do or none. The answer is the same on every rank.
//
// Blocking and collective. When the communicator itself fails, its error is returned.

#ifndef COMM_AGREEMENT_H_
#define COMM_AGREEMENT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace lockstep {

// Whether the error only says that this way does not work for these ranks: UNAVAILABLE, FAILED_PRECONDITION or UNIMPLEMENTED.
// Another way may work.
bool IsRefusal(const absl::Status& status);

// One rank's error: the first that is no refusal; if all are refusals, the first.
struct RankError {
  int rank = -1;  // -1: no rank has an error
  absl::Status status;
};

absl::StatusOr<RankError> CompareResults(Communicator* communicator, const absl::Status& mine);

// OK if every rank's `mine` is OK. Otherwise this rank's own error, or UNAVAILABLE naming a rank that has one.
absl::Status AgreeThatAllCan(Communicator* communicator, const absl::Status& mine);

// OK if every rank gives the same text, which describes the calls that it is about to make. Otherwise FAILED_PRECONDITION, with the
// texts of all ranks.
absl::Status AgreeOnCalls(Communicator* communicator, const std::string& mine);

}  // namespace lockstep

#endif  // COMM_AGREEMENT_H_

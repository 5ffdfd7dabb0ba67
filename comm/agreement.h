// What the ranks' results come to, alike on all of them: for set-ups that all can do or none does.
//
// Blocking and collective. An error of the communicator is the answer where it has one.

#ifndef COMM_AGREEMENT_H_
#define COMM_AGREEMENT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace lockstep {

// Whether the error only says that this is not for these ranks: UNAVAILABLE, FAILED_PRECONDITION and UNIMPLEMENTED.
// Another way may be.
bool IsRefusal(const absl::Status& status);

// The first error that is no refusal; else the first one.
struct RankError {
  int rank = -1;  // all went well
  absl::Status status;
};

absl::StatusOr<RankError> CompareResults(Communicator* communicator, const absl::Status& mine);

// Whether every rank can. This rank's own error where it has one; else UNAVAILABLE, naming one that has.
absl::Status AgreeThatAllCan(Communicator* communicator, const absl::Status& mine);

// Whether every rank is about to make the calls of that text: FAILED_PRECONDITION that has all of them otherwise.
absl::Status AgreeOnCalls(Communicator* communicator, const std::string& mine);

}  // namespace lockstep

#endif  // COMM_AGREEMENT_H_

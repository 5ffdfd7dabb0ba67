// Byte objects: collectives of strings whose sizes the ranks need not know beforehand. They exchange sizes first, then bytes.
//
// Blocking and collective. For set-up and small things: configurations, seeds, checksums. An object may be empty.
// ERRORS  INVALID_ARGUMENT on every rank when an object is larger than 1 GiB. Nothing is allocated for it.

#ifndef COMM_BYTE_OBJECTS_H_
#define COMM_BYTE_OBJECTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/rank.h"
#include "comm/communicator.h"

namespace lockstep {

// `bytes` on every rank = `bytes` on the root.
absl::Status BroadcastBytes(Communicator* communicator, std::string* bytes, Rank root);

// On the root, every rank's bytes in rank order; elsewhere nothing.
absl::StatusOr<std::vector<std::string>> GatherBytes(Communicator* communicator, const std::string& bytes, Rank root);

// The same on every rank.
absl::StatusOr<std::vector<std::string>> AllGatherBytes(Communicator* communicator, const std::string& bytes);

// ---- Comparing the results of all ranks, for set-ups that either all ranks do or none. The answer is the same on every rank. When the
// communicator itself fails, its error is returned.

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

#endif  // COMM_BYTE_OBJECTS_H_

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

}  // namespace lockstep

#endif  // COMM_BYTE_OBJECTS_H_

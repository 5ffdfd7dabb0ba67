// Byte objects: collectives of strings whose sizes the ranks need not know beforehand. Sizes first, then bytes.
//
// Blocking and collective. For set-up and small things: configurations, seeds, checksums. An object may be empty, and at
// most 1 GiB: a size beyond that is INVALID_ARGUMENT on every rank rather than an allocation.

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

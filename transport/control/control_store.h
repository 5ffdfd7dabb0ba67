// What a world that is being set up has in the store, under "control/<job id>": where its coordinator is or, once that is known, why there
// will be no world (control_protocol.h has both texts); and under "control" where the coordinator of the newest set-up of any job is,
// for ranks whose own does not appear.
//
// A failure names the ranks that are to read it, and which attempt of its writer's it ended (ControlOptions::attempt). Each takes
// itself off when it has read it, or is in a later attempt itself, and the last one takes the failure away, so that nobody takes
// it for one of the next set-up. It counts for a minute.
//
// Calls take what the store has; where it fails, the ranks wait for their deadlines as they would without.

#ifndef TRANSPORT_CONTROL_CONTROL_STORE_H_
#define TRANSPORT_CONTROL_CONTROL_STORE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/control/control_protocol.h"
#include "transport/control/control_types.h"
#include "transport/store/store.h"

namespace lockstep {
namespace control {

inline constexpr char kAnyJobKey[] = "control";
std::string StoreKey(absl::string_view job_id);

// As it is named before it has joined.
Member ThisProcess(Rank rank);

// "rank 1 (host b, pid 71) could not set up the world: ...", with the code; as it is when it says so already.
absl::Status SaidBy(const Member& self, const absl::Status& status);

// For rank 0, when a set-up has ended: removes its record from the store if `result` is OK or all ranks know, and otherwise
// replaces it by the failure for the ranks in `untold`. `record` is empty if it was never published. Another rank 0's record
// stays.
void EndSetup(Store* store, const std::string& key, const std::string& record, int attempt, const absl::Status& result,
              std::vector<int> untold);

// For rank 0, after that: returns when all have read the failure, or at the deadline.
void AwaitReaders(Store* store, const std::string& key, Deadline deadline);

// For any other rank that fails before it has reached the coordinator: replaces the coordinator's address by the failure, so
// that rank 0 and the ranks that look for the address find it. Waits a second for the address if it is not there. Leaves a
// coordinator of a later attempt alone.
void TellFailure(Store* store, const std::string& key, Rank rank, int size, int attempt, const absl::Status& failure);

// For rank 0 while it waits: the failure that another rank has left in the store; OK if none has.
absl::Status LookForFailure(Store* store, const std::string& key, int attempt);

// The failure in `text`, if it counts and this rank has not read it. It may be of an earlier attempt than this rank's.
absl::optional<FailureRecord> FailureFor(Rank rank, absl::string_view text);
// Takes this rank off it.
void MarkRead(Store* store, const std::string& key, Rank rank);

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_STORE_H_

// What a world that is being set up has in the store, under "control/<job id>": where its hub is or, once that is known, why there
// will be no world (control_protocol.h has both texts); and under "control" where the hub of the newest set-up of any job is,
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

// Rank 0's, when a set-up has ended: takes its record out of the store if `result` is OK or everybody knows, and else leaves
// the failure to the ranks in `untold`. `record` is empty if it was never published. What another rank 0 has put there stays.
void EndSetup(Store* store, const std::string& key, const std::string& record, int attempt, const absl::Status& result,
              std::vector<int> untold);

// Rank 0's, after that: returns when all have read the failure, or at the deadline.
void AwaitReaders(Store* store, const std::string& key, Deadline deadline);

// Any other rank's that fails before it has reached the hub: puts the failure in the place of the hub's address, where rank 0 and
// the ranks that look for it find it. Waits a second for that address, if it is not there. A hub of a later attempt is left alone.
void TellFailure(Store* store, const std::string& key, Rank rank, int size, int attempt, const absl::Status& failure);

// What some other rank has told, while rank 0 waits for it; OK if none has.
absl::Status LookForFailure(Store* store, const std::string& key, int attempt);

// The failure in `text`, if it counts and this rank has not read it. It may be of an earlier attempt than this rank's.
absl::optional<FailureRecord> FailureFor(Rank rank, absl::string_view text);
// Takes this rank off it.
void MarkRead(Store* store, const std::string& key, Rank rank);

}  // namespace control
}  // namespace lockstep

#endif  // TRANSPORT_CONTROL_CONTROL_STORE_H_

// What the control channel keeps in the store while a world is set up. control_protocol.h has both records.
//
//   control/<job id>  the coordinator's record; if the set-up fails, the failure record
//   control           the coordinator's record of the newest set-up of any job, for ranks whose own does not appear; without a secret
//
// A failure names the ranks that are to read it, and the attempt of its writer (ControlOptions::attempt). A rank removes itself from it
// when it has read it, or if it is in a later attempt. The last one removes the failure, so that no rank takes it for one of the next
// set-up. A failure expires after a minute.
//
// Errors of the store are ignored: ranks then wait for their deadlines, as they would without these calls.

#ifndef TRANSPORT_CONTROL_CONTROL_STORE_H_
#define TRANSPORT_CONTROL_CONTROL_STORE_H_

#include <chrono>
#include <cstdint>
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

namespace lockstep::control {

inline constexpr char kAnyJobKey[] = "control";
std::string StoreKey(absl::string_view job_id);
// What stands under kAnyJobKey: ranks of other jobs read it.
std::string AnyJobText(CoordinatorRecord record);

// Until when a rank whose set-up ends at `deadline` may use the store to notify the others.
inline Deadline WithGrace(Deadline deadline) {
  return deadline.infinite() ? deadline : Deadline::At(deadline.time() + std::chrono::seconds(1));
}

// This process as errors name it before it has joined.
Member ThisProcess(Rank rank);

// The status with the text "rank 1 (host b, pid 71) could not set up the world: ...". Unchanged if it says so already.
absl::Status SaidBy(const Member& self, const absl::Status& status);

// For rank 0, when a set-up has ended. If `result` is OK or `untold` is empty, removes its record from the store. Otherwise replaces
// it by the failure, for the ranks in `untold`, and blocks until they have read it, at most for `parting`. `record` is empty if none
// was published. Another rank 0's record stays. As below, `deadline` is that of the set-up.
void EndSetup(Store* store, const std::string& key, const absl::optional<CoordinatorRecord>& record, int attempt,
              const absl::Status& result, std::vector<int> untold, std::chrono::milliseconds parting,
              Deadline deadline);

// For any other rank that fails before it has reached the coordinator, or has lost it: replaces the coordinator's record by the failure,
// where rank 0 and the ranks that look for the coordinator find it. If there is no record, waits five seconds for it. A record of a later
// attempt stays, and so does one of another world than `world`, unless that is 0. If a failure of this attempt is there already, counts
// this rank among those that have read it.
void TellFailure(Store* store, const std::string& key, Rank rank, int size, int attempt, uint64_t world,
                 const absl::Status& failure, Deadline deadline);

// For rank 0 while it waits: the failure that another rank has left in the store; OK if none has.
absl::Status LookForFailure(Store* store, const std::string& key, int attempt, Deadline deadline);

// The failure in `text`, unless it has expired or this rank has read it. It may be of an earlier attempt than this rank's.
absl::optional<FailureRecord> FailureFor(Rank rank, absl::string_view text);
// Removes this rank from the failure.
void MarkRead(Store* store, const std::string& key, Rank rank, Deadline deadline);

// Since 1970.
int64_t NowSeconds();
// Longer than ranks that were started together come apart; a set-up that is begun anew after longer than that may be about another.
inline constexpr int64_t kFailureSeconds = 60;

}  // namespace lockstep::control

#endif  // TRANSPORT_CONTROL_CONTROL_STORE_H_

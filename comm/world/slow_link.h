// A warning if the ranks of a host do not reach rank 0's host by the fastest link that the two hosts share.

#ifndef COMM_WORLD_SLOW_LINK_H_
#define COMM_WORLD_SLOW_LINK_H_

#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "transport/control/control.h"
#include "transport/net/socket.h"

namespace lockstep {

// Rank 0 posts its addresses for the other hosts. The first rank of each of them logs the warning, unless `chosen_by_user`. Every rank
// calls it when the ranks have joined. Does nothing if all are on one host.
//
// own            the address that this rank uses
// chosen_by_user whether the user has chosen the interface
// ERRORS         those of the control channel, and of listing interfaces
absl::Status WarnOfSlowLink(const std::vector<Member>& members, Rank rank, const SocketAddress& own,
                            bool chosen_by_user, ControlChannel* control, Deadline deadline);

}  // namespace lockstep

#endif  // COMM_WORLD_SLOW_LINK_H_

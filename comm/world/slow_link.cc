#include "comm/world/slow_link.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/host/channel_registry.h"
#include "comm/world/setup_topics.h"
#include "transport/net/interface.h"
#include "transport/net/link_speed.h"

namespace lockstep {

absl::Status WarnOfSlowLink(const std::vector<Member>& members, Rank rank, const SocketAddress& own,
                            bool chosen_by_user, ControlChannel* control, Deadline deadline) {
  const std::string& rank_0s = members.front().host_id;
  const std::string& this_one = members[rank.value()].host_id;
  const auto same = [](const std::string& id) { return [&id](const Member& member) { return member.host_id == id; }; };
  if (std::all_of(members.begin(), members.end(), same(rank_0s))) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> machine, ListInterfaceAddresses());
  if (rank == Rank(0)) {
    std::vector<std::string> addresses;
    for (const InterfaceAddress& entry : machine) {
      if (entry.up && !entry.address.loopback()) addresses.push_back(entry.address.WithPort(0).ToString());
    }
    control->PostMessage(ChannelRegistry::kWorldChannel, kAddressesTopic, absl::StrJoin(addresses, " "));
    return absl::OkStatus();
  }
  const bool first_here = std::find_if(members.begin(), members.end(), same(this_one))->rank == rank;
  if (this_one == rank_0s || !first_here || chosen_by_user) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const auto posted,
                            control->AwaitMessages(ChannelRegistry::kWorldChannel, kAddressesTopic, 1, deadline));
  std::vector<SocketAddress> addresses;
  for (const absl::string_view text : absl::StrSplit(posted.front().second, ' ', absl::SkipEmpty())) {
    // An address with the scope of an interface that this machine does not have leads nowhere from here.
    if (const absl::StatusOr<SocketAddress> address = SocketAddress::Parse(text); address.ok()) {
      addresses.push_back(*address);
    }
  }
  const std::string faster =
      FasterInterface(machine, own, addresses, [](const std::string& name) { return SpeedOfInterface(name); });
  if (!faster.empty()) LOCKSTEP_LOG(kWarning) << "rank " << rank << " reaches rank 0's host by " << faster;
  return absl::OkStatus();
}

}  // namespace lockstep

// Parts of a TransportCommunicator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/host/self_communicator.h"
#include "comm/host/transport_call.h"
#include "comm/host/transport_communicator.h"

namespace lockstep {

absl::StatusOr<std::unique_ptr<Communicator>> TransportCommunicator::Split(int color, int key) {
  if (options_.registry == nullptr && size_ > 1) return absl::UnimplementedError("this communicator has no parts");
  {
    MutexLock lock(mu());
    if (Collecting()) return absl::FailedPreconditionError("a communicator cannot be split inside a group");
  }
  struct Request {
    int32_t color;
    int32_t key;
    uint32_t number;
    uint32_t memory_number;
  };
  Request mine = {color, key, 0, 0};
  if (color >= 0 && size_ > 1) {
    mine.number = options_.registry->TakeNumber();
    mine.memory_number = options_.registry->TakeMemoryNumber();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Request> requests,
                            AllGatherValues(*this, mine, "splitting a communicator"));
  if (color < 0) return nullptr;

  std::vector<int> members;
  for (int r = 0; r < size_; ++r) {
    if (requests[r].color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return requests[a].key < requests[b].key; });
  if (members.size() == 1) return std::make_unique<SelfCommunicator>(options_.flight_records, timeout());
  const int leader = *std::min_element(members.begin(), members.end(),
                                       [&](int a, int b) { return TransportRank(Rank(a)) < TransportRank(Rank(b)); });
  const Rank leader_rank = TransportRank(Rank(leader));
  if (leader_rank.value() >= ChannelRegistry::kLeadersMax || requests[leader].number >= ChannelRegistry::kNumbersMax) {
    return absl::ResourceExhaustedError(absl::StrCat("world rank ", leader_rank.value(), " has made ",
                                                     requests[leader].number,
                                                     " communicators: there is no channel left"));
  }

  TransportCommunicatorOptions part = options_;
  part.timeout = timeout();
  part.channel = ChannelRegistry::ChannelOf(leader_rank, requests[leader].number);
  std::vector<Rank> ranks_here;
  for (const int member : members) ranks_here.emplace_back(member);
  part.shape = PartOf(options_.shape, ranks_here);
  part.costs = plans_.costs();
  part.ranks.clear();
  std::string names;
  for (const int member : members) {
    part.ranks.push_back(TransportRank(Rank(member)));
    absl::StrAppend(&names, names.empty() ? "" : ", ", part.ranks.back().value());
  }
  const auto self = std::find(members.begin(), members.end(), rank_.value());
  part.description = absl::StrCat("rank ", self - members.begin(), " of ", members.size(),
                                  " in a part of the world: its world ranks are ", names, "\n", options_.description);
  const uint32_t memory = requests[leader].memory_number;
  if (memory == ChannelRegistry::kMemoriesMax) part.shared_memory = nullptr;
  auto communicator = std::make_unique<TransportCommunicator>(engine_, control_, std::move(part));
  const absl::Status shared =
      communicator->ShareMemory(ChannelRegistry::MemoryOf(leader_rank, memory), Deadline::After(timeout()));
  // A rank that had it earlier may have ended it by now: then it is there, and every call says so.
  if (!shared.ok() && communicator->status().ok()) return Annotate(shared, "splitting a communicator");
  return communicator;
}

}  // namespace lockstep

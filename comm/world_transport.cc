#include "comm/world_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/channel_registry.h"
#include "transport/composite.h"
#include "transport/pollable_transport.h"

namespace lockstep {
namespace {

constexpr int kOverShm = 0;
constexpr int kOverTcp = 1;

// No reducer's: those count up from where they began.
constexpr uint64_t kSharingTopic = ~uint64_t{0};
constexpr char kAll[] = "all";
constexpr char kNotAll[] = "not all";

}  // namespace

absl::StatusOr<TransportChoice> ParseTransportChoice(absl::string_view name) {
  for (const TransportChoice choice : {TransportChoice::kAuto, TransportChoice::kTcp, TransportChoice::kShm}) {
    if (name == Name(choice)) return choice;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown transport '", name, "'; known are auto, tcp, shm"));
}

std::string Name(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::kAuto:
      return "auto";
    case TransportChoice::kTcp:
      return "tcp";
    case TransportChoice::kShm:
      return "shm";
  }
  return "invalid";
}

absl::StatusOr<WorldTransport> WorldTransport::Listen(Options options) {
  WorldTransport made(options.choice, options.tcp.rank);
  if (options.choice != TransportChoice::kTcp) {
    absl::StatusOr<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(std::move(options.shm));
    if (shm.ok()) {
      made.shm_ = *std::move(shm);
    } else if (options.choice == TransportChoice::kShm || absl::IsInvalidArgument(shm.status())) {
      return shm.status();
    } else {
      made.no_shm_ = shm.status();
      LOCKSTEP_LOG(kWarning) << "rank " << options.tcp.rank
                             << " uses TCP with the ranks of its own host too: " << shm.status().message();
    }
  } else {
    made.no_shm_ = absl::UnavailableError("this world uses TCP alone");
  }
  if (options.choice != TransportChoice::kShm) {
    LOCKSTEP_ASSIGN_OR_RETURN(made.tcp_, TcpTransport::Create(std::move(options.tcp)));
  }
  return made;
}

void WorldTransport::Announce(Member* self) const {
  if (tcp_ != nullptr) self->data_address = tcp_->address();
  if (shm_ != nullptr) self->shm_address = shm_->address();
}

absl::Status WorldTransport::Connect(absl::Span<const Member> members, Deadline deadline) {
  if (tcp_ != nullptr) {
    std::vector<SocketAddress> addresses;
    for (const Member& member : members) addresses.push_back(member.data_address);
    LOCKSTEP_RETURN_IF_ERROR(tcp_->SetPeers(std::move(addresses)));
  }
  shared_.assign(members.size(), no_shm_);
  if (shm_ == nullptr) return absl::OkStatus();

  const Member& self = members[shm_->rank().value()];
  std::vector<std::string> addresses;
  for (const Member& member : members) {
    const bool may_share = member.rank != self.rank && member.host_id == self.host_id;
    addresses.push_back(may_share ? member.shm_address : "");
  }
  shared_ = shm_->Connect(addresses, deadline);
  for (const Member& member : members) {
    absl::Status& shared = shared_[member.rank.value()];
    if (member.rank == self.rank) continue;
    if (shared.ok()) {
      neighbours_.push_back(member.rank);
      continue;
    }
    // The two of them may believe different things.
    if (absl::IsDeadlineExceeded(shared)) {
      return Annotate(shared, absl::StrCat("share memory with ", Describe(member)));
    }
    if (member.host_id != self.host_id) {
      shared = absl::UnavailableError("it is on another host");
    } else if (member.shm_address.empty()) {
      shared = absl::UnavailableError("it could make no shared memory");
    }
    if (choice_ == TransportChoice::kShm) {
      return absl::UnavailableError(absl::StrCat("no shared memory with ", Describe(member), ": ", shared.message(),
                                                 " (and the transport is shm)"));
    }
    if (member.host_id != self.host_id) continue;
    LOCKSTEP_LOG(kInfo) << "rank " << self.rank << " uses TCP with " << Describe(member)
                        << " of its own host: " << shared.message();
  }
  return absl::OkStatus();
}

std::string WorldTransport::DescribeRoute(const Member& peer) const {
  const absl::Status& shared = shared_[peer.rank.value()];
  if (shared.ok()) return "shm";
  const std::string tcp = absl::StrCat("tcp ", peer.data_address.ToString());
  return choice_ == TransportChoice::kTcp ? tcp : absl::StrCat(tcp, " (not shm: ", shared.message(), ")");
}

absl::StatusOr<bool> WorldTransport::AllShareMemory(ControlChannel* control, absl::Span<const Member> members,
                                                    Deadline deadline) const {
  if (choice_ == TransportChoice::kTcp) return false;
  size_t here = 0;
  for (const Member& member : members) here += member.host_id == members[rank_.value()].host_id;
  const ChannelId channel = ChannelRegistry::kWorldChannel;
  control->PostNote(channel, kSharingTopic, neighbours_.size() + 1 == here ? kAll : kNotAll);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto notes,
                            control->AwaitNotes(channel, kSharingTopic, static_cast<int>(members.size()), deadline));
  return std::all_of(notes.begin(), notes.end(), [](const auto& note) { return note.second == kAll; });
}

absl::StatusOr<std::unique_ptr<Transport>> WorldTransport::Take() {
  if (neighbours_.empty()) return std::unique_ptr<Transport>(std::move(tcp_));
  if (neighbours_.size() + 1 == shared_.size()) return std::unique_ptr<Transport>(std::move(shm_));
  std::vector<int> routes(shared_.size(), kOverTcp);
  for (const Rank neighbour : neighbours_) routes[neighbour.value()] = kOverShm;
  std::vector<std::unique_ptr<PollableTransport>> both;
  both.push_back(std::move(shm_));
  both.push_back(std::move(tcp_));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<CompositeTransport> composite,
                            CompositeTransport::Create(std::move(both), std::move(routes)));
  return std::unique_ptr<Transport>(std::move(composite));
}

}  // namespace lockstep

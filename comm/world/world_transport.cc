#include "comm/world/world_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/clipped.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/host/channel_registry.h"
#include "transport/composite.h"
#include "transport/pollable_transport.h"

namespace lockstep {
namespace {

// Into which messages are cut. Over libfabric each is asked for, and rxm moves long ones better.
constexpr int64_t kMessageChunkBytes = 256 << 10;
constexpr int64_t kOfiMessageChunkBytes = 512 << 10;

constexpr TransportTraits kTransports[] = {
    {TransportChoice::kAuto, "auto", true, kMessageChunkBytes, kTcpOnOneHost},
    {TransportChoice::kTcp, "tcp", false, kMessageChunkBytes, kTcpOnOneHost},
    {TransportChoice::kShm, "shm", true, kMessageChunkBytes, kTcpOnOneHost},
    {TransportChoice::kOfi, "ofi", false, kOfiMessageChunkBytes, kLibfabricOnOneHost},
};

constexpr int kOverShm = 0;
constexpr int kOverTcp = 1;

// No reducer's: those count up from where they began.
constexpr uint64_t kSharingTopic = ~uint64_t{0};
constexpr char kAll[] = "all";  // else why not

// Between two looks at who has come late.
constexpr std::chrono::milliseconds kPause(20);

// In place of the address of a rank that can make no shared memory, before the reason.
constexpr char kNoAddress[] = "none: ";

// Why a rank can make no shared memory; nothing when it can.
absl::optional<std::string> WhyNone(const Member& member) {
  absl::string_view address = member.shm_address;
  if (absl::ConsumePrefix(&address, kNoAddress)) return std::string(address);
  return absl::nullopt;
}

}  // namespace

const TransportTraits& TraitsOf(TransportChoice choice) {
  for (const TransportTraits& traits : kTransports) {
    if (traits.choice == choice) return traits;
  }
  LOCKSTEP_CHECK(false) << "transport " << static_cast<int>(choice) << " has no row";
  return kTransports[0];
}

absl::StatusOr<TransportChoice> ParseTransportChoice(absl::string_view name) {
  std::string known;
  for (const TransportTraits& traits : kTransports) {
    if (name == traits.name) return traits.choice;
    absl::StrAppend(&known, known.empty() ? "" : ", ", traits.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown transport '", Clipped(name), "'; known are ", known));
}

absl::StatusOr<WorldTransport> WorldTransport::ListenOverOfi(Options options) {
  WorldTransport made(options.choice, options.ofi.rank);
  made.no_shm_ = absl::UnavailableError("this world uses libfabric alone");
  absl::StatusOr<std::unique_ptr<OfiTransport>> ofi = OfiTransport::Create(std::move(options.ofi));
  if (ofi.ok()) {
    made.ofi_ = *std::move(ofi);
    LOCKSTEP_LOG(kInfo) << "rank " << made.rank_ << " uses libfabric's " << made.ofi_->address();
    LOCKSTEP_LOG(kDebug) << "providers of libfabric:\n" << made.DescribeProviders();
  } else if (absl::IsInvalidArgument(ofi.status())) {
    return ofi.status();
  } else {
    made.no_ofi_ = ofi.status();
  }
  return made;
}

absl::StatusOr<WorldTransport> WorldTransport::Listen(Options options) {
  if (options.choice == TransportChoice::kOfi) return ListenOverOfi(std::move(options));
  WorldTransport made(options.choice, options.tcp.rank);
  if (options.choice != TransportChoice::kTcp) {
    absl::StatusOr<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(std::move(options.shm));
    if (shm.ok()) {
      made.shm_ = *std::move(shm);
    } else if (absl::IsInvalidArgument(shm.status())) {
      return shm.status();
    } else {
      made.no_shm_ = shm.status();
      if (options.choice == TransportChoice::kAuto) {
        LOCKSTEP_LOG(kWarning) << "rank " << options.tcp.rank
                               << " uses TCP with the ranks of its own host too: " << shm.status().message();
      }
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
  if (ofi_ != nullptr) self->ofi_address = ofi_->address();
  if (!may_share_memory()) return;
  self->shm_address = shm_ != nullptr ? shm_->address() : absl::StrCat(kNoAddress, no_shm_.message());
}

std::vector<AgreedOption> WorldTransport::OptionsToAgreeOn() const {
  if (choice_ != TransportChoice::kOfi) return {};
  return {{"ofi_provider", ofi_ != nullptr ? ofi_->provider() : absl::StrCat("none (", no_ofi_.message(), ")")}};
}

absl::Status WorldTransport::ConnectOverOfi(absl::Span<const Member> members, Deadline deadline) {
  shared_.assign(members.size(), no_shm_);
  if (ofi_ == nullptr) return Annotate(no_ofi_, "the transport is ofi");
  std::vector<std::string> addresses;
  for (const Member& member : members) addresses.push_back(member.ofi_address);
  LOCKSTEP_RETURN_IF_ERROR(ofi_->SetPeers(addresses));
  return ofi_->Connect(deadline);
}

absl::Status WorldTransport::Connect(absl::Span<const Member> members, Deadline deadline) {
  if (choice_ == TransportChoice::kOfi) return ConnectOverOfi(members, deadline);
  if (tcp_ != nullptr) {
    std::vector<SocketAddress> addresses;
    for (const Member& member : members) addresses.push_back(member.data_address);
    LOCKSTEP_RETURN_IF_ERROR(tcp_->SetPeers(std::move(addresses)));
  }
  shared_.assign(members.size(), no_shm_);
  if (shm_ == nullptr) {
    why_not_all_ = absl::StrCat("rank ", rank_.value(), " can make no shared memory: ", no_shm_.message());
    return absl::OkStatus();
  }

  const Member& self = members[rank_.value()];
  std::vector<std::string> addresses;
  for (const Member& member : members) {
    const bool may_share = member.rank != self.rank && member.host_id == self.host_id;
    addresses.push_back(may_share && !WhyNone(member).has_value() ? member.shm_address : "");
  }
  shared_ = shm_->Connect(addresses, deadline);
  for (const Member& member : members) {
    absl::Status& shared = shared_[member.rank.value()];
    if (member.rank == self.rank) continue;
    if (shared.ok()) {
      local_peers_.push_back(member.rank);
      continue;
    }
    // The two of them may believe different things.
    if (absl::IsDeadlineExceeded(shared)) {
      return Annotate(shared, absl::StrCat("share memory with ", Describe(member)));
    }
    if (member.host_id != self.host_id) {
      shared = absl::UnavailableError("it is on another host");
    } else if (const absl::optional<std::string> why = WhyNone(member); why.has_value()) {
      shared = absl::UnavailableError(absl::StrCat("it can make no shared memory: ", *why));
    }
    if (why_not_all_.empty()) {
      why_not_all_ = absl::StrCat("no shared memory with ", Describe(member), ": ", shared.message());
    }
    if (choice_ == TransportChoice::kShm || member.host_id != self.host_id) continue;
    LOCKSTEP_LOG(kWarning) << "rank " << self.rank << " uses TCP with " << Describe(member)
                           << " of its own host: " << shared.message();
  }
  return absl::OkStatus();
}

std::string WorldTransport::DescribeRoute(const Member& peer) const {
  const absl::Status& shared = shared_[peer.rank.value()];
  if (choice_ == TransportChoice::kOfi) return ofi_->DescribePeer(peer.rank);
  if (shared.ok()) return "shm";
  const std::string tcp = absl::StrCat("tcp ", peer.data_address.ToString());
  return choice_ == TransportChoice::kTcp ? tcp : absl::StrCat(tcp, " (not shm: ", shared.message(), ")");
}

std::string WorldTransport::DescribeProviders() const {
  return ofi_ == nullptr ? "" : absl::StrCat(lockstep::Describe(ofi_->candidates()), "\n");
}

absl::StatusOr<bool> WorldTransport::AllShareMemory(ControlChannel* control, absl::Span<const Member> members,
                                                    Deadline deadline) const {
  if (!may_share_memory()) return false;
  const auto is_here = [&](const Member& member) { return member.host_id == members[rank_.value()].host_id; };
  const size_t expected =
      choice_ == TransportChoice::kShm ? members.size() : std::count_if(members.begin(), members.end(), is_here);
  const ChannelId channel = ChannelRegistry::kWorldChannel;
  control->PostMessage(channel, kSharingTopic, local_peers_.size() + 1 == expected ? kAll : why_not_all_);
  const auto await_posted = [&](Deadline until) {
    return control->AwaitMessages(channel, kSharingTopic, static_cast<int>(members.size()), until);
  };
  // A rank that this one has given up may still be waiting for the answer to its own hello.
  auto posted = await_posted(Deadline::Earlier(deadline, Deadline::After(kPause)));
  while (absl::IsDeadlineExceeded(posted.status()) && !deadline.passed()) {
    if (shm_ != nullptr) shm_->AnswerLatecomers();
    posted = await_posted(Deadline::Earlier(deadline, Deadline::After(kPause)));
  }
  const auto refused = [](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(why, " (and the transport is shm)"));
  };
  // Who knows first may have gone already, rank 0 with the messages.
  if (choice_ == TransportChoice::kShm && !why_not_all_.empty()) return refused(why_not_all_);
  LOCKSTEP_RETURN_IF_ERROR(posted.status());
  for (const auto& [rank, text] : *posted) {
    if (text == kAll) continue;
    if (choice_ == TransportChoice::kShm) return refused(absl::StrCat(Describe(members[rank.value()]), ": ", text));
    return false;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Transport>> WorldTransport::Take() {
  if (choice_ == TransportChoice::kOfi) return std::unique_ptr<Transport>(std::move(ofi_));
  if (local_peers_.empty()) return std::unique_ptr<Transport>(std::move(tcp_));
  if (local_peers_.size() + 1 == shared_.size()) return std::unique_ptr<Transport>(std::move(shm_));
  std::vector<int> routes(shared_.size(), kOverTcp);
  for (const Rank peer : local_peers_) routes[peer.value()] = kOverShm;
  std::vector<std::unique_ptr<PollableTransport>> both;
  both.push_back(std::move(shm_));
  both.push_back(std::move(tcp_));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<CompositeTransport> composite,
                            CompositeTransport::Create(std::move(both), std::move(routes)));
  return std::unique_ptr<Transport>(std::move(composite));
}

}  // namespace lockstep

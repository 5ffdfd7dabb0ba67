#include "comm/world/world_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/clipped.h"
#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/host/channel_registry.h"
#include "comm/world/setup_topics.h"
#include "transport/composite.h"
#include "transport/ofi/ofi_transport.h"
#include "transport/pollable_transport.h"

namespace lockstep {
namespace {

// Into which messages are cut. Inside a host TCP moves segments of 64 KiB less headers: a chunk with all that is put around it is four of
// them, where 256 KiB were five. Over libfabric each is asked for, and rxm moves long ones better.
constexpr int64_t kMessageChunkBytes = 256 << 10;
constexpr int64_t kTcpMessageChunkBytes = (256 << 10) - 448;
constexpr int64_t kOfiMessageChunkBytes = 512 << 10;

// Columns: name, uses_shm, uses_tcp, create_wide, agreed_option, chunk_bytes, on_one_host. The default first.
constexpr TransportKind kTransports[] = {
    {"auto", true, true, nullptr, "", kMessageChunkBytes, kTcpOnOneHost},
    {"tcp", false, true, nullptr, "", kTcpMessageChunkBytes, kTcpOnOneHost},
    {"shm", true, false, nullptr, "", kMessageChunkBytes, kTcpOnOneHost},
    {"ofi", false, false, &CreateOfiTransport, "ofi_provider", kOfiMessageChunkBytes, kLibfabricOnOneHost},
};

constexpr int kOverShm = 0;
constexpr int kOverTcp = 1;

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

const TransportKind& DefaultTransport() { return kTransports[0]; }

absl::StatusOr<const TransportKind*> FindTransport(absl::string_view name) {
  std::string known;
  for (const TransportKind& kind : kTransports) {
    if (name == kind.name) return &kind;
    absl::StrAppend(&known, known.empty() ? "" : ", ", kind.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown transport '", Clipped(name), "'; known are ", known));
}

absl::StatusOr<WorldTransport> WorldTransport::Listen(Options options) {
  const TransportKind& kind = *options.kind;
  WorldTransport made(&kind, options.tcp.rank);
  made.no_shm_ = absl::UnavailableError(
      absl::StrCat("this world uses ", kind.create_wide != nullptr ? kind.name : "TCP", " alone"));
  if (kind.create_wide != nullptr) {
    absl::StatusOr<std::unique_ptr<WideTransport>> wide = kind.create_wide(options.wide);
    if (absl::IsInvalidArgument(wide.status())) return wide.status();
    made.no_wide_ = wide.status();
    if (wide.ok()) made.wide_ = *std::move(wide);
  }
  if (kind.uses_shm) {
    absl::StatusOr<std::unique_ptr<ShmTransport>> shm = ShmTransport::Create(std::move(options.shm));
    if (absl::IsInvalidArgument(shm.status())) return shm.status();
    made.no_shm_ = shm.status();
    if (shm.ok()) {
      made.shm_ = *std::move(shm);
    } else if (kind.uses_tcp) {
      LOCKSTEP_LOG(kWarning) << "rank " << options.tcp.rank
                             << " uses TCP with the ranks of its own host too: " << shm.status().message();
    }
  }
  if (kind.uses_tcp) {
    LOCKSTEP_ASSIGN_OR_RETURN(made.tcp_, TcpTransport::Create(std::move(options.tcp)));
  }
  return made;
}

void WorldTransport::Announce(Member* self) const {
  if (tcp_ != nullptr) self->data_address = tcp_->address();
  if (wide_ != nullptr) self->ofi_address = wide_->address();
  if (!kind_->uses_shm) return;
  self->shm_address = shm_ != nullptr ? shm_->address() : absl::StrCat(kNoAddress, no_shm_.message());
}

std::vector<AgreedOption> WorldTransport::OptionsToAgreeOn() const {
  if (kind_->create_wide == nullptr) return {};
  return {{kind_->agreed_option, wide_ != nullptr ? wide_->agreed() : absl::StrCat("none (", no_wide_.message(), ")")}};
}

absl::Status WorldTransport::Connect(ControlChannel* control, absl::Span<const Member> members, Deadline deadline) {
  const auto failure = [control] { return control->AwaitFailure(kAllChannels, absl::OkStatus(), Deadline::Now()); };
  shared_.assign(members.size(), no_shm_);
  if (kind_->create_wide != nullptr) {
    if (wide_ == nullptr) return Annotate(no_wide_, absl::StrCat("the transport is ", kind_->name));
    std::vector<std::string> addresses;
    for (const Member& member : members) addresses.push_back(member.ofi_address);
    LOCKSTEP_RETURN_IF_ERROR(wide_->SetPeers(addresses));
    return wide_->Connect(deadline, failure);
  }
  if (tcp_ != nullptr) {
    std::vector<SocketAddress> addresses;
    for (const Member& member : members) addresses.push_back(member.data_address);
    LOCKSTEP_RETURN_IF_ERROR(tcp_->SetPeers(std::move(addresses)));
  }
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
  shared_ = shm_->Connect(addresses, deadline, [&] { return failure().ok(); });
  LOCKSTEP_RETURN_IF_ERROR(failure());
  for (const Member& member : members) {
    absl::Status& shared = shared_[member.rank.value()];
    if (member.rank == self.rank) continue;
    if (shared.ok()) {
      local_peers_.push_back(member.rank);
      continue;
    }
    // The two of them may believe different things.
    if (absl::IsDeadlineExceeded(shared)) {
      return WithFailedRank(Annotate(shared, absl::StrCat("share memory with ", Describe(member))),
                            member.rank.value());
    }
    if (member.host_id != self.host_id) {
      shared = absl::UnavailableError("it is on another host");
    } else if (const absl::optional<std::string> why = WhyNone(member); why.has_value()) {
      shared = absl::UnavailableError(absl::StrCat("it can make no shared memory: ", *why));
    }
    if (why_not_all_.empty()) {
      why_not_all_ = absl::StrCat("no shared memory with ", Describe(member), ": ", shared.message());
    }
    if (shm_alone() || member.host_id != self.host_id) continue;
    LOCKSTEP_LOG(kWarning) << "rank " << self.rank << " uses TCP with " << Describe(member)
                           << " of its own host: " << shared.message();
  }
  return absl::OkStatus();
}

std::string WorldTransport::DescribeRoute(const Member& peer) const {
  const absl::Status& shared = shared_[peer.rank.value()];
  if (wide_ != nullptr) return wide_->DescribePeer(peer.rank);
  if (shared.ok()) return "shm";
  const std::string tcp = absl::StrCat("tcp ", peer.data_address.ToString());
  return kind_->uses_shm ? absl::StrCat(tcp, " (not shm: ", shared.message(), ")") : tcp;
}

absl::StatusOr<bool> WorldTransport::AllShareMemory(ControlChannel* control, absl::Span<const Member> members,
                                                    Deadline deadline) const {
  if (!kind_->uses_shm) return false;
  const auto is_here = [&](const Member& member) { return member.host_id == members[rank_.value()].host_id; };
  const size_t expected = shm_alone() ? members.size() : std::count_if(members.begin(), members.end(), is_here);
  const ChannelId channel = ChannelRegistry::kWorldChannel;
  control->PostMessage(channel, kSharingTopic, local_peers_.size() + 1 == expected ? kAll : why_not_all_);
  absl::StatusOr<std::vector<std::pair<Rank, std::string>>> posted;
  for (;;) {
    const Deadline pause = Deadline::Earlier(deadline, Deadline::After(kPause));
    posted = control->AwaitMessages(channel, kSharingTopic, static_cast<int>(members.size()), pause);
    // Before its time it is a failure of the set-up, whose code may be this one.
    if (!absl::IsDeadlineExceeded(posted.status()) || !pause.passed() || deadline.passed()) break;
    // A rank that this one has given up may still be waiting for the answer to its own hello.
    if (shm_ != nullptr) shm_->AnswerLatecomers();
  }
  const auto refused = [](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(why, " (and the transport is shm)"));
  };
  // Who knows first may have gone already, rank 0 with the messages.
  if (shm_alone() && !why_not_all_.empty()) return refused(why_not_all_);
  LOCKSTEP_RETURN_IF_ERROR(posted.status());
  for (const auto& [rank, text] : *posted) {
    if (text == kAll) continue;
    if (shm_alone()) return refused(absl::StrCat(Describe(members[rank.value()]), ": ", text));
    return false;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<Transport>> WorldTransport::Take() {
  if (kind_->create_wide != nullptr) return std::unique_ptr<Transport>(std::move(wide_));
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

#include "transport/ofi/peers.h"

#include <limits>
#include <random>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/socket.h"
#include "transport/ofi/ofi_links.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

constexpr size_t kSlabSlots = 64;
// Somebody who is refused is told so, but not everybody who may come along.
constexpr size_t kUnauthenticatedMax = 32;
// How long messages may still come that a disconnect has overtaken.
constexpr std::chrono::milliseconds kOvertakenTime(100);

absl::Status Closed() { return absl::UnavailableError("connection closed by peer"); }

// As whoever refuses says it, whose `seen` has the other's numbers.
std::string RefuserText(const OfiRefusal& seen, const OfiHandshake& handshake, const OfiHandshake& own) {
  switch (seen.verdict) {
    case OfiVerdict::kOtherRank:
      return absl::StrCat("it is for rank ", handshake.target);
    case OfiVerdict::kNoSuchRank:
      return absl::StrCat("there is no such peer in this world of ", own.world_size);
    case OfiVerdict::kGone:
      return "this rank has lost that one, or given it up";
    default:
      return std::string(OfiRefusalStatus(seen, own).message());
  }
}

uint32_t RandomToken() {
  std::random_device random;
  uint32_t token = 0;
  while (token == 0) token = random();
  return token;
}

}  // namespace

OfiPeers::OfiPeers(OfiHandshake own, Rank rank, std::chrono::milliseconds connect_timeout, int slots,
                   OfiEndpoint* endpoint, OfiLinks* links)
    : rank_(rank),
      connect_timeout_(connect_timeout),
      endpoint_(endpoint),
      links_(links),
      own_(std::move(own)),
      slots_(endpoint, kOfiSlotBytes, kSlabSlots, std::numeric_limits<size_t>::max()),
      peers_(own_.world_size) {
  own_.token = RandomToken();
  for (int i = 0; i < slots; ++i) PostReceive();
}

absl::Status OfiPeers::SetAddresses(const std::vector<std::string>& addresses) {
  for (size_t i = 0; i < addresses.size(); ++i) {
    const Rank peer(static_cast<int>(i));
    if (peer == rank_) continue;
    absl::StatusOr<int> index = endpoint_->AddPeer(addresses[i]);
    if (!index.ok()) return Annotate(index.status(), absl::StrCat("rank ", i));
    peers_[i].index = *index;
    ranks_.resize(*index + 1, Rank(-1));
    ranks_[*index] = peer;
  }
  addresses_ = addresses;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].said_hello) continue;
    BecomeOpen(Rank(static_cast<int>(i)), peers_[i].token);
    SendHandshake(Rank(static_cast<int>(i)), OfiKind::kWelcome);
  }
  return absl::OkStatus();
}

std::string OfiPeers::Describe(Rank peer) const {
  if (addresses_.empty()) return "(its address is not known yet)";
  const std::string& address = addresses_[peer.value()];
  switch (endpoint_->info().addr_format) {
    case FI_SOCKADDR:
    case FI_SOCKADDR_IN:
    case FI_SOCKADDR_IN6:
      return SocketAddress::From(reinterpret_cast<const sockaddr*>(address.data()),
                                 static_cast<socklen_t>(address.size()))
          .ToString();
    case FI_ADDR_STR:
      return std::string(address.c_str());
    default:
      return absl::BytesToHexString(address);
  }
}

bool OfiPeers::Open(Rank peer) {
  Peer& state = peers_[peer.value()];
  if (state.state == State::kIdle && addresses_known() && status_.ok()) {
    state.state = State::kHandshake;
    state.deadline = Deadline::After(connect_timeout_);
    ++handshaking_;
    SendHandshake(peer, OfiKind::kHello);
  }
  return state.state == State::kOpen;
}

void OfiPeers::SendHandshake(Rank peer, OfiKind kind) {
  Peer& state = peers_[peer.value()];
  own_.target = static_cast<uint32_t>(peer.value());
  const std::string handshake = EncodeOfiHandshake(own_);
  OfiNotice notice;
  notice.token = kind == OfiKind::kHello ? 0 : state.token;
  notice.source = static_cast<uint32_t>(rank_.value());
  OfiSlot* const slot = SendTo(state.index, OfiNoticeTag(kind, 0), notice, handshake.data(), handshake.size());
  if (kind == OfiKind::kHello) state.hello = slot;
}

void OfiPeers::Send(Rank peer, OfiKind kind, ChannelId channel, OfiNotice notice, const void* payload, size_t bytes,
                    const MessagePieces* pieces) {
  const Peer& state = peers_[peer.value()];
  notice.token = state.token;
  notice.source = static_cast<uint32_t>(rank_.value());
  SendTo(state.index, OfiNoticeTag(kind, channel), notice, payload, bytes, pieces);
}

OfiSlot* OfiPeers::SendTo(int index, uint64_t tag, const OfiNotice& notice, const void* payload, size_t bytes,
                          const MessagePieces* pieces) {
  constexpr size_t kInjectedMax = 512;
  unsigned char short_notice[kInjectedMax];
  // A disconnect shows by its completion that all before it has left.
  if (const size_t total = kOfiNoticeBytes + bytes; OfiKindOf(tag) != OfiKind::kDisconnect && total <= kInjectedMax &&
                                                    total <= endpoint_->info().tx_attr->inject_size) {
    EncodeOfiNotice(notice, short_notice);
    CopyMessage(payload, bytes, pieces, short_notice + kOfiNoticeBytes);
    if (endpoint_->Inject(index, tag, short_notice, total)) return nullptr;
  }
  OfiSlot* const slot = slots_.Take();
  if (slot == nullptr) {
    status_ = slots_.status();
    return nullptr;
  }
  EncodeOfiNotice(notice, slot->data());
  CopyMessage(payload, bytes, pieces, slot->data() + kOfiNoticeBytes);
  slot->owner = this;
  slot->post.complete = &OnSent;
  slot->post.kind = OfiPost::Kind::kSend;
  slot->post.peer = index;
  slot->post.bytes = kOfiNoticeBytes + bytes;
  slot->post.tag = tag;
  slot->post.notice = true;
  if (RankOf(index) != Rank(-1)) ++sends_pending_;
  endpoint_->Post(&slot->post);
  return slot;
}

void OfiPeers::OnSent(OfiPost* post, const OfiCompletion& completion) {
  OfiSlot* const slot = reinterpret_cast<OfiSlot*>(post);
  OfiPeers* const self = static_cast<OfiPeers*>(slot->owner);
  const Rank peer = self->RankOf(post->peer);
  self->slots_.Give(slot);
  if (peer == Rank(-1)) return;
  --self->sends_pending_;
  Peer& state = self->peers_[peer.value()];
  if (state.hello == slot) state.hello = nullptr;
  if (!completion.status.ok()) self->Lose(peer, completion.status);
}

void OfiPeers::PostReceive() {
  if (OfiSlot* const slot = slots_.Take(); slot != nullptr) return PostReceive(slot);
  status_ = slots_.status();
}

void OfiPeers::PostReceive(OfiSlot* slot) {
  slot->owner = this;
  slot->post.complete = &OnReceived;
  slot->post.kind = OfiPost::Kind::kReceive;
  slot->post.bytes = kOfiSlotBytes;
  slot->post.tag = 0;
  slot->post.ignore = kOfiNoticeIgnore;
  slot->post.notice = true;
  endpoint_->Post(&slot->post);
}

void OfiPeers::OnReceived(OfiPost* post, const OfiCompletion& completion) {
  OfiSlot* const slot = reinterpret_cast<OfiSlot*>(post);
  OfiPeers* const self = static_cast<OfiPeers*>(slot->owner);
  // One that is too long is none of ours, and only that one is lost. Any other error is the endpoint's.
  const bool truncated = absl::IsInternal(completion.status) && completion.bytes >= kOfiSlotBytes;
  if (!completion.status.ok() && !truncated) {
    self->slots_.Give(slot);
    if (self->status_.ok()) self->status_ = completion.status;
    return;
  }
  if (completion.status.ok() && self->Handle(slot, completion)) return self->PostReceive();
  self->PostReceive(slot);
}

bool OfiPeers::Handle(OfiSlot* slot, const OfiCompletion& completion) {
  if (completion.bytes < kOfiNoticeBytes) return false;
  const OfiNotice notice = DecodeOfiNotice(slot->data());
  const unsigned char* const payload = slot->data() + kOfiNoticeBytes;
  const size_t bytes = completion.bytes - kOfiNoticeBytes;
  const OfiKind kind = OfiKindOf(completion.tag);
  if (kind == OfiKind::kHello || kind == OfiKind::kWelcome || kind == OfiKind::kRefused) {
    HandleHandshake(kind, notice, {reinterpret_cast<const char*>(payload), bytes});
    return false;
  }
  if (notice.token != own_.token || notice.source >= peers_.size()) return false;
  const Rank peer(static_cast<int>(notice.source));
  Peer& state = peers_[peer.value()];
  if (state.state == State::kHandshake) {
    // A fabric may deliver what follows a welcome before it: the token shows that this peer has accepted our hello.
    slot->post.tag = completion.tag;
    slot->post.bytes = completion.bytes;
    slot->next = nullptr;
    OfiSlot** last = &state.early;
    while (*last != nullptr) last = &(*last)->next;
    *last = slot;
    return true;
  }
  if (state.state != State::kOpen) return false;
  if (kind == OfiKind::kDisconnect) {
    SeeOff(peer);
    return false;
  }
  return links_->OnNotice(peer, kind, OfiChannelOf(completion.tag), notice, payload, bytes, slot);
}

void OfiPeers::HandleHandshake(OfiKind kind, const OfiNotice& notice, absl::string_view bytes) {
  if (kind != OfiKind::kHello && (notice.token != own_.token || notice.source >= peers_.size())) return;
  const Rank peer(static_cast<int>(notice.source));
  if (kind == OfiKind::kRefused) {
    if (bytes.size() < kOfiRefusalBytes || peers_[notice.source].state != State::kHandshake) return;
    const OfiRefusal refusal = DecodeOfiRefusal(reinterpret_cast<const unsigned char*>(bytes.data()));
    own_.target = notice.source;
    return BecomeGone(peer, Annotate(OfiRefusalStatus(refusal, own_), "the peer refused the connection"));
  }
  OfiHandshake handshake;
  if (!DecodeOfiHandshake(bytes, &handshake)) return;
  if (kind == OfiKind::kHello) return HandleHello(notice.source, handshake);
  if (peers_[notice.source].state == State::kHandshake) BecomeOpen(peer, handshake.token);
}

void OfiPeers::HandleHello(uint32_t source, const OfiHandshake& handshake) {
  OfiRefusal refusal = CheckOfiHandshake(handshake, source, own_, rank_);
  if (refusal.verdict == OfiVerdict::kAccepted) {
    const Peer& state = peers_[source];
    const bool known = state.state == State::kOpen || state.said_hello;
    if (state.state == State::kGone) {
      refusal.verdict = OfiVerdict::kGone;
    } else if (known && state.token != handshake.token) {
      refusal.verdict = OfiVerdict::kDuplicate;
    }
  }
  if (refusal.verdict != OfiVerdict::kAccepted) return Refuse(source, handshake, refusal);
  const Rank peer(static_cast<int>(source));
  Peer& state = peers_[source];
  if (!addresses_known()) {
    state.said_hello = true;
    state.token = handshake.token;
    return;
  }
  if (state.state != State::kOpen) {
    // The welcome goes first: what the links send next should not overtake it where the fabric keeps order.
    state.token = handshake.token;
    SendHandshake(peer, OfiKind::kWelcome);
    BecomeOpen(peer, handshake.token);
  }
}

void OfiPeers::Refuse(uint32_t source, const OfiHandshake& handshake, const OfiRefusal& refusal) {
  // As this rank sees it: the detail is for the other.
  OfiRefusal seen = refusal;
  if (refusal.verdict == OfiVerdict::kOtherVersion) seen.detail = handshake.version;
  if (refusal.verdict == OfiVerdict::kOtherWorldSize) seen.detail = handshake.world_size;
  if (refusal.verdict == OfiVerdict::kOtherChunkSize) seen.detail = handshake.chunk_bytes;
  LOCKSTEP_LOG(kWarning) << "ofi transport: rank " << rank_ << " refuses a hello from rank " << source << ": "
                         << RefuserText(seen, handshake, own_);
  int index = -1;
  if (!handshake.address.empty()) {
    index = FindUnauthenticated(handshake.address);
  } else if (source < peers_.size()) {
    index = peers_[source].index;
  }
  if (index < 0) return;
  OfiNotice notice;
  notice.token = handshake.token;
  notice.source = static_cast<uint32_t>(rank_.value());
  unsigned char bytes[kOfiRefusalBytes];
  EncodeOfiRefusal(refusal, bytes);
  SendTo(index, OfiNoticeTag(OfiKind::kRefused, 0), notice, bytes, sizeof(bytes));
  refusals_.emplace_back(index, Deadline::After(connect_timeout_));
}

Rank OfiPeers::RankOf(int index) const { return index < static_cast<int>(ranks_.size()) ? ranks_[index] : Rank(-1); }

int OfiPeers::FindUnauthenticated(const std::string& address) {
  if (const auto found = unauthenticated_.find(address); found != unauthenticated_.end()) return found->second;
  if (unauthenticated_.size() >= kUnauthenticatedMax || address.size() > kOfiAddressBytesMax) return -1;
  const absl::StatusOr<int> index = endpoint_->AddPeer(address);
  if (!index.ok()) return -1;
  unauthenticated_.emplace(address, *index);
  return *index;
}

void OfiPeers::BecomeOpen(Rank peer, uint32_t token) {
  Peer& state = peers_[peer.value()];
  if (state.state == State::kHandshake) --handshaking_;
  state.state = State::kOpen;
  state.token = token;
  links_->OnOpen(peer);
  while (state.early != nullptr) {
    OfiSlot* const slot = state.early;
    state.early = slot->next;
    if (!Handle(slot, {absl::OkStatus(), slot->post.bytes, slot->post.tag})) slots_.Give(slot);
  }
}

void OfiPeers::SeeOff(Rank peer) {
  Peer& state = peers_[peer.value()];
  if ((endpoint_->info().rx_attr->msg_order & FI_ORDER_SAS) != 0) return BecomeGone(peer, Closed());
  if (!state.gone_by.infinite()) return;
  state.gone_by = Deadline::After(kOvertakenTime);
  ++leaving_;
}

void OfiPeers::BecomeGone(Rank peer, absl::Status status) {
  Peer& state = peers_[peer.value()];
  if (state.state == State::kGone) return;
  if (state.state == State::kHandshake) --handshaking_;
  if (!std::exchange(state.gone_by, Deadline::Infinite()).infinite()) --leaving_;
  state.state = State::kGone;
  state.status = std::move(status);
  while (state.early != nullptr) {
    OfiSlot* const slot = state.early;
    state.early = slot->next;
    slots_.Give(slot);
  }
  if (state.hello != nullptr) endpoint_->Cancel(&state.hello->post);
  if (state.index >= 0) endpoint_->CancelRefused(state.index);
  links_->OnGone(peer);
}

void OfiPeers::Lose(Rank peer, const absl::Status& status) {
  BecomeGone(peer, absl::UnavailableError(absl::StrCat("connection lost: ", status.message())));
}

void OfiPeers::SendDisconnect() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Rank peer(static_cast<int>(i));
    if (open(peer)) Send(peer, OfiKind::kDisconnect, 0, {}, nullptr, 0);
  }
}

bool OfiPeers::Progress() {
  if (handshaking_ == 0 && leaving_ == 0 && refusals_.empty()) return false;
  const auto now = Deadline::Clock::now();
  bool ended = false;
  while (!refusals_.empty() && refusals_.front().second.passed(now)) {
    if (RankOf(refusals_.front().first) == Rank(-1)) endpoint_->CancelRefused(refusals_.front().first);
    refusals_.pop_front();
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Rank peer(static_cast<int>(i));
    if (peers_[i].state == State::kHandshake && peers_[i].deadline.passed(now)) {
      BecomeGone(peer, absl::UnavailableError(absl::StrCat("no answer within ", connect_timeout_.count(), " ms")));
      ended = true;
    } else if (peers_[i].gone_by.passed(now)) {
      BecomeGone(peer, Closed());
      ended = true;
    }
  }
  return ended;
}

}  // namespace lockstep

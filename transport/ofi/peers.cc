#include "transport/ofi/peers.h"

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status.h"
#include "transport/net/socket.h"
#include "transport/ofi/ofi_links.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

constexpr size_t kSlabSlots = 64;
// Handshakes that others begin, at once: for each rank two, as a second process may claim to be it, and so many of unauthenticated peers.
size_t HalfOpenMax(uint32_t world_size) { return 2 * size_t{world_size} + 32; }
// How long messages may still come that a disconnect has overtaken.
constexpr std::chrono::milliseconds kOvertakenTime(100);

// In a handshake that another began.
bool IsAnswer(OfiKind kind) {
  return kind == OfiKind::kWelcome || kind == OfiKind::kRefused || kind == OfiKind::kAnswer;
}

absl::Status Closed() { return absl::UnavailableError("connection closed by peer"); }

// That nobody guesses; not 0.
uint64_t NewToken() {
  const absl::StatusOr<uint64_t> token = RandomNumber();
  LOCKSTEP_CHECK(token.ok()) << token.status();
  return *token;
}

}  // namespace

OfiPeers::OfiPeers(OfiHandshake own, const Credentials& credentials, std::chrono::milliseconds connect_timeout,
                   int slots, OfiEndpoint* endpoint, OfiLinks* links)
    : rank_(static_cast<int>(own.source)),
      credentials_(credentials),
      connect_timeout_(connect_timeout),
      endpoint_(endpoint),
      links_(links),
      own_(std::move(own)),
      slots_(endpoint, kOfiSlotBytes, kSlabSlots, std::numeric_limits<size_t>::max()),
      peers_(own_.world_size),
      half_open_(HalfOpen::Bound::kListener, HalfOpenMax(own_.world_size), 0, connect_timeout),
      refusals_(absl::StrCat("ofi transport of rank ", own_.source)) {
  for (size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].own_token = NewToken();
    tokens_.emplace(peers_[i].own_token, Rank(static_cast<int>(i)));
  }
  for (int i = 0; i < slots; ++i) PostReceive();
}

OfiPeers::~OfiPeers() {
  while (!incoming_.empty()) GiveUp(incoming_.begin()->first, Refusal::kUnfinished);
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
  std::vector<uint64_t> waiting;
  for (const auto& [id, incoming] : incoming_) waiting.push_back(id);
  for (const uint64_t id : waiting) Welcome(id);
  return absl::OkStatus();
}

std::string OfiPeers::Describe(Rank peer) const {
  if (addresses_.empty()) return "(its address is not known yet)";
  return DescribeAddress(addresses_[peer.value()]);
}

std::string OfiPeers::DescribeAddress(const std::string& address) const {
  switch (endpoint_->info().addr_format) {
    case FI_SOCKADDR:
    case FI_SOCKADDR_IN:
    case FI_SOCKADDR_IN6:
      return SocketAddress::From(reinterpret_cast<const sockaddr*>(address.data()),
                                 static_cast<socklen_t>(address.size()))
          .ToString();
    case FI_ADDR_STR:
      return absl::CHexEscape(address.c_str());
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
    state.exchange = NewToken();
    state.channel = std::make_unique<Channel>(Purpose::kFabric, Channel::Side::kConnects, credentials_);
    OfiHello hello;
    hello.address = endpoint_->address();
    hello.flight = state.channel->Start();
    state.hello = EncodeOfiHello(hello);
    SayHello(peer);
  }
  return state.state == State::kOpen;
}

void OfiPeers::Send(Rank peer, OfiKind kind, ChannelId channel, OfiNotice notice, const void* payload, size_t bytes,
                    const MessagePieces* pieces) {
  const Peer& state = peers_[peer.value()];
  notice.token = state.token;
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
  if (state.hello_slot == slot) state.hello_slot = nullptr;
  if (IsAnswer(OfiKindOf(post->tag))) --state.answers_waiting;
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
  if (!completion.status.ok() && !completion.truncated) {
    self->slots_.Give(slot);
    if (self->status_.ok()) self->status_ = completion.status;
    return;
  }
  if (completion.truncated) {
    self->refusals_.Note(Refusal::kTooLong, "somebody on the fabric",
                         absl::StrCat("a notice of more than ", kOfiSlotBytes, " bytes"));
  } else if (self->Handle(slot, completion)) {
    return self->PostReceive();
  }
  self->PostReceive(slot);
}

bool OfiPeers::Handle(OfiSlot* slot, const OfiCompletion& completion) {
  const auto drop = [this] {
    refusals_.Note(Refusal::kNotOurs, "somebody on the fabric", absl::StrCat("it ", Text(Refusal::kNotOurs)));
    return false;
  };
  if (completion.bytes < kOfiNoticeBytes) return drop();
  const OfiNotice notice = DecodeOfiNotice(slot->data());
  const unsigned char* const payload = slot->data() + kOfiNoticeBytes;
  const size_t bytes = completion.bytes - kOfiNoticeBytes;
  const OfiKind kind = OfiKindOf(completion.tag);
  switch (kind) {
    case OfiKind::kHello:
    case OfiKind::kWelcome:
    case OfiKind::kRefused:
    case OfiKind::kConfirm:
    case OfiKind::kAnswer:
      HandleHandshake(kind, notice, {reinterpret_cast<const char*>(payload), bytes});
      return false;
    default:
      break;
  }
  const auto found = tokens_.find(notice.token);
  if (found == tokens_.end()) return drop();
  const Rank peer = found->second;
  Peer& state = peers_[peer.value()];
  if (state.state == State::kHandshake) {
    // A fabric may deliver what follows an answer before it: the token shows that this peer has accepted us.
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

Rank OfiPeers::RankOf(int index) const { return index < static_cast<int>(ranks_.size()) ? ranks_[index] : Rank(-1); }

void OfiPeers::BecomeOpen(Rank peer, uint64_t token) {
  Peer& state = peers_[peer.value()];
  if (state.state == State::kHandshake) --handshaking_;
  state.state = State::kOpen;
  state.token = token;
  state.channel = nullptr;
  state.hello = std::string();
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
  state.channel = nullptr;
  state.hello = std::string();
  while (state.early != nullptr) {
    OfiSlot* const slot = state.early;
    state.early = slot->next;
    slots_.Give(slot);
  }
  if (state.hello_slot != nullptr) endpoint_->Cancel(&state.hello_slot->post);
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
  if (handshaking_ == 0 && leaving_ == 0 && answered_.empty() && incoming_.empty()) return false;
  const auto now = Deadline::Clock::now();
  bool ended = false;
  while (!answered_.empty() && answered_.front().second.passed(now)) {
    endpoint_->CancelRefused(answered_.front().first);
    answered_.pop_front();
  }
  while (const absl::optional<uint64_t> id = half_open_.Expired(now)) GiveUp(*id, Refusal::kSilent);
  if (handshaking_ == 0 && leaving_ == 0) return false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Rank peer(static_cast<int>(i));
    const Peer& state = peers_[i];
    if (state.state == State::kHandshake && state.deadline.passed(now)) {
      BecomeGone(peer, absl::UnavailableError(absl::StrCat("no answer within ", connect_timeout_.count(), " ms")));
      ended = true;
    } else if (state.state == State::kHandshake && state.hello_again.passed(now)) {
      if (!state.channel->ready() && state.hello_slot == nullptr) SayHello(peer);
    } else if (state.gone_by.passed(now)) {
      BecomeGone(peer, Closed());
      ended = true;
    }
  }
  return ended;
}

}  // namespace lockstep

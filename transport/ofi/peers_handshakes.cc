// Handshakes of OfiPeers: those that this rank began, and those that others did.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "transport/ofi/peers.h"

namespace lockstep {
namespace {

// Somebody who is refused is told so, but not everybody who may come along, and not as often as they like.
constexpr size_t kUnauthenticatedMax = 32;
constexpr size_t kAnsweredMax = 64;  // in the time that a connection may take

// How many answers wait for a rank that takes none, before one more is not sent. A rank alone makes two wait: it is welcomed, and told that
// it may come. Whoever shows more has more room, so that those who have no secret keep it from no rank.
constexpr int kRefusalsWaitingMax = 4;
constexpr int kWelcomesWaitingMax = 8;  // after a first flight that was made with the secret, by whomever
constexpr int kAnswersWaitingMax = 12;  // to who has the secret

constexpr int kHellosMax = 4;  // in the time that a connection may take

// As whoever refuses says it.
std::string RefuserText(const OfiRefusal& refusal, const OfiHandshake& handshake, const OfiHandshake& own) {
  OfiRefusal seen = refusal;  // the detail is for the other
  switch (refusal.verdict) {
    case OfiVerdict::kOtherRank:
      return absl::StrCat("it is for rank ", handshake.target);
    case OfiVerdict::kNoSuchRank:
      return absl::StrCat("there is no such peer in this world of ", own.world_size);
    case OfiVerdict::kGone:
      return "this rank has lost that one, or given it up";
    case OfiVerdict::kOtherWorldSize:
      seen.detail = handshake.world_size;
      break;
    case OfiVerdict::kOtherChunkSize:
      seen.detail = handshake.chunk_bytes;
      break;
    default:
      break;
  }
  return std::string(OfiRefusalStatus(seen, own).message());
}

}  // namespace

const OfiHandshake& OfiPeers::HandshakeFor(Rank peer) {
  own_.target = static_cast<uint32_t>(peer.value());
  own_.token = peers_[peer.value()].own_token;
  return own_;
}

OfiSlot* OfiPeers::SendHandshake(int index, OfiKind kind, uint64_t exchange, absl::string_view bytes) {
  OfiNotice notice;
  notice.token = exchange;
  notice.number = own_.source;
  return SendTo(index, OfiNoticeTag(kind, 0), notice, bytes.data(), bytes.size());
}

bool OfiPeers::SendAnswer(int index, OfiKind kind, uint64_t exchange, absl::string_view bytes, int waiting_max) {
  const Rank peer = RankOf(index);
  if (peer == Rank(-1)) {
    if (answered_.size() >= kAnsweredMax) return true;
    answered_.emplace_back(index, Deadline::After(connect_timeout_));
    (void)SendHandshake(index, kind, exchange, bytes);
    return true;
  }
  int& waiting = peers_[peer.value()].answers_waiting;
  if (waiting >= waiting_max) return false;
  if (SendHandshake(index, kind, exchange, bytes) != nullptr) ++waiting;
  return true;
}

// The same one: whoever still has it does not take it twice.
void OfiPeers::SayHello(Rank peer) {
  Peer& state = peers_[peer.value()];
  state.hello_again = Deadline::After(connect_timeout_ / kHellosMax);
  state.hello_slot = SendHandshake(state.index, OfiKind::kHello, state.exchange, state.hello);
}

void OfiPeers::HandleHandshake(OfiKind kind, const OfiNotice& notice, absl::string_view bytes) {
  if (kind == OfiKind::kHello) return HandleHello(notice, bytes);
  if (kind == OfiKind::kConfirm) return HandleConfirm(notice, bytes);
  if (notice.number >= peers_.size()) return;
  const Rank peer(static_cast<int>(notice.number));
  const Peer& state = peers_[notice.number];
  // Else it is over already, or was never begun.
  if (state.channel == nullptr || state.exchange != notice.token) return;
  if (state.channel->ready() != (kind == OfiKind::kAnswer)) return;
  if (kind == OfiKind::kWelcome) return HandleWelcome(peer, bytes);
  if (kind == OfiKind::kAnswer) return HandleAnswer(peer, bytes);
  if (bytes.size() < kOfiRefusalBytes) return;
  const OfiRefusal refusal = DecodeOfiRefusal(reinterpret_cast<const unsigned char*>(bytes.data()));
  BecomeGone(peer, Annotate(OfiRefusalStatus(refusal, HandshakeFor(peer)), "the peer refused the connection"));
}

void OfiPeers::HandleHello(const OfiNotice& notice, absl::string_view bytes) {
  OfiHello hello;
  if (!DecodeOfiHello(bytes, &hello)) {
    return refusals_.Note(Refusal::kNotOurs, "somebody on the fabric", absl::StrCat("it ", Text(Refusal::kNotOurs)));
  }
  if (hello.version != kOfiProtocolVersion) return RefuseVersion(notice, hello);
  const bool repeated = std::any_of(incoming_.begin(), incoming_.end(), [&](const auto& entry) {
    return entry.second.exchange == notice.token && entry.second.source == notice.number;
  });
  if (repeated) return;
  const uint64_t id = ++last_incoming_;
  const absl::optional<uint64_t> crowded = half_open_.Add(id, hello.address, Deadline::Clock::now());
  Incoming& incoming = incoming_[id];
  incoming.exchange = notice.token;
  incoming.source = notice.number;
  incoming.hello = std::move(hello);
  if (crowded.has_value()) GiveUp(*crowded, Refusal::kCrowded);
  if (addresses_known() && crowded != id) Welcome(id);
}

void OfiPeers::RefuseVersion(const OfiNotice& notice, const OfiHello& hello) {
  const bool old = hello.version == 1;
  const uint32_t source = old ? static_cast<uint32_t>(notice.token >> 32) : notice.number;
  refusals_.Note(old ? Refusal::kOldProtocol : Refusal::kOtherVersion, absl::StrCat("rank ", source),
                 absl::StrCat("it speaks version ", hello.version, " of the protocol over libfabric, this rank ",
                              kOfiProtocolVersion));
  if (source >= peers_.size() || peers_[source].index < 0) return;
  // Where the old version has its two numbers.
  const uint64_t exchange = old ? uint64_t{own_.source} << 32 | hello.old_token : notice.token;
  unsigned char bytes[kOfiRefusalBytes];
  EncodeOfiRefusal({OfiVerdict::kOtherVersion, kOfiProtocolVersion}, bytes);
  (void)SendAnswer(peers_[source].index, OfiKind::kRefused, exchange,
                   {reinterpret_cast<const char*>(bytes), sizeof(bytes)}, kRefusalsWaitingMax);
}

void OfiPeers::Welcome(uint64_t id) {
  Incoming& incoming = incoming_.at(id);
  const bool known = incoming.source < peers_.size() && incoming.hello.address == addresses_[incoming.source];
  const absl::StatusOr<int> index = known && incoming.source != own_.source
                                        ? peers_[incoming.source].index
                                        : FindUnauthenticated(incoming.hello.address);
  if (!index.ok()) {
    const Refusal refusal = absl::IsResourceExhausted(index.status()) ? Refusal::kCrowded : Refusal::kBroken;
    return TurnAway(id, refusal, absl::StrCat("no rank is there: ", index.status().message()));
  }
  incoming.index = *index;
  incoming.channel = std::make_unique<Channel>(Purpose::kFabric, Channel::Side::kListens, credentials_);
  (void)incoming.channel->Start();
  std::string plain, to_send;
  const std::string flight = std::move(incoming.hello.flight);
  const absl::Status status = incoming.channel->Receive(flight, &plain, &to_send);
  const bool begun_well = incoming.channel->ready() || !incoming.channel->first_flight().empty();
  const bool sent = SendAnswer(incoming.index, OfiKind::kWelcome, incoming.exchange, to_send,
                               begun_well ? kWelcomesWaitingMax : kRefusalsWaitingMax);
  // A rank says hello again, which is then as if it had not come before.
  if (status.ok() && !sent) return GiveUp(id, Refusal::kCrowded);
  half_open_.BegunWell(id, incoming.channel->first_flight(), Deadline::Clock::now());
  if (!status.ok()) TurnAway(id, incoming.channel->refusal(), status.message());
}

void OfiPeers::HandleConfirm(const OfiNotice& notice, absl::string_view bytes) {
  const auto found = std::find_if(incoming_.begin(), incoming_.end(), [&](const auto& entry) {
    return entry.second.exchange == notice.token && entry.second.source == notice.number;
  });
  if (found == incoming_.end() || found->second.channel == nullptr) return;
  const uint64_t id = found->first;
  const Incoming& incoming = found->second;
  std::string plain, to_send;
  const absl::Status status = incoming.channel->Receive(bytes, &plain, &to_send);
  const Refusal refused = incoming.channel->refusal();
  if (!status.ok() && refused != Refusal::kCount) return TurnAway(id, refused, status.message());
  OfiHandshake handshake;
  if (!status.ok() || !incoming.channel->ready() || !DecodeOfiHandshake(plain, &handshake)) {
    return TurnAway(id, Refusal::kBroken, absl::StrCat("it ", Text(Refusal::kBroken)));
  }
  OfiAnswer answer;
  answer.refusal = Judge(handshake, incoming);
  const bool accepted = answer.refusal.verdict == OfiVerdict::kAccepted;
  if (accepted) answer.token = peers_[incoming.source].own_token;
  incoming.channel->Send(EncodeOfiAnswer(answer), &to_send);
  // The answer goes first: what the links send next should not overtake it where the fabric keeps order.
  (void)SendAnswer(incoming.index, OfiKind::kAnswer, incoming.exchange, to_send, kAnswersWaitingMax);
  if (!accepted) return TurnAway(id, Refusal::kOtherWorld, RefuserText(answer.refusal, handshake, own_));
  const Rank peer(static_cast<int>(incoming.source));
  half_open_.Remove(id);
  incoming_.erase(found);
  if (!open(peer)) BecomeOpen(peer, handshake.token);
}

OfiRefusal OfiPeers::Judge(const OfiHandshake& handshake, const Incoming& incoming) const {
  const OfiRefusal refusal = CheckOfiHandshake(handshake, incoming.source, own_);
  if (refusal.verdict != OfiVerdict::kAccepted) return refusal;
  const Peer& state = peers_[incoming.source];
  if (state.state == State::kGone) return {OfiVerdict::kGone, 0};
  if (state.index != incoming.index) return {OfiVerdict::kDuplicate, 0};
  if (state.state == State::kOpen && state.token != handshake.token) return {OfiVerdict::kDuplicate, 0};
  return {};
}

void OfiPeers::TurnAway(uint64_t id, Refusal refusal, absl::string_view what) {
  const auto found = incoming_.find(id);
  const Incoming& incoming = found->second;
  refusals_.Note(refusal, absl::StrCat(DescribeAddress(incoming.hello.address), " (as rank ", incoming.source, ")"),
                 what);
  half_open_.Remove(id);
  incoming_.erase(found);
}

void OfiPeers::GiveUp(uint64_t id, Refusal refusal) {
  const auto found = incoming_.find(id);
  const uint32_t source = found->second.source;
  const bool met = source < peers_.size() && peers_[source].token != 0;
  if (!met) return TurnAway(id, refusal, absl::StrCat("it ", Text(refusal)));
  half_open_.Remove(id);
  incoming_.erase(found);
}

void OfiPeers::HandleWelcome(Rank peer, absl::string_view bytes) {
  const Peer& state = peers_[peer.value()];
  std::string plain, to_send;
  absl::Status status = state.channel->Receive(bytes, &plain, &to_send);
  if (status.ok() && !state.channel->ready()) {
    status = absl::PermissionDeniedError(absl::StrCat("the listener ", Text(Refusal::kBroken)));
  }
  if (status.ok()) state.channel->Send(EncodeOfiHandshake(HandshakeFor(peer)), &to_send);
  if (!to_send.empty()) (void)SendHandshake(state.index, OfiKind::kConfirm, state.exchange, to_send);
  if (!status.ok()) BecomeGone(peer, std::move(status));
}

void OfiPeers::HandleAnswer(Rank peer, absl::string_view bytes) {
  std::string plain, to_send;
  const absl::Status status = peers_[peer.value()].channel->Receive(bytes, &plain, &to_send);
  if (!status.ok()) return BecomeGone(peer, status);
  OfiAnswer answer;
  if (!DecodeOfiAnswer(plain, &answer)) {
    return BecomeGone(peer, absl::PermissionDeniedError(absl::StrCat("the listener ", Text(Refusal::kBroken))));
  }
  if (answer.refusal.verdict == OfiVerdict::kAccepted) return BecomeOpen(peer, answer.token);
  BecomeGone(peer, Annotate(OfiRefusalStatus(answer.refusal, HandshakeFor(peer)), "the peer refused the connection"));
}

absl::StatusOr<int> OfiPeers::FindUnauthenticated(const std::string& address) {
  if (const auto found = unauthenticated_.find(address); found != unauthenticated_.end()) return found->second;
  if (unauthenticated_.size() >= kUnauthenticatedMax) {
    return absl::ResourceExhaustedError(absl::StrCat(kUnauthenticatedMax, " other such addresses were answered"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int index, endpoint_->AddPeer(address));
  unauthenticated_.emplace(address, index);
  return index;
}

}  // namespace lockstep

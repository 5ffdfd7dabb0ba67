#include "transport/ofi/ofi_links.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "transport/net/little_endian.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

constexpr size_t kStagingSlab = 4;
// How often Poll is called before a long message is announced that nobody has asked for: a few times as long as the
// receiver's word needs that it is wanted.
constexpr int kAnnouncingPolls = 64;
// Completions of operations that completions posted, in one RunDue.
constexpr size_t kFollowersMax = 1024;

uint64_t Key(Rank peer, ChannelId channel) { return static_cast<uint64_t>(peer.value()) << 32 | channel; }

// Receives for notices: enough for what may come between two polls, and not more than the provider queues.
int NoticeSlots(const fi_info& info, int size) {
  const int most = static_cast<int>(std::min<size_t>(info.rx_attr->size / 2, 256));
  return std::max(std::min(32 + 4 * size, most), 1);
}

// What this rank says of itself.
OfiHandshake HandshakeOf(const OfiTransportOptions& options, const OfiEndpoint& endpoint) {
  OfiHandshake handshake;
  handshake.source = static_cast<uint32_t>(options.rank.value());
  handshake.world_size = static_cast<uint32_t>(options.size);
  handshake.chunk_bytes = options.chunk_bytes;
  handshake.world_id = options.world_id;
  handshake.job_id = options.job_id;
  handshake.provider = endpoint.info().fabric_attr->prov_name;
  return handshake;
}

}  // namespace

OfiLinks::OfiLinks(const Transport* transport, std::unique_ptr<OfiEndpoint> endpoint,
                   const OfiTransportOptions* options)
    : transport_(transport),
      options_(options),
      counters_(transport->size()),
      endpoint_(std::move(endpoint)),
      memory_(std::make_unique<OfiMemory>(endpoint_.get())),
      staging_(std::make_unique<OfiSlotPool>(endpoint_.get(), options->staging_bytes, kStagingSlab,
                                             options->staging_pieces)),
      peers_(std::make_unique<OfiPeers>(HandshakeOf(*options, *endpoint_), options->credentials,
                                        options->connect_timeout, NoticeSlots(endpoint_->info(), transport->size()),
                                        endpoint_.get(), this)),
      last_used_(transport->size(), nullptr) {
  parts_.transport = transport_;
  parts_.endpoint = endpoint_.get();
  parts_.peers = peers_.get();
  parts_.memory = memory_.get();
  parts_.staging = staging_.get();
  parts_.piece_bytes = options->piece_bytes;
  // Random above what is counted, so that nobody else finds the tags under which memory waits.
  parts_.next_piece = (uint64_t{std::random_device()()} << 31) & (kOfiPieceTag - 1);
}

OfiLinks::~OfiLinks() {
  if (!left_) return;
  // Their destructors would call the provider.
  (void)peers_.release();
  (void)staging_.release();
  (void)memory_.release();
  (void)endpoint_.release();
}

OfiLinks::Link* OfiLinks::Get(Rank peer, ChannelId channel) {
  Link*& last = last_used_[peer.value()];
  if (last == nullptr || last->base.channel != channel) last = Make(peer, channel);
  return last;
}

OfiLinks::Link* OfiLinks::Make(Rank peer, ChannelId channel) {
  std::unique_ptr<Link>& made = links_[Key(peer, channel)];
  if (made != nullptr) return made.get();
  made = std::make_unique<Link>(&outgoing_, &incoming_);
  Link* const link = made.get();
  link->base.parts = &parts_;
  link->base.counters = &counters_[peer.value()];
  link->base.peer = peer;
  link->base.channel = channel;
  const auto broken = broken_channels_.find(channel);
  if (!broken_.ok() || broken != broken_channels_.end()) {
    const absl::Status& status = broken_.ok() ? broken->second : broken_;
    link->send.Break(status, /*abandon=*/false);
    link->receive.Break(status);
  } else if (const absl::Status& gone = peers_->status(peer); !gone.ok()) {
    link->send.BreakBecause(gone, /*abandon=*/false);
    link->receive.End(gone, absl::nullopt);
  }
  return link;
}

template <typename Visit>
void OfiLinks::ForEachLink(Rank peer, Visit visit) {
  for (auto& entry : links_) {
    if (entry.second->base.peer == peer) visit(entry.second.get());
  }
}

void OfiLinks::Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                    Operation* operation) {
  FillSend(operation, target, channel, envelope, data, bytes);
  Get(target, channel)->send.Post(operation);
}

void OfiLinks::Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
                       Operation* operation) {
  FillReceive(operation, source, channel, expected, sink);
  Get(source, channel)->receive.Post(operation);
}

Transport::Exchanged OfiLinks::Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data,
                                        const Sink& sink, int polls) {
  Link* const link = Get(peer, channel);
  const bool possible = link->receive.idle() && link->send.SendAtOnce(envelope, data, sink.bytes);
  if (!possible) return Transport::Exchanged::kNothing;
  for (int poll = 0; poll < polls && link->receive.idle(); ++poll) {
    (void)Poll();
    if (link->receive.idle() && link->receive.ReceiveAtOnce(envelope, sink)) return Transport::Exchanged::kAll;
  }
  return Transport::Exchanged::kSent;
}

bool OfiLinks::Poll() {
  if (!broken_.ok()) return false;
  bool moved = endpoint_->Poll();
  moved |= peers_->Progress();
  if (!closing_.empty()) TellClosed();
  if (!endpoint_->status().ok() && stuck_.ok()) stuck_ = endpoint_->status();
  if (!parts_.unannounced.empty() && ++unannounced_polls_ >= kAnnouncingPolls) AnnounceAll();
  if (!parts_.starved.empty() && staging_->available() > 0) {
    std::vector<OfiReceiver*> starved;
    starved.swap(parts_.starved);
    for (OfiReceiver* const receiver : starved) receiver->Resume();
    moved = true;
  }
  return moved;
}

void OfiLinks::AnnounceAll() {
  unannounced_polls_ = 0;
  std::vector<OfiSender*> senders;
  senders.swap(parts_.unannounced);
  for (OfiSender* const sender : senders) sender->Announce();
}

bool OfiLinks::PrepareToWait() {
  if (!broken_.ok()) return true;
  if (!parts_.unannounced.empty()) AnnounceAll();
  return endpoint_->PrepareToWait();
}

bool OfiLinks::RunDue() {
  if (running_ || parts_.due.empty()) return false;
  running_ = true;
  const size_t most = parts_.due.size() + kFollowersMax;
  while (run_ < parts_.due.size() && run_ < most) {
    // Off the list first: a completion makes it grow.
    Operation* const operation = parts_.due[run_].first;
    const absl::Status status = std::move(parts_.due[run_].second);
    ++run_;
    operation->complete(operation, status);
  }
  parts_.due.erase(parts_.due.begin(), parts_.due.begin() + static_cast<ptrdiff_t>(run_));
  run_ = 0;
  running_ = false;
  return true;
}

void OfiLinks::Revoke(const absl::Status& status, const ChannelId* channel) {
  for (size_t i = run_; i < parts_.due.size(); ++i) {
    if (channel == nullptr || parts_.due[i].first->internal.channel == *channel) parts_.due[i].second = status;
  }
}

void OfiLinks::TellClosed(Link* link) {
  if (link->closing) return;
  link->closing = true;
  link->closing_deadline = Deadline::After(options_->drain_timeout);
  closing_.push_back(link);
  TellClosed();
}

void OfiLinks::TellClosed() {
  for (size_t i = 0; i < closing_.size();) {
    if (closing_[i]->receive.in_flight() > 0) {
      ++i;
      continue;
    }
    unsigned char sent[sizeof(uint32_t)];
    StoreLittleEndian<uint32_t>(closing_[i]->send.sent(), sent);
    closing_[i]->base.Notify(OfiKind::kClosed, closing_[i]->base.received, {}, sent, sizeof(sent));
    closing_[i] = closing_.back();
    closing_.pop_back();
  }
  for (const Link* const link : closing_) {
    if (!link->closing_deadline.passed()) continue;
    stuck_ = absl::UnavailableError(absl::StrCat("memory that rank ", link->base.peer.value(),
                                                 " was sending to did not come back within ",
                                                 options_->drain_timeout.count(), " ms"));
  }
}

void OfiLinks::BreakChannel(ChannelId channel, const absl::Status& status) {
  if (!broken_.ok()) return;
  broken_channels_.emplace(channel, status);
  Revoke(status, &channel);
  for (int i = 0; i < transport_->size(); ++i) {
    const Rank peer(i);
    const auto found = links_.find(Key(peer, channel));
    if (found != links_.end()) {
      found->second->send.Break(status, /*abandon=*/false);
      found->second->receive.Break(status);
    }
    if (peer != transport_->rank() && peers_->open(peer)) TellClosed(Make(peer, channel));
  }
}

bool OfiLinks::in_flight(ChannelId channel) const {
  return std::any_of(links_.begin(), links_.end(), [channel](const auto& entry) {
    const Link& link = *entry.second;
    return link.base.channel == channel && link.send.in_flight() + link.receive.in_flight() > 0;
  });
}

void OfiLinks::DropAll(const absl::Status& status) {
  broken_ = status;
  Revoke(status, nullptr);
  for (auto& entry : links_) {
    entry.second->send.Drop(status);
    entry.second->receive.Drop(status);
  }
}

void OfiLinks::Shutdown(const absl::Status& status, Deadline deadline) {
  if (!broken_.ok()) return;
  // A peer that has left already is not to be spoken to any more.
  (void)endpoint_->Poll();
  peers_->SendDisconnect();
  while (peers_->sends_pending() > 0 && !deadline.passed()) (void)endpoint_->Poll();
  closing_.clear();
  endpoint_->Shutdown();
  DropAll(status);
}

void OfiLinks::Leave(const absl::Status& status) {
  if (left_) return;
  left_ = true;
  endpoint_->Leave();
  DropAll(status);
}

bool OfiLinks::sends_pending() const {
  if (notices_pending()) return true;
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) { return entry.second->send.pending(); });
}

void OfiLinks::OnOpen(Rank peer) {
  ForEachLink(peer, [](Link* link) {
    link->receive.Advance();
    link->send.Advance();
  });
}

void OfiLinks::OnGone(Rank peer) {
  const absl::Status& why = peers_->status(peer);
  ForEachLink(peer, [&](Link* link) {
    link->send.BreakBecause(why, /*abandon=*/true);
    link->receive.End(why, absl::nullopt);
    TellClosed(link);
  });
}

bool OfiLinks::OnNotice(Rank peer, OfiKind kind, ChannelId channel, const OfiNotice& notice,
                        const unsigned char* payload, size_t bytes, OfiSlot* slot) {
  Link* const link = Get(peer, channel);
  link->send.OnExpected(notice.expected);
  if (link->receive.broken() && broken_channels_.contains(channel)) TellClosed(link);
  switch (kind) {
    case OfiKind::kEager:
      return link->receive.OnMessage({notice.number, notice.envelope, bytes, payload, slot});
    case OfiKind::kAnnounce:
      if (bytes >= sizeof(uint64_t)) {
        link->receive.OnMessage(
            {notice.number, notice.envelope, LoadLittleEndian<uint64_t>(payload), nullptr, nullptr});
      }
      break;
    case OfiKind::kGrant:
      if (bytes >= kOfiGrantBytes) link->send.OnGrant(notice.number, notice.envelope, DecodeOfiGrant(payload));
      break;
    case OfiKind::kDiscard:
      link->send.OnDiscard(notice.number);
      break;
    case OfiKind::kClosed: {
      const absl::Status why = absl::UnavailableError("connection closed by peer");
      // The provider may tell of what was received later than this arrives.
      link->send.OnReceived(notice.number);
      // Nothing else of what is under way will be received, so nothing of it is read.
      link->send.BreakBecause(why, /*abandon=*/true);
      link->receive.End(why,
                        bytes >= sizeof(uint32_t) ? LoadLittleEndian<uint32_t>(payload) : absl::optional<uint32_t>());
      TellClosed(link);
      break;
    }
    default:
      break;  // a credit, which `expected` was; or of a later version
  }
  return false;
}

}  // namespace lockstep

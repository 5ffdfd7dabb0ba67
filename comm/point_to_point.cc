#include "comm/point_to_point.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/net/little_endian.h"
namespace lockstep {
namespace {

// Held messages cost more than their bytes.
constexpr size_t kMessageWeight = 128;
size_t Weight(size_t bytes) { return bytes + kMessageWeight; }

// Every frame's envelope. The order on the lane says the rest.
constexpr Envelope kHeaderEnvelope = {'p', '2', 'p', ' ', 'h', 'e', 'a', 'd', 'e', 'r'};
constexpr Envelope kPayloadEnvelope = {'p', '2', 'p', ' ', 'p', 'a', 'y', 'l', 'o', 'a', 'd'};

absl::Status NoRoom(int64_t tag, uint64_t bytes, Rank target, uint64_t room) {
  return absl::FailedPreconditionError(absl::StrCat("the message with tag ", tag, " has ", bytes,
                                                    " B, and the receive on rank ", target.value(), " has room for ",
                                                    room, " B"));
}

bool Matches(const MessageCall& receive, Rank source, int64_t tag) {
  return (receive.peer == kAnySource || receive.peer == source) && (receive.tag == kAnyTag || receive.tag == tag);
}

}  // namespace

MessageCall ToCall(const SendRequest& request) {
  MessageCall call;
  call.send = true;
  call.peer = request.target;
  call.tag = request.tag;
  call.data = static_cast<char*>(const_cast<void*>(request.data));
  call.bytes = request.bytes;
  return call;
}

MessageCall ToCall(const ReceiveRequest& request) {
  MessageCall call;
  call.peer = request.source;
  call.tag = request.tag;
  call.data = static_cast<char*>(request.data);
  call.bytes = request.bytes;
  return call;
}

std::string ToString(const MessageCall& call) {
  return absl::StrCat(call.send ? "send to " : "receive from ",
                      call.peer == kAnySource ? "any rank" : absl::StrCat("rank ", call.peer.value()), " with ",
                      call.tag == kAnyTag ? "any tag" : absl::StrCat("tag ", call.tag), " (", call.bytes, " B)");
}

PointToPoint::PointToPoint(Transport* transport, ChannelId channel, Rank self, int size, absl::Span<const Rank> ranks,
                           Owner* owner)
    : transport_(transport), channel_(channel), self_(self), ranks_(ranks), owner_(owner), lanes_(size) {}

PointToPoint::~PointToPoint() { LOCKSTEP_CHECK(calls_.empty()) << calls_.size() << " messages left"; }

void PointToPoint::Start(MessageCall* call) {
  LOCKSTEP_CHECK(!failed_);
  call->late = false;
  call->info = MessageInfo();
  call->position = calls_.insert(calls_.end(), call);
  call->send ? StartSend(call) : StartReceive(call);
}

void PointToPoint::StartSend(MessageCall* call) {
  const Rank target = call->peer;
  if (target == self_) return SendToSelf(call);
  if (!Open(target, call)) return;
  Lane& to = lane(target);
  Header header = {Kind::kAnnounce, call->tag, 0, call->bytes};
  if (call->bytes <= kEagerBytesMax && to.eager_weight + Weight(call->bytes) <= kEagerWindow) {
    to.eager_weight += Weight(call->bytes);
    header.kind = Kind::kEager;
    SendHeader(target, header, call->bytes == 0 ? call : nullptr);
    // Without a payload, the call may be over and gone by now.
    if (header.bytes > 0 && !failed_) SendPayload(target, call);
    return;
  }
  header.id = ++to.announcements;
  to.announced.emplace(header.id, call);
  SendHeader(target, header, nullptr);
}

void PointToPoint::SendToSelf(MessageCall* call) {
  const Header header = {Kind::kEager, call->tag, 0, call->bytes};
  if (MessageCall* const receive = TakeReceive(self_, call->tag)) {
    receive->info = {self_, call->tag, call->bytes};
    const absl::Status status = CheckRoom(*receive, header);
    if (status.ok() && call->bytes > 0) std::memcpy(receive->data, call->data, call->bytes);
    Done(receive, status);
    Done(call, status);
    return;
  }
  Arrival& arrival = arrivals_.emplace_back();
  arrival.source = self_;
  arrival.header = header;
  arrival.complete = true;
  if (call->bytes > kEagerBytesMax || lane(self_).eager_weight + Weight(call->bytes) > kEagerWindow) {
    arrival.own_send = call;
    return;
  }
  lane(self_).eager_weight += Weight(call->bytes);
  arrival.data.assign(call->data, call->data + call->bytes);
  Done(call, absl::OkStatus());
}

void PointToPoint::StartReceive(MessageCall* call) {
  if (call->peer == kAnySource) {
    for (int r = 0; r < static_cast<int>(lanes_.size()); ++r) {
      // A lane that broke may have nothing for this receive: the others are waited for.
      if (Rank(r) != self_ && !lanes_[r].open) AwaitHeader(Rank(r));
      if (failed_) return;
    }
  } else if (call->peer != self_ && !lane(call->peer).open) {
    AwaitHeader(call->peer);
    if (failed_) return;
  }
  const auto found = std::find_if(arrivals_.begin(), arrivals_.end(), [&](const Arrival& arrival) {
    return arrival.taken_by == nullptr && Matches(*call, arrival.source, arrival.header.tag);
  });
  if (found != arrivals_.end()) return Match(call, found);
  // What came before the lane broke could still be received; nothing more will come.
  if (call->peer != kAnySource && call->peer != self_ && !Open(call->peer, call)) return;
  receives_.push_back(call);
}

bool PointToPoint::Open(Rank peer, MessageCall* call) {
  if (!lane(peer).open) AwaitHeader(peer);
  if (failed_) return false;
  if (lane(peer).broken.ok()) return true;
  owner_->OnMessageFailed(call, lane(peer).broken, peer);
  return false;
}

void PointToPoint::AwaitHeader(Rank peer) {
  lane(peer).open = true;
  Frame* const frame = NewFrame(peer);
  frame->incoming_header = true;
  Sink sink;
  sink.target = frame->header.data();
  sink.bytes = frame->header.size();
  transport_->Receive(TransportRank(peer), channel_, kHeaderEnvelope, sink, &frame->operation);
}

void PointToPoint::SendHeader(Rank peer, const Header& header, MessageCall* call) {
  Frame* const frame = NewFrame(peer);
  frame->header = EncodeHeader(header);
  frame->call = call;
  transport_->Send(TransportRank(peer), channel_, kHeaderEnvelope, frame->header.data(), frame->header.size(),
                   &frame->operation);
}

void PointToPoint::SendPayload(Rank peer, MessageCall* call) {
  Frame* const frame = NewFrame(peer);
  frame->call = call;
  transport_->Send(TransportRank(peer), channel_, kPayloadEnvelope, call->data, call->bytes, &frame->operation);
}

void PointToPoint::ReceivePayload(Rank peer, void* target, size_t bytes, MessageCall* call, Arrival* arrival) {
  Frame* const frame = NewFrame(peer);
  frame->call = call;
  frame->arrival = arrival;
  Sink sink;
  sink.target = target;
  sink.bytes = bytes;
  transport_->Receive(TransportRank(peer), channel_, kPayloadEnvelope, sink, &frame->operation);
}

void PointToPoint::OnOperationComplete(Operation* operation, const absl::Status& status) {
  // The operation is the frame's first member.
  Frame* const frame = reinterpret_cast<Frame*>(operation);
  PointToPoint* const self = frame->messages;
  const Frame done = *frame;
  frame->next_free = self->free_frames_;
  self->free_frames_ = frame;
  if (self->failed_) return;
  if (!status.ok()) return self->OnBroken(done.peer, status);
  if (done.incoming_header) return self->OnHeader(done.peer, DecodeHeader(done.header));
  if (done.arrival != nullptr) {
    done.arrival->complete = true;
    if (done.arrival->taken_by != nullptr) self->Deliver(done.arrival->taken_by, done.arrival);
    return;
  }
  if (done.call != nullptr) self->Done(done.call, absl::OkStatus());
}

void PointToPoint::OnHeader(Rank source, const Header& header) {
  Lane& from = lane(source);
  switch (header.kind) {
    case Kind::kEager:
      if (header.bytes > kEagerBytesMax || header.tag < 0) return Broken(source, "an eager message that is none");
      from.held_weight += Weight(header.bytes);
      if (from.held_weight > kEagerWindow) return Broken(source, "more than may wait for a receiver");
      OnEager(source, header);
      break;
    case Kind::kAnnounce:
      if (header.tag < 0) return Broken(source, "a message with a negative tag");
      OnAnnounce(source, header);
      break;
    case Kind::kAccept:
    case Kind::kRefuse: {
      const auto it = from.announced.find(header.id);
      if (it == from.announced.end()) return Broken(source, "an answer to nothing");
      MessageCall* const call = it->second;
      from.announced.erase(it);
      if (header.kind == Kind::kRefuse) {
        Done(call, NoRoom(call->tag, call->bytes, source, header.bytes));
        break;
      }
      const Header data = {Kind::kData, 0, header.id, call->bytes};
      SendHeader(source, data, call->bytes == 0 ? call : nullptr);
      if (data.bytes > 0 && !failed_) SendPayload(source, call);
      break;
    }
    case Kind::kData: {
      const auto it = from.accepted.find(header.id);
      if (it == from.accepted.end() || it->second->info.bytes != header.bytes) {
        return Broken(source, "data that was not asked for");
      }
      MessageCall* const call = it->second;
      from.accepted.erase(it);
      header.bytes == 0 ? Done(call, absl::OkStatus())
                        : ReceivePayload(source, call->data, header.bytes, call, nullptr);
      break;
    }
    case Kind::kConsumed:
      if (header.bytes > from.eager_weight) return Broken(source, "more consumed than was sent");
      from.eager_weight -= header.bytes;
      break;
    default:
      return Broken(source, "a header of no known kind");
  }
  // The payload, if there is one, comes before the next header, and has been asked for.
  if (!failed_) AwaitHeader(source);
}

void PointToPoint::OnEager(Rank source, const Header& header) {
  MessageCall* const receive = TakeReceive(source, header.tag);
  if (receive != nullptr) receive->info = {source, header.tag, header.bytes};
  if (receive != nullptr && CheckRoom(*receive, header).ok()) {
    Consumed(source, header.bytes);
    if (failed_) return;
    header.bytes == 0 ? Done(receive, absl::OkStatus())
                      : ReceivePayload(source, receive->data, header.bytes, receive, nullptr);
    return;
  }
  Arrival& arrival = arrivals_.emplace_back();
  arrival.source = source;
  arrival.header = header;
  arrival.taken_by = receive;  // which has no room, and hears of it when the message is out of the way
  arrival.data.resize(header.bytes);
  arrival.complete = header.bytes == 0;
  if (header.bytes > 0) ReceivePayload(source, arrival.data.data(), header.bytes, nullptr, &arrival);
}

void PointToPoint::OnAnnounce(Rank source, const Header& header) {
  if (MessageCall* const receive = TakeReceive(source, header.tag)) return Answer(receive, source, header);
  Arrival& arrival = arrivals_.emplace_back();
  arrival.source = source;
  arrival.header = header;
}

MessageCall* PointToPoint::TakeReceive(Rank source, int64_t tag) {
  const auto it = std::find_if(receives_.begin(), receives_.end(),
                               [&](const MessageCall* receive) { return Matches(*receive, source, tag); });
  if (it == receives_.end()) return nullptr;
  MessageCall* const receive = *it;
  receives_.erase(it);
  return receive;
}

void PointToPoint::Match(MessageCall* receive, std::list<Arrival>::iterator arrival) {
  if (arrival->header.kind == Kind::kAnnounce) {
    const Rank source = arrival->source;
    const Header header = arrival->header;
    arrivals_.erase(arrival);
    return Answer(receive, source, header);
  }
  arrival->taken_by = receive;
  receive->info = {arrival->source, arrival->header.tag, arrival->header.bytes};
  if (arrival->complete) Deliver(receive, &*arrival);
}

void PointToPoint::Deliver(MessageCall* receive, Arrival* arrival) {
  const size_t bytes = arrival->header.bytes;
  const Rank source = arrival->source;
  MessageCall* const own_send = arrival->own_send;
  const absl::Status status = CheckRoom(*receive, arrival->header);
  if (status.ok() && bytes > 0) {
    std::memcpy(receive->data, own_send != nullptr ? own_send->data : arrival->data.data(), bytes);
  }
  Forget(arrival);
  if (own_send == nullptr) Consumed(source, bytes);
  if (failed_) return;
  Done(receive, status);
  if (own_send != nullptr) Done(own_send, status);
}

void PointToPoint::Answer(MessageCall* receive, Rank source, const Header& announced) {
  receive->info = {source, announced.tag, announced.bytes};
  const absl::Status status = CheckRoom(*receive, announced);
  if (status.ok()) {
    lane(source).accepted.emplace(announced.id, receive);
    return SendHeader(source, {Kind::kAccept, 0, announced.id, 0}, nullptr);
  }
  SendHeader(source, {Kind::kRefuse, 0, announced.id, receive->bytes}, nullptr);
  if (!failed_) Done(receive, status);
}

absl::Status PointToPoint::CheckRoom(const MessageCall& receive, const Header& header) const {
  if (header.bytes <= receive.bytes) return absl::OkStatus();
  return NoRoom(header.tag, header.bytes, self_, receive.bytes);
}

void PointToPoint::Consumed(Rank source, size_t bytes) {
  if (source == self_) {
    lane(self_).eager_weight -= Weight(bytes);
    return;
  }
  lane(source).held_weight -= Weight(bytes);
  size_t& weight = lane(source).consumed_weight;
  weight += Weight(bytes);
  if (weight < kEagerWindow / 2) return;
  const Header header = {Kind::kConsumed, 0, 0, weight};
  weight = 0;
  SendHeader(source, header, nullptr);
}

void PointToPoint::Forget(Arrival* arrival) {
  arrivals_.remove_if([arrival](const Arrival& other) { return &other == arrival; });
}

void PointToPoint::Done(MessageCall* call, const absl::Status& status) {
  calls_.erase(call->position);
  owner_->OnMessageDone(call, status);
}

void PointToPoint::Broken(Rank peer, const char* how) {
  OnBroken(peer, absl::InternalError(absl::StrCat("messages: rank ", peer.value(), " sent ", how)));
}

void PointToPoint::OnBroken(Rank peer, const absl::Status& status) {
  if (!lane(peer).broken.ok()) return;
  lane(peer).broken = status;
  // What has not come whole never will.
  arrivals_.remove_if([&](const Arrival& arrival) {
    return arrival.source == peer && !arrival.complete && arrival.taken_by == nullptr;
  });
  // A rank may leave when nobody needs it any more. A matched receive knows its source.
  const auto needs = [&](const MessageCall* call) {
    if (call->peer == peer) return true;
    if (call->send || call->peer != kAnySource || call->info.source != peer) return false;
    return std::find(receives_.begin(), receives_.end(), call) == receives_.end();
  };
  const auto call = std::find_if(calls_.begin(), calls_.end(), needs);
  if (call != calls_.end()) owner_->OnMessageFailed(*call, status, peer);
}

void PointToPoint::FailAll(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  // Completes every frame in flight; OnOperationComplete only takes them back.
  if (transport_ != nullptr) transport_->AbortChannel(channel_, status);
  receives_.clear();
  arrivals_.clear();
  while (!calls_.empty()) {
    MessageCall* const call = calls_.front();
    calls_.pop_front();
    owner_->OnMessageDone(call, status);
  }
}

std::array<unsigned char, PointToPoint::kHeaderBytes> PointToPoint::EncodeHeader(const Header& header) {
  std::array<unsigned char, kHeaderBytes> bytes = {};
  bytes[0] = static_cast<unsigned char>(header.kind);
  StoreLittleEndian<uint64_t>(header.tag, &bytes[8]);
  StoreLittleEndian<uint64_t>(header.id, &bytes[16]);
  StoreLittleEndian<uint64_t>(header.bytes, &bytes[24]);
  return bytes;
}

PointToPoint::Header PointToPoint::DecodeHeader(const std::array<unsigned char, kHeaderBytes>& bytes) {
  Header header;
  header.kind = static_cast<Kind>(bytes[0]);
  header.tag = static_cast<int64_t>(LoadLittleEndian<uint64_t>(&bytes[8]));
  header.id = LoadLittleEndian<uint64_t>(&bytes[16]);
  header.bytes = LoadLittleEndian<uint64_t>(&bytes[24]);
  return header;
}

PointToPoint::Frame* PointToPoint::NewFrame(Rank peer) {
  Frame* frame = free_frames_;
  if (frame != nullptr) {
    free_frames_ = frame->next_free;
  } else {
    frame = &frames_.emplace_back();
    frame->messages = this;
    frame->operation.complete = &OnOperationComplete;
  }
  frame->peer = peer;
  frame->incoming_header = false;
  frame->call = nullptr;
  frame->arrival = nullptr;
  return frame;
}

}  // namespace lockstep

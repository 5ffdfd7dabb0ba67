#include "transport/ofi/receiver.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/types/dtype.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

// How many messages may be expected that the peer does not know of before it is told without being sent anything else.
constexpr uint32_t kUntoldMax = kOfiUnexpectedMax / 2;

// Puts what arrived into the sink, or into its pieces if they are not null.
void Combine(const Sink& sink, const MessagePieces* pieces, size_t offset, const unsigned char* source, size_t bytes) {
  if (pieces != nullptr) return CombinePieces(*pieces, sink.reduction, offset, source, bytes);
  unsigned char* const target = static_cast<unsigned char*>(sink.target) + offset;
  if (sink.reduction == nullptr) {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return;
  }
  sink.reduction->combine(target, static_cast<const unsigned char*>(sink.operand) + offset, source,
                          bytes / SizeOf(sink.reduction->dtype));
}

}  // namespace

bool OfiReceiver::Long(const OfiIncoming& record) const {
  return record.operation->internal.sink.bytes > kOfiEagerBytesMax;
}

void OfiReceiver::Post(Operation* operation) {
  OfiIncoming* const record = records_->Take();
  record->operation = operation;
  record->number = base_->posted++;
  (front_ == nullptr ? front_ : back_->next) = record;
  back_ = record;
  if (broken()) return CompleteFront();
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                  [&](const Message& message) { return message.number == record->number; });
  if (found != unexpected_.end()) {
    const Message message = *found;
    *found = unexpected_.back();
    unexpected_.pop_back();
    Match(record, message);
    if (message.slot != nullptr) base_->parts->peers->GiveBack(message.slot);
  } else if (!Awaited(*record)) {
    return CompleteFront();
  } else if (Long(*record) && base_->parts->peers->open(base_->peer)) {
    Advance();
  }
  TellExpected();
}

bool OfiReceiver::ReceiveAtOnce(const Envelope& expected, const Sink& sink) {
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                  [&](const Message& message) { return message.number == base_->posted; });
  if (found == unexpected_.end()) return false;
  if (found->slot == nullptr || found->envelope != expected || found->bytes != sink.bytes) return false;
  Combine(sink, /*pieces=*/nullptr, 0, found->payload, sink.bytes);
  base_->parts->peers->GiveBack(found->slot);
  *found = unexpected_.back();
  unexpected_.pop_back();
  ++base_->posted;
  ++base_->completed;
  ++base_->received;
  base_->counters->received_bytes += sink.bytes;
  ++base_->counters->received_messages;
  TellExpected();
  return true;
}

void OfiReceiver::TellExpected() {
  if (base_->expected() - base_->told < kUntoldMax) return;
  base_->Notify(OfiKind::kCredit, 0, {}, nullptr, 0);
}

void OfiReceiver::Advance() {
  if (broken() || ended_ || !base_->parts->peers->open(base_->peer)) return;
  const OfiSlotPool& staging = *base_->parts->staging;
  more_to_grant_ = false;
  for (OfiIncoming* record = front_; record != nullptr; record = record->next) {
    if (record->state != OfiIncoming::State::kWaiting || !Long(*record)) continue;
    const bool staged = record->operation->internal.sink.reduction != nullptr;
    more_to_grant_ =
        granted_early_ >= kOfiGrantedEarlyMax || (staged && staging.available() <= staging.slots_max() / 2);
    if (more_to_grant_) break;
    ++granted_early_;
    Grant(record);
    if (broken()) return;
  }
  TellExpected();
}

bool OfiReceiver::OnMessage(const Message& message) {
  if (broken()) return false;
  if (OfiBefore(message.number, base_->posted)) {
    if (OfiIncoming* const record = OfiFind(front_, message.number)) Match(record, message);
    return false;
  }
  // More than the peer may send: it is none that follows our protocol.
  if (unexpected_.size() >= kOfiUnexpectedMax) return false;
  unexpected_.push_back(message);
  return true;
}

void OfiReceiver::Match(OfiIncoming* record, const Message& message) {
  using State = OfiIncoming::State;
  const bool early = record->state == State::kMoving || record->state == State::kStarved;
  if (record->announced || (!early && record->state != State::kWaiting)) return;
  record->announced = true;
  if (early) --granted_early_;
  const Operation::Internal& expected = record->operation->internal;
  const Sink& sink = expected.sink;
  record->operation->arrived = message.envelope;
  record->operation->arrived_bytes = message.bytes;
  const bool fits = message.envelope == expected.envelope && message.bytes == expected.bytes;
  const bool whole = message.slot != nullptr;
  if (fits && !whole) {
    if (!early && !ended_) Grant(record);
  } else if (fits && !early) {
    Combine(sink, record->operation->pieces, 0, message.payload, sink.bytes);
    record->state = State::kDone;
  } else {
    // If it was asked for in advance, it does not come that way.
    CancelPieces(record);
    if (!whole) base_->Notify(OfiKind::kDiscard, message.number, {}, nullptr, 0);
    record->state = State::kMismatch;
  }
  CompleteFront();
  if (early && more_to_grant_) Advance();
}

void OfiReceiver::Grant(OfiIncoming* record) {
  const Sink& sink = record->operation->internal.sink;
  OfiParts& parts = *base_->parts;
  const bool staged = sink.reduction != nullptr;
  if (!staged) {
    absl::StatusOr<OfiMemory::Region*> region = parts.memory->Borrow(sink.target, sink.bytes);
    if (!region.ok()) return Fail(region.status());
    record->region = *region;
  }
  record->piece_bytes = staged ? static_cast<uint32_t>(parts.staging->slot_bytes()) : parts.piece_bytes;
  record->pieces = static_cast<uint32_t>((sink.bytes + record->piece_bytes - 1) / record->piece_bytes);
  record->first_piece = parts.next_piece;
  parts.next_piece += record->pieces;
  record->state = OfiIncoming::State::kMoving;
  GrantMore(record);
}

void OfiReceiver::GrantMore(OfiIncoming* record) {
  // The sender is told when a good part is free, not of every piece.
  if (record->granted > 0 && record->in_flight > kOfiPiecesMax / 2) return;
  while (record->posted < record->pieces && record->in_flight < kOfiPiecesMax && PostPiece(record)) {
  }
  if (record->posted < record->pieces && record->in_flight == 0) {
    // Waits for a slot; nothing of this message will bring one.
    record->state = OfiIncoming::State::kStarved;
    if (!starving_) base_->parts->starved.push_back(this);
    starving_ = true;
  }
  if (record->posted == record->granted) return;
  record->granted = record->posted;
  const OfiGrant grant = {record->operation->internal.bytes, record->first_piece, record->piece_bytes, record->granted};
  unsigned char bytes[kOfiGrantBytes];
  EncodeOfiGrant(grant, bytes);
  base_->Notify(OfiKind::kGrant, record->number, record->operation->internal.envelope, bytes, sizeof(bytes));
}

bool OfiReceiver::PostPiece(OfiIncoming* record) {
  const Sink& sink = record->operation->internal.sink;
  OfiParts& parts = *base_->parts;
  OfiSlot* staging = nullptr;
  if (sink.reduction != nullptr && (staging = parts.staging->Take()) == nullptr) return false;
  const uint32_t index = record->posted++;
  const size_t offset = size_t{index} * record->piece_bytes;
  OfiPiece* const piece = parts.pieces.Take();
  piece->link = this;
  piece->record = record;
  piece->index = index;
  piece->staging = staging;
  piece->post.complete = &OnPieceReceived;
  piece->post.kind = OfiPost::Kind::kReceive;
  piece->post.bytes = std::min<size_t>(record->piece_bytes, sink.bytes - offset);
  piece->post.tag = kOfiPieceTag | ((record->first_piece + index) & (kOfiPieceTag - 1));
  if (staging != nullptr) {
    piece->post.buffer = staging->post.buffer;
    piece->post.descriptor = staging->post.descriptor;
  } else if (record->operation->pieces != nullptr) {
    piece->SetPlaces(record->operation->pieces->memory, offset);
  } else {
    piece->post.buffer = static_cast<unsigned char*>(sink.target) + offset;
    piece->post.descriptor = record->region == nullptr ? nullptr : record->region->descriptor();
  }
  ++record->in_flight;
  flying_.push_back(piece);
  parts.endpoint->Post(&piece->post);
  return true;
}

void OfiReceiver::OnPieceReceived(OfiPost* post, const OfiCompletion& completion) {
  OfiPiece* const piece = reinterpret_cast<OfiPiece*>(post);
  OfiReceiver* const self = static_cast<OfiReceiver*>(piece->link);
  OfiParts& parts = *self->base_->parts;
  OfiIncoming* const record = static_cast<OfiIncoming*>(piece->record);
  self->flying_.erase(std::find(self->flying_.begin(), self->flying_.end(), piece));
  --record->in_flight;
  const bool cancelled = absl::IsCancelled(completion.status);
  const bool whole = completion.status.ok() && completion.bytes == post->bytes;
  if (whole && !self->broken() && record->state == OfiIncoming::State::kMoving) self->Arrived(record, piece);
  if (piece->staging != nullptr) parts.staging->Give(piece->staging);
  const size_t wanted = post->bytes;
  parts.pieces.Give(piece);
  if (completion.status.ok() && !whole) {
    self->Fail(absl::DataLossError(
        absl::StrCat("a piece of ", completion.bytes, " bytes arrived where ", wanted, " were expected")));
  } else if (!whole && !cancelled) {
    self->Fail(completion.status);
  } else if (whole && record->state == OfiIncoming::State::kMoving && !self->broken() && !self->ended_) {
    self->GrantMore(record);
  }
  self->CompleteFront();
  if (self->more_to_grant_) self->Advance();
}

void OfiReceiver::Arrived(OfiIncoming* record, OfiPiece* piece) {
  if (!record->announced) {
    record->announced = true;
    --granted_early_;
  }
  if (piece->staging != nullptr) {
    Combine(record->operation->internal.sink, record->operation->pieces, size_t{piece->index} * record->piece_bytes,
            piece->staging->data(), piece->post.bytes);
  }
  if (++record->arrived == record->pieces) record->state = OfiIncoming::State::kDone;
}

void OfiReceiver::Resume() {
  starving_ = false;
  if (broken() || ended_) return;
  for (OfiIncoming* record = front_; record != nullptr && !starving_; record = record->next) {
    if (record->state != OfiIncoming::State::kStarved) continue;
    record->state = OfiIncoming::State::kMoving;
    GrantMore(record);
  }
}

void OfiReceiver::CancelPieces(const OfiIncoming* of) {
  for (OfiPiece* const piece : flying_) {
    if (of == nullptr || piece->record == of) base_->parts->endpoint->Cancel(&piece->post);
  }
}

void OfiReceiver::CompleteFront() {
  using State = OfiIncoming::State;
  while (front_ != nullptr) {
    OfiIncoming* const record = front_;
    if (record->in_flight > 0) break;
    if (record->state == State::kMismatch && !broken()) {
      return Fail(Mismatch(*record->operation));
    }
    const bool done = record->state == State::kDone && !broken();
    if (!done && !broken() && Awaited(*record)) break;
    front_ = record->next;
    ++base_->completed;
    base_->parts->memory->Return(record->region);
    if (done) {
      ++base_->received;
      base_->counters->received_bytes += record->operation->internal.bytes;
      ++base_->counters->received_messages;
    }
    base_->parts->due.emplace_back(record->operation, done ? absl::OkStatus() : broken() ? status_ : end_);
    records_->Give(record);
  }
  if (!broken()) TellExpected();
}

void OfiReceiver::Fail(const absl::Status& status) { Break(base_->Because(/*sends=*/false, status)); }

void OfiReceiver::Break(const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok());
  if (!broken()) {
    status_ = status;
    for (const Message& message : unexpected_) {
      if (message.slot != nullptr) base_->parts->peers->GiveBack(message.slot);
    }
    unexpected_.clear();
    CancelPieces(nullptr);
  }
  CompleteFront();
}

bool OfiReceiver::Awaited(const OfiIncoming& record) const {
  return !ended_ || (sent_.has_value() && OfiBefore(record.number, *sent_));
}

void OfiReceiver::End(const absl::Status& cause, absl::optional<uint32_t> sent) {
  if (!ended_) {
    ended_ = true;
    end_ = base_->Because(/*sends=*/false, cause);
    sent_ = sent;
  } else if (!sent.has_value()) {
    sent_ = absl::nullopt;
  }
  for (const OfiIncoming* record = front_; record != nullptr; record = record->next) {
    if (!Awaited(*record)) CancelPieces(record);
  }
  CompleteFront();
}

void OfiReceiver::Drop(const absl::Status& status) {
  flying_.clear();
  for (OfiIncoming* record = front_; record != nullptr; record = record->next) record->in_flight = 0;
  Break(status);
}

}  // namespace lockstep

#include "transport/ofi/sender.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "transport/net/little_endian.h"

namespace lockstep {
void OfiSender::Post(Operation* operation) {
  OfiOutgoing* const record = records_->Take();
  record->operation = operation;
  record->number = next_number_++;
  (front_ == nullptr ? front_ : back_->next) = record;
  back_ = record;
  if (broken()) return CompleteFront();
  if (to_start_ == nullptr) to_start_ = record;
  Advance();
}

bool OfiSender::SendAtOnce(const Envelope& envelope, const void* data, size_t bytes) {
  const bool possible = front_ == nullptr && early_.empty() && !broken() && bytes <= kOfiEagerBytesMax &&
                        base_->parts->peers->open(base_->peer) && Expected(next_number_);
  if (!possible) return false;
  base_->Notify(OfiKind::kEager, next_number_++, envelope, data, bytes);
  sent_ = next_number_;
  base_->counters->sent_bytes += bytes;
  ++base_->counters->sent_messages;
  return true;
}

void OfiSender::Advance() {
  if (broken() || to_start_ == nullptr || !base_->parts->peers->Open(base_->peer)) return;
  while (to_start_ != nullptr && Start(to_start_)) to_start_ = to_start_->next;
  CompleteFront();
}

bool OfiSender::Start(OfiOutgoing* record) {
  const Operation::Internal& message = record->operation->internal;
  if (!early_.empty() && StartGranted(record)) return true;
  if (message.bytes <= kOfiEagerBytesMax) {
    if (!Expected(record->number)) return false;
    base_->Notify(OfiKind::kEager, record->number, message.envelope, message.source, message.bytes,
                  record->operation->pieces);
    record->state = OfiOutgoing::State::kDone;
    return true;
  }
  record->state = OfiOutgoing::State::kStarted;
  if (!unannounced_) base_->parts->unannounced.push_back(this);
  unannounced_ = true;
  return true;
}

bool OfiSender::Expected(uint32_t number) const { return OfiBefore(number, peer_expects_ + kOfiUnexpectedMax); }

void OfiSender::Announce() {
  unannounced_ = false;
  if (broken()) return;
  for (OfiOutgoing* record = front_; record != nullptr && !unannounced_; record = record->next) {
    if (record->state == OfiOutgoing::State::kStarted) Announce(record);
  }
}

void OfiSender::Announce(OfiOutgoing* record) {
  if (!Expected(record->number)) {
    base_->parts->unannounced.push_back(this);
    unannounced_ = true;
    return;
  }
  const Operation::Internal& message = record->operation->internal;
  unsigned char bytes[sizeof(uint64_t)];
  StoreLittleEndian<uint64_t>(message.bytes, bytes);
  base_->Notify(OfiKind::kAnnounce, record->number, message.envelope, bytes, sizeof(bytes));
  record->state = OfiOutgoing::State::kAnnounced;
}

bool OfiSender::StartGranted(OfiOutgoing* record) {
  const Operation::Internal& message = record->operation->internal;
  for (size_t i = 0; i < early_.size(); ++i) {
    const Early early = early_[i];
    if (early.number != record->number) continue;
    early_.erase(early_.begin() + static_cast<ptrdiff_t>(i));
    // If it is another message than the receiver expects, it is sent as if nobody had asked, and the receiver sees.
    if (early.envelope != message.envelope || early.grant.bytes != message.bytes) return false;
    Move(record, early.grant);
    return true;
  }
  return false;
}

void OfiSender::Move(OfiOutgoing* record, const OfiGrant& grant) {
  const Operation::Internal& message = record->operation->internal;
  if (grant.piece_bytes == 0) return;
  if (record->state != OfiOutgoing::State::kMoving) {
    absl::StatusOr<OfiMemory::Region*> region = base_->parts->memory->Borrow(message.source, message.bytes);
    if (!region.ok()) return BreakBecause(region.status(), /*abandon=*/false);
    record->region = *region;
    record->state = OfiOutgoing::State::kMoving;
    record->grant = grant;
    record->pieces = static_cast<uint32_t>((message.bytes + grant.piece_bytes - 1) / grant.piece_bytes);
  }
  record->grant.pieces = std::min(std::max(record->grant.pieces, grant.pieces), record->pieces);
  PostPieces(record);
}

void OfiSender::PostPieces(OfiOutgoing* record) {
  const Operation::Internal& message = record->operation->internal;
  while (record->posted < record->grant.pieces && record->posted - record->done < kOfiPiecesMax) {
    const uint32_t index = record->posted++;
    const size_t offset = size_t{index} * record->grant.piece_bytes;
    OfiPiece* const piece = base_->parts->pieces.Take();
    piece->link = this;
    piece->record = record;
    piece->region = nullptr;
    piece->index = index;
    piece->post.complete = &OnPieceSent;
    piece->post.kind = OfiPost::Kind::kSend;
    piece->post.peer = base_->parts->peers->index(base_->peer);
    piece->post.bytes = std::min<size_t>(record->grant.piece_bytes, message.bytes - offset);
    if (record->operation->pieces != nullptr) {
      piece->SetPlaces(record->operation->pieces->memory, offset);
    } else {
      piece->post.buffer = static_cast<unsigned char*>(const_cast<void*>(message.source)) + offset;
      piece->post.descriptor = record->region == nullptr ? nullptr : record->region->descriptor();
    }
    piece->post.tag = kOfiPieceTag | ((record->grant.piece + index) & (kOfiPieceTag - 1));
    flying_.push_back(piece);
    base_->parts->endpoint->Post(&piece->post);
  }
}

void OfiSender::OnPieceSent(OfiPost* post, const OfiCompletion& completion) {
  OfiPiece* const piece = reinterpret_cast<OfiPiece*>(post);
  OfiSender* const self = static_cast<OfiSender*>(piece->link);
  OfiOutgoing* const record = static_cast<OfiOutgoing*>(piece->record);
  OfiMemory::Region* const region = piece->region;
  self->base_->parts->pieces.Give(piece);
  if (record == nullptr) return self->base_->parts->memory->Return(region);
  self->flying_.erase(std::find(self->flying_.begin(), self->flying_.end(), piece));
  ++record->done;
  if (!completion.status.ok() && !absl::IsCancelled(completion.status)) {
    self->base_->parts->peers->Lose(self->base_->peer, completion.status);
  } else if (!self->broken()) {
    if (record->done == record->pieces) record->state = OfiOutgoing::State::kDone;
    self->PostPieces(record);
  }
  self->CompleteFront();
}

void OfiSender::CompleteFront() {
  while (front_ != nullptr) {
    OfiOutgoing* const record = front_;
    const bool done = record->state == OfiOutgoing::State::kDone && !broken();
    if (!done && (!broken() || record->posted != record->done)) return;
    front_ = record->next;
    base_->parts->memory->Return(record->region);
    if (done) {
      sent_ = record->number + 1;
      base_->counters->sent_bytes += record->operation->internal.bytes;
      ++base_->counters->sent_messages;
    }
    base_->parts->due.emplace_back(record->operation, done ? absl::OkStatus() : status_);
    records_->Give(record);
  }
}

void OfiSender::OnExpected(uint32_t expected) {
  // Notices may arrive in another order than they were sent in.
  if (!OfiBefore(peer_expects_, expected)) return;
  peer_expects_ = expected;
  Advance();
}

void OfiSender::OnGrant(uint32_t number, const Envelope& envelope, const OfiGrant& grant) {
  if (broken()) return;
  OfiOutgoing* const record = OfiFind(front_, number);
  if (record == nullptr || record->state == OfiOutgoing::State::kWaiting) {
    // No receiver asks for more in advance.
    if (OfiBefore(number, next_number_) && record == nullptr) return;
    if (early_.size() >= kOfiGrantedEarlyMax) return;
    early_.push_back({number, envelope, grant});
    return Advance();
  }
  // A grant of something else than is announced, or will be: the receiver sees that.
  if (envelope != record->operation->internal.envelope || grant.bytes != record->operation->internal.bytes) return;
  Move(record, grant);
}

void OfiSender::OnDiscard(uint32_t number) {
  OfiOutgoing* const record = OfiFind(front_, number);
  if (record == nullptr || record->state != OfiOutgoing::State::kAnnounced) return;
  record->state = OfiOutgoing::State::kDone;
  CompleteFront();
}

void OfiSender::OnReceived(uint32_t count) {
  for (OfiOutgoing* record = front_; record != nullptr && OfiBefore(record->number, count); record = record->next) {
    if (record->state != OfiOutgoing::State::kMoving) continue;
    Abandon(record);
    record->state = OfiOutgoing::State::kDone;
  }
  CompleteFront();
}

void OfiSender::Break(const absl::Status& status, bool abandon) {
  LOCKSTEP_CHECK(!status.ok());
  if (!broken()) {
    status_ = status;
    to_start_ = nullptr;
    early_.clear();
    // What the provider has not taken needs no waiting for.
    for (OfiPiece* const piece : flying_) {
      if (piece->post.state == OfiPost::State::kRefused) base_->parts->endpoint->Cancel(&piece->post);
    }
  }
  if (abandon) Abandon(nullptr);
  CompleteFront();
}

void OfiSender::Drop(const absl::Status& status) {
  flying_.clear();
  for (OfiOutgoing* record = front_; record != nullptr; record = record->next) record->done = record->posted;
  Break(status, /*abandon=*/false);
}

void OfiSender::Abandon(const OfiOutgoing* of) {
  std::vector<OfiPiece*> kept;
  for (OfiPiece* const piece : flying_) {
    OfiOutgoing* const record = static_cast<OfiOutgoing*>(piece->record);
    if (of != nullptr && record != of) {
      kept.push_back(piece);
      continue;
    }
    ++record->done;
    piece->record = nullptr;
    // The provider has it still, whoever unmaps the memory.
    piece->region = base_->parts->memory->Share(record->region);
    base_->parts->endpoint->Cancel(&piece->post);
  }
  flying_ = std::move(kept);
}

}  // namespace lockstep

#include "transport/shm/shm_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/types/dtype.h"

namespace lockstep {
namespace {

// What a message costs beside its bytes, in bytes that could have been copied meanwhile.
constexpr int64_t kMessageCharge = 1024;

absl::Status ClosedByPeer() { return absl::UnavailableError("connection closed by peer"); }

}  // namespace

ShmLink::ShmLink(const Transport* transport, Direction direction, Rank peer, ChannelId channel, PeerCounters* counters,
                 PeerDoorbell* bell)
    : transport_(transport), direction_(direction), peer_(peer), channel_(channel), counters_(counters), bell_(bell) {}

void ShmLink::Open(SharedMemory memory, const MailboxGeometry& geometry, size_t piece_bytes_max) {
  LOCKSTEP_CHECK(waiting()) << Describe();
  memory_ = std::move(memory);
  if (direction_ == Direction::kSend) {
    writer_.emplace(memory_.data(), geometry, piece_bytes_max);
  } else {
    reader_.emplace(memory_.data(), geometry);
  }
}

void ShmLink::Break(const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok()) << Describe();
  if (broken()) return;
  if (open()) {
    if (writer_.has_value()) writer_->Close();
    if (reader_.has_value()) reader_->Close();
    bell_->RingIfArmed();
  }
  Forget(status);
}

void ShmLink::Forget(const absl::Status& status) {
  if (broken()) return;
  status_ = status;
  writer_.reset();
  reader_.reset();
  memory_ = SharedMemory();
}

void ShmLink::BreakBecause(const absl::Status& cause) { Break(Annotate(cause, Describe())); }

void ShmLink::MarkEnding() {
  ending_ = true;
  // What a send put is the receiver's matter; nobody takes the rest.
  if (direction_ == Direction::kSend || waiting()) BreakBecause(ClosedByPeer());
}

bool ShmLink::AdvancePending(int64_t* budget) {
  bool moved = false;
  if (open()) moved = direction_ == Direction::kSend ? AdvanceSend(budget) : AdvanceReceive(budget);
  if (broken() && pending()) {
    *budget -= kMessageCharge;
    queue_.CompleteAll(status_);
    moved = true;
  }
  return moved;
}

void ShmLink::Complete() {
  Operation* const operation = queue_.Pop();
  operation->complete(operation, absl::OkStatus());
}

bool ShmLink::AdvanceSend(int64_t* budget) {
  bool moved = false;
  // A completion may break the link, so it is looked at anew for each piece.
  while (open() && pending() && *budget > 0) {
    Operation::Internal& message = queue_.front()->internal;
    if (writer_->reader_closed()) {
      BreakBecause(ClosedByPeer());
      break;
    }
    const size_t done_before = message.done_bytes;
    const MailboxResult result = writer_->Put(message.envelope, message.source, message.bytes, &message.done_bytes);
    if (result == MailboxResult::kBlocked) break;
    if (result == MailboxResult::kCorrupt) {
      BreakBecause(absl::DataLossError(absl::StrCat("the mailbox of channel ", channel_, " is corrupt")));
      break;
    }
    bell_->RingIfArmed();
    moved = true;
    *budget -= static_cast<int64_t>(message.done_bytes - done_before) + kMessageCharge;
    counters_->sent_bytes += message.done_bytes - done_before;
    if (message.done_bytes == message.bytes) {
      ++counters_->sent_messages;
      Complete();
    }
  }
  return moved;
}

bool ShmLink::AdvanceReceive(int64_t* budget) {
  bool moved = false;
  while (open() && pending() && *budget > 0) {
    Operation* const operation = queue_.front();
    Operation::Internal& message = operation->internal;
    const size_t left = message.bytes - message.done_bytes;
    MailboxReader::Piece piece;
    MailboxResult result = reader_->Peek(message.done_bytes == 0 ? 0 : left, &piece);
    if (result == MailboxResult::kBlocked) {
      if (!ending_ && !reader_->writer_closed()) break;
      // What was put before the end may have come after the first look.
      result = reader_->Peek(message.done_bytes == 0 ? 0 : left, &piece);
      if (result == MailboxResult::kBlocked) {
        BreakBecause(ClosedByPeer());
        break;
      }
    }
    if (result == MailboxResult::kCorrupt) {
      BreakBecause(absl::DataLossError(absl::StrCat("the mailbox of channel ", channel_, " is corrupt")));
      break;
    }
    moved = true;
    if (piece.envelope != nullptr && !Accept(operation, piece)) break;

    const Sink& sink = message.sink;
    unsigned char* const target = static_cast<unsigned char*>(sink.target) + message.done_bytes;
    if (sink.reduction != nullptr) {
      // Pieces hold whole elements: transport/shm/mailbox.h.
      const unsigned char* const operand = static_cast<const unsigned char*>(sink.operand) + message.done_bytes;
      sink.reduction->combine(target, operand, piece.data, piece.bytes / SizeOf(sink.reduction->dtype));
    } else if (piece.bytes > 0) {
      std::memcpy(target, piece.data, piece.bytes);
    }
    if (reader_->Pop(piece)) bell_->RingIfArmed();
    message.done_bytes += piece.bytes;
    *budget -= static_cast<int64_t>(piece.bytes) + kMessageCharge;
    counters_->received_bytes += piece.bytes;
    if (message.done_bytes == message.bytes) {
      ++counters_->received_messages;
      Complete();
    }
  }
  return moved;
}

bool ShmLink::Accept(Operation* operation, const MailboxReader::Piece& piece) {
  const Operation::Internal& expected = operation->internal;
  const bool same_envelope = std::memcmp(piece.envelope, expected.envelope.data(), expected.envelope.size()) == 0;
  if (piece.message_bytes == expected.bytes && same_envelope) return true;
  std::copy(piece.envelope, piece.envelope + operation->arrived.size(), operation->arrived.begin());
  operation->arrived_bytes = piece.message_bytes;
  BreakBecause(Mismatch(*operation));
  return false;
}

std::string ShmLink::Describe() const { return DescribeWay(direction_ == Direction::kSend, *transport_, peer_); }

}  // namespace lockstep

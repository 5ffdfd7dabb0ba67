#include "transport/link/link.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

// What a call of the stream costs beside its bytes, in bytes that could have been copied meanwhile.
constexpr int64_t kCallCharge = 4096;

// One call moves at most this much, so that a budget is kept to roughly.
constexpr size_t kCallBytesMax = size_t{1} << 20;

// Whatever the errno: the connection is gone. 0 stands for the end of the stream.
absl::Status Cause(const ByteStream& stream, ssize_t error) {
  if (error == EBADMSG) return absl::DataLossError(stream.Defect());
  if (error == 0 || error == EPIPE) {
    const std::string defect = stream.Defect();
    return absl::UnavailableError(absl::StrCat("connection closed by peer", defect.empty() ? "" : ": ", defect));
  }
  return absl::UnavailableError(ErrnoStatus(static_cast<int>(error), "connection lost").message());
}

}  // namespace

Link::Link(const Transport* transport, Direction direction, Rank peer, ChannelId channel, PeerCounters* counters,
           StagingPiece staging)
    : transport_(transport),
      direction_(direction),
      peer_(peer),
      channel_(channel),
      counters_(counters),
      writer_(staging) {}

void Link::Open(std::unique_ptr<ByteStream> stream) {
  LOCKSTEP_CHECK(waiting()) << Describe();
  stream_ = std::move(stream);
  ready_ = true;
}

void Link::Break(const absl::Status& status) {
  LOCKSTEP_CHECK(!status.ok()) << Describe();
  if (broken()) return;
  status_ = status;
  ready_ = false;
  released_ = false;
  if (unreleased_.empty()) stream_ = nullptr;
}

void Link::BreakBecause(const absl::Status& cause) { Break(Annotate(cause, Describe())); }

bool Link::Advance(int64_t* budget) {
  bool moved = false;
  if (open()) moved = direction_ == Direction::kSend ? AdvanceSend(budget) : AdvanceReceive(budget);
  if (!broken()) return moved;
  if (!unreleased_.empty()) moved |= CompleteReleased();
  // Before the rest completes: its memory is free then.
  stream_ = nullptr;
  if (pending()) {
    *budget -= kCallCharge;
    unreleased_.CompleteAll(status_);
    queue_.CompleteAll(status_);
    moved = true;
  }
  return moved;
}

void Link::EncodeHead(const Envelope& envelope, const void* data, size_t bytes, const MessagePieces* pieces) {
  EncodeMessageHeader({bytes, envelope}, head_);
  if (bytes <= kInlineBytesMax) CopyMessage(data, bytes, pieces, head_ + kMessageHeaderBytes);
}

bool Link::SendAtOnce(const Envelope& envelope, const void* data, size_t bytes) {
  EncodeHead(envelope, data, bytes, /*pieces=*/nullptr);
  const iovec piece = {head_, kMessageHeaderBytes + bytes};
  const ssize_t written = stream_->Write(&piece, 1);
  if (written < 0) {
    // What else is wrong the next one finds, too.
    if (written == -EAGAIN) ready_ = false;
    return false;
  }
  counters_->sent_bytes += written - std::min<size_t>(written, kMessageHeaderBytes);
  if (written < piece.iov_len) {
    early_bytes_ = written;
    ready_ = false;
    return false;
  }
  ++counters_->sent_messages;
  return true;
}

bool Link::AdvanceSend(int64_t* budget) {
  bool moved = false;
  if (released_) {
    released_ = false;
    *budget -= kCallCharge;
    moved = CompleteReleased();
  }
  // Completions may post to this link or break it: everything is looked at afresh each time round.
  while (ready_ && !queue_.empty() && *budget > 0) {
    Operation* const operation = queue_.front();
    Operation::Internal& message = operation->internal;
    const bool in_head = message.bytes <= kInlineBytesMax;
    if (message.done_bytes == 0) {
      message.done_bytes = std::exchange(early_bytes_, 0);
      if (message.done_bytes == 0) EncodeHead(message.envelope, message.source, message.bytes, operation->pieces);
    }

    iovec pieces[ByteStream::kPiecesMax];
    int count = 0;
    const size_t head_bytes = kMessageHeaderBytes + (in_head ? message.bytes : 0);
    const size_t header_left = kMessageHeaderBytes - std::min(message.done_bytes, kMessageHeaderBytes);
    if (message.done_bytes < head_bytes) {
      pieces[count++] = {head_ + message.done_bytes, head_bytes - message.done_bytes};
    }
    if (!in_head) {
      const size_t payload_done = message.done_bytes + header_left - kMessageHeaderBytes;
      const size_t payload_left = std::min(message.bytes - payload_done, kCallBytesMax);
      if (operation->pieces != nullptr) {
        const int max = ByteStream::kPiecesMax - count;
        count += CutPieces(operation->pieces->memory, payload_done, payload_left, pieces + count, max);
      } else {
        // sendmsg reads only; its iovec is not const because recvmsg shares the type.
        void* const source = static_cast<char*>(const_cast<void*>(message.source)) + payload_done;
        pieces[count++] = {source, payload_left};
      }
    }

    const ssize_t written = stream_->Write(pieces, count);
    *budget -= kCallCharge;
    if (written == -EAGAIN) {
      ready_ = false;
      break;
    }
    if (written < 0) {
      BreakBecause(Cause(*stream_, -written));
      break;
    }
    moved = true;
    *budget -= written;
    message.done_bytes += written;
    counters_->sent_bytes += written - std::min<size_t>(written, header_left);
    if (written < TotalBytes(pieces, count)) ready_ = false;
    if (message.done_bytes == kMessageHeaderBytes + message.bytes) {
      ++counters_->sent_messages;
      queue_.Pop();
      unreleased_.Push(operation);
      unreleased_bytes_ += message.done_bytes;
      CompleteReleased();
    }
  }
  return moved;
}

bool Link::CompleteReleased() {
  const uint64_t unreleased_in_stream = stream_->UnreleasedBytes();
  const size_t begun_bytes = queue_.empty() ? 0 : queue_.front()->internal.done_bytes;
  bool completed = false;
  while (!unreleased_.empty()) {
    Operation* const operation = unreleased_.front();
    const uint64_t bytes = operation->internal.done_bytes;
    // Those behind this send.
    if (unreleased_bytes_ - bytes + begun_bytes < unreleased_in_stream) break;
    unreleased_bytes_ -= bytes;
    unreleased_.Pop();
    operation->complete(operation, absl::OkStatus());
    completed = true;
  }
  return completed;
}

bool Link::AdvanceReceive(int64_t* budget) {
  bool moved = false;
  while (ready_ && pending() && *budget > 0) {
    Operation* const operation = queue_.front();
    Operation::Internal& message = operation->internal;
    if (message.done_bytes == 0) {
      writer_.Begin(message.sink, operation->pieces);
      if (early_bytes_ > 0) {
        moved = true;
        if (!Received(operation, std::exchange(early_bytes_, 0), head_ + kMessageHeaderBytes)) break;
        continue;
      }
    }

    // Header and payload in one call, never a byte of the next message. A header that turns out not to be the expected
    // one came with bytes that may lie in the sink by then: its contents are unspecified in that case.
    iovec pieces[ByteStream::kPiecesMax];
    int count = 0;
    const unsigned char* payload = nullptr;
    const size_t header_left = kMessageHeaderBytes - std::min(message.done_bytes, kMessageHeaderBytes);
    const bool in_head = header_left > 0 && message.bytes <= kInlineBytesMax;
    if (in_head) {
      payload = head_ + kMessageHeaderBytes;
      pieces[count++] = {head_ + message.done_bytes, header_left + message.bytes};
    } else {
      if (header_left > 0) pieces[count++] = {head_ + message.done_bytes, header_left};
      count += writer_.Next(pieces + count, ByteStream::kPiecesMax - count, kCallBytesMax);
    }

    const bool views = !in_head && writer_.reduces() && stream_->views();
    const ssize_t read = views ? stream_->View(header_left + std::min(writer_.left(), kCallBytesMax), &payload)
                               : stream_->Read(pieces, count);
    *budget -= kCallCharge;
    if (read == -EAGAIN) {
      ready_ = false;
      break;
    }
    if (read <= 0) {
      BreakBecause(Cause(*stream_, -read));
      break;
    }
    moved = true;
    *budget -= read;
    if (views) {
      const size_t of_header = std::min<size_t>(read, header_left);
      std::copy_n(payload, of_header, head_ + message.done_bytes);
      payload += of_header;
    } else if (read < TotalBytes(pieces, count)) {
      // A stream that gave less than it was asked for is empty, and its readiness will be told anew.
      ready_ = ending_;
    }
    if (!Received(operation, read, payload)) break;
  }
  return moved;
}

bool Link::Received(Operation* operation, size_t bytes, const unsigned char* payload) {
  Operation::Internal& message = operation->internal;
  const size_t header_left = kMessageHeaderBytes - std::min(message.done_bytes, kMessageHeaderBytes);
  message.done_bytes += bytes;
  if (header_left > 0 && message.done_bytes >= kMessageHeaderBytes && !Accept(operation)) return false;
  const size_t payload_bytes = bytes - std::min(bytes, header_left);
  if (payload_bytes > 0) {
    if (payload != nullptr) {
      writer_.Put(payload, payload_bytes);
    } else {
      writer_.Commit(payload_bytes);
    }
    counters_->received_bytes += payload_bytes;
  }
  if (message.done_bytes == kMessageHeaderBytes + message.bytes) {
    ++counters_->received_messages;
    queue_.Pop();
    operation->complete(operation, absl::OkStatus());
  }
  return true;
}

bool Link::ReceiveAtOnce(const Envelope& expected, const Sink& sink, int polls) {
  const iovec piece = {head_, kMessageHeaderBytes + sink.bytes};
  ssize_t read = -EAGAIN;
  while (read == -EAGAIN && polls-- > 0) read = stream_->Read(&piece, 1);
  if (read == -EAGAIN) ready_ = false;
  // What else is wrong the next one finds, too.
  if (read <= 0) return false;
  MessageHeader header;
  if (read < piece.iov_len || !DecodeMessageHeader(head_, &header) || header.bytes != sink.bytes ||
      header.envelope != expected) {
    early_bytes_ = read;
    if (read < piece.iov_len) ready_ = ending_;
    return false;
  }
  writer_.Begin(sink);
  writer_.Put(head_ + kMessageHeaderBytes, sink.bytes);
  counters_->received_bytes += sink.bytes;
  ++counters_->received_messages;
  return true;
}

bool Link::Accept(Operation* operation) {
  const Operation::Internal& expected = operation->internal;
  MessageHeader header;
  if (!DecodeMessageHeader(head_, &header)) {
    BreakBecause(absl::DataLossError(
        absl::StrCat("channel ", channel_, " is broken: what arrived does not begin as a message does")));
    return false;
  }
  if (header.bytes == expected.bytes && header.envelope == expected.envelope) return true;
  operation->arrived = header.envelope;
  operation->arrived_bytes = header.bytes;
  BreakBecause(Mismatch(*operation));
  return false;
}

std::string Link::Describe() const { return DescribeWay(direction_ == Direction::kSend, *transport_, peer_); }

}  // namespace lockstep

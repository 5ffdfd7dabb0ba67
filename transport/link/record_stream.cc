#include "transport/link/record_stream.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/net/little_endian.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

// A shorter payload is copied: a piece of its own costs the system call more.
constexpr size_t kCopiedBytesMax = 2048;

// Of the next record's payload, when so many bytes are left in the pieces, of which the first one has `piece_bytes`.
size_t CutBytes(size_t bytes, size_t piece_bytes) {
  if (bytes <= kRecordPayloadBytesMax) return bytes;
  const bool header = piece_bytes > 0 && piece_bytes <= kRecordPayloadBytesMax - kRecordCutBytes;
  return header ? piece_bytes : kRecordCutBytes;
}

}  // namespace

RecordWriter::RecordWriter(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
                           uint64_t records_per_key)
    : stream_(std::move(stream)), sequence_(level, secret, records_per_key) {}

ssize_t RecordWriter::Read(const iovec*, int) { return -EBADF; }

ssize_t RecordWriter::Write(const iovec* pieces, int count) {
  const size_t total = TotalBytes(pieces, count);
  size_t taken = 0;
  while (taken < total) {
    if (left_.empty()) SealBatch({pieces, static_cast<size_t>(count)}, taken, total);
    const ssize_t sent = stream_->Write(left_.data(), static_cast<int>(left_.size()));
    if (sent == -EAGAIN && taken > 0) break;
    if (sent < 0) return sent;
    taken += Sent(sent);
    LOCKSTEP_CHECK(taken <= total) << "not the bytes that records were sealed with";
    // A stream that took less than it was given says when it takes more.
    if (!left_.empty()) return taken > 0 ? static_cast<ssize_t>(taken) : -EAGAIN;
  }
  return static_cast<ssize_t>(taken);
}

void RecordWriter::SealBatch(absl::Span<const iovec> pieces, size_t begin, size_t end) {
  first_ = count_ = 0;
  batch_bytes_ = sent_bytes_ = 0;
  left_ = absl::MakeSpan(pieces_).first(0);
  const size_t copied_max = kRecordBatch * (sequence_.encrypts() ? kRecordPayloadBytesMax : kCopiedBytesMax);
  const size_t sealed_max = kRecordBatch * kRecordOverheadBytes + std::min(end - begin, copied_max);
  if (sealed_.size() < sealed_max) sealed_.resize(sealed_max);
  sealed_end_ = sealed_.data();
  while (begin < end && count_ < kRecordBatch) {
    // What is sent from where it lies needs a piece for each of its own, and two for header and tag.
    const int room = sequence_.encrypts() ? kPiecesMax : kPiecesMax - 2 - static_cast<int>(left_.size());
    if (room <= 0) break;
    const size_t cut = CutBytes(end - begin, begin == 0 ? pieces[0].iov_len : end);
    iovec payload[kPiecesMax];
    const int payload_count = CutPieces(pieces, begin, cut, payload, room);
    SealRecord({payload, static_cast<size_t>(payload_count)});
    begin += records_[count_ - 1].payload_bytes;
  }
}

void RecordWriter::SealRecord(absl::Span<const iovec> payload) {
  const size_t payload_bytes = TotalBytes(payload.data(), static_cast<int>(payload.size()));
  const bool copies = sequence_.encrypts() || payload_bytes <= kCopiedBytesMax;
  unsigned char* const header = sealed_end_;
  unsigned char* const body =
      StoreLittleEndians(header, static_cast<uint32_t>(payload_bytes), sequence_.key(), sequence_.number());
  unsigned char* const tag = body + (copies ? payload_bytes : 0);
  sealed_end_ = tag + RecordCipher::kTagBytes;
  sequence_.cipher()->Seal(sequence_.number(), absl::MakeConstSpan(header, kRecordHeaderBytes), payload,
                           sequence_.encrypts() ? body : nullptr, tag);
  sequence_.Step();
  Append(header, kRecordHeaderBytes);
  if (!copies) {
    for (const iovec& piece : payload) Append(piece.iov_base, piece.iov_len);
  } else {
    if (!sequence_.encrypts()) CopyPieces(payload, body);
    Append(body, payload_bytes);
  }
  Append(tag, RecordCipher::kTagBytes);
  records_[count_++] = {batch_bytes_, payload_bytes};
}

void RecordWriter::Append(void* data, size_t bytes) {
  batch_bytes_ += bytes;
  if (!left_.empty() && static_cast<char*>(left_.back().iov_base) + left_.back().iov_len == data) {
    left_.back().iov_len += bytes;
    return;
  }
  const size_t count = left_.size();
  pieces_[count] = {data, bytes};
  left_ = absl::MakeSpan(pieces_).first(count + 1);
}

size_t RecordWriter::Sent(size_t bytes) {
  sent_bytes_ += bytes;
  while (!left_.empty() && bytes >= left_.front().iov_len) {
    bytes -= left_.front().iov_len;
    left_.remove_prefix(1);
  }
  if (bytes > 0) {
    iovec& cut = left_.front();
    cut = {static_cast<char*>(cut.iov_base) + bytes, cut.iov_len - bytes};
  }
  size_t payload_bytes = 0;
  for (; first_ < count_ && records_[first_].end <= sent_bytes_; ++first_)
    payload_bytes += records_[first_].payload_bytes;
  return payload_bytes;
}

RecordReader::RecordReader(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
                           uint64_t records_per_key)
    : stream_(std::move(stream)), sequence_(level, secret, records_per_key) {}

ssize_t RecordReader::Write(const iovec*, int) { return -EBADF; }

ssize_t RecordReader::Read(const iovec* pieces, int count) {
  const size_t total = TotalBytes(pieces, count);
  size_t given = 0;
  while (given < total) {
    iovec places[kPiecesMax];
    const int places_count = CutPieces({pieces, static_cast<size_t>(count)}, given, total - given, places, kPiecesMax);
    if (opened_begin_ == opened_end_) {
      const ssize_t opened = OpenRecord(total - given, places[0]);
      if (opened == -EAGAIN && given > 0) break;
      // What came before it counts for nothing: the connection is lost.
      if (opened <= 0) return opened;
      if (opened_begin_ == opened_end_) {
        given += opened;
        continue;
      }
    }
    for (int i = 0; i < places_count && opened_begin_ < opened_end_; ++i) {
      const size_t bytes = std::min(places[i].iov_len, opened_end_ - opened_begin_);
      std::memcpy(places[i].iov_base, buffer_.data() + opened_begin_, bytes);
      opened_begin_ += bytes;
      given += bytes;
    }
  }
  return static_cast<ssize_t>(given);
}

ssize_t RecordReader::View(size_t bytes, const unsigned char** data) {
  if (opened_begin_ == opened_end_) {
    if (const ssize_t opened = OpenRecord(bytes, {}); opened <= 0) return opened;
  }
  const size_t given = std::min(bytes, opened_end_ - opened_begin_);
  *data = buffer_.data() + opened_begin_;
  opened_begin_ += given;
  return static_cast<ssize_t>(given);
}

ssize_t RecordReader::OpenRecord(size_t asked_bytes, const iovec& place) {
  if (result_ <= 0) return result_;
  if (const ssize_t filled = Fill(kRecordHeaderBytes, asked_bytes); filled <= 0) return filled;
  uint32_t bytes, key;
  uint64_t number;
  LoadLittleEndians(buffer_.data() + begin_, &bytes, &key, &number);
  const auto fail_altered = [this] {
    return Fail(-EBADMSG, absl::StrCat("record ", sequence_.number(), " was altered, or is not from this connection"));
  };
  if (bytes < 1 || bytes > kRecordPayloadBytesMax) return fail_altered();
  if (number != sequence_.number()) {
    return Fail(-EBADMSG, absl::StrCat("record ", number, " came where ", sequence_.number(),
                                       " was due: lost, repeated or out of order"));
  }
  if (const ssize_t filled = Fill(bytes + kRecordOverheadBytes, asked_bytes); filled <= 0) return filled;
  unsigned char* const header = buffer_.data() + begin_;
  unsigned char* const payload = header + kRecordHeaderBytes;
  const iovec piece = {payload, bytes};
  const bool elsewhere = sequence_.encrypts() && bytes <= place.iov_len;
  unsigned char* const out = elsewhere ? static_cast<unsigned char*>(place.iov_base) : payload;
  const bool genuine = key == sequence_.key() &&
                       sequence_.cipher()->Open(number, absl::MakeConstSpan(header, kRecordHeaderBytes), {piece},
                                                payload + bytes, sequence_.encrypts() ? out : nullptr);
  if (!genuine) return fail_altered();
  sequence_.Step();
  begin_ += bytes + kRecordOverheadBytes;
  opened_end_ = begin_ - RecordCipher::kTagBytes;
  opened_begin_ = opened_end_ - (elsewhere ? 0 : bytes);
  return static_cast<ssize_t>(bytes);
}

ssize_t RecordReader::Fill(size_t bytes, size_t asked_bytes) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ - begin_ >= bytes) return 1;
  const size_t room =
      asked_bytes > kRecordPayloadBytesMax ? kRecordReadBytes : std::max(bytes, asked_bytes + kRecordOverheadBytes);
  if (buffer_.size() < room) buffer_.resize(room);
  if (buffer_.size() - begin_ < bytes) {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  while (end_ - begin_ < bytes) {
    const iovec place = {buffer_.data() + end_, buffer_.size() - end_};
    const ssize_t read = stream_->Read(&place, 1);
    if (read == 0 && end_ > begin_) return Fail(0, absl::StrCat("cut inside record ", sequence_.number()));
    if (read <= 0) return read;
    end_ += static_cast<size_t>(read);
  }
  return 1;
}

ssize_t RecordReader::Fail(ssize_t result, std::string defect) {
  result_ = result;
  defect_ = std::move(defect);
  return result;
}

}  // namespace lockstep

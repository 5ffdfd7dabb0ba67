#include "transport/link/record_stream.h"

#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "transport/net/little_endian.h"
#include "transport/posting.h"
#include "transport/secure/hkdf.h"

namespace lockstep {
namespace {

// A shorter payload is copied: a piece of its own costs the system call more.
constexpr size_t kCopiedBytesMax = 2048;

size_t Total(const iovec* pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += pieces[i].iov_len;
  return total;
}

// The faster one that there is.
CipherBackend Backend() {
  static const CipherBackend backend =
      CipherBackendVersion(CipherBackend::kIpsecMb).ok() ? CipherBackend::kIpsecMb : CipherBackend::kOpenSsl;
  return backend;
}

}  // namespace

RecordSecret RecordSecret::Of(const Channel& channel, absl::string_view context) {
  RecordSecret secret;
  channel.Export("EXPORTER-lockstep-records", context, secret.bytes_.data(), kBytes);
  return secret;
}

RecordSecret::~RecordSecret() { explicit_bzero(bytes_.data(), kBytes); }

void RecordSecret::Expand(absl::string_view label, void* out, size_t bytes) const {
  HkdfExpand(absl::string_view(bytes_.data(), kBytes), label, out, bytes);
}

DirectionKey RecordSecret::Key() const {
  DirectionKey key;
  Expand("key", key.key.data(), key.key.size());
  Expand("iv", key.nonce_base.data(), key.nonce_base.size());
  return key;
}

void RecordSecret::Step() {
  RecordSecret next;
  Expand("next", next.bytes_.data(), kBytes);
  bytes_ = next.bytes_;
}

RecordSequence::RecordSequence(SecurityLevel level, const RecordSecret& secret, uint64_t records_per_key)
    : mode_(level == SecurityLevel::kEncrypt ? CipherMode::kEncrypt : CipherMode::kAuthenticate),
      records_per_key_(records_per_key),
      secret_(secret) {
  LOCKSTEP_CHECK(level != SecurityLevel::kNone && records_per_key > 0);
  MakeCipher();
}

void RecordSequence::MakeCipher() {
  auto cipher = RecordCipher::Create(Backend(), mode_, secret_.Key());
  LOCKSTEP_CHECK(cipher.ok()) << cipher.status();  // this one has worked before
  cipher_ = *std::move(cipher);
}

void RecordSequence::Step() {
  if (++number_ % records_per_key_ != 0) return;
  ++key_;
  secret_.Step();
  MakeCipher();
}

RecordWriter::RecordWriter(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
                           uint64_t records_per_key)
    : stream_(std::move(stream)), sequence_(level, secret, records_per_key) {}

ssize_t RecordWriter::Read(const iovec*, int) { return -EBADF; }

ssize_t RecordWriter::Write(const iovec* pieces, int count) {
  const size_t total = Total(pieces, count);
  size_t taken = 0;
  while (taken < total) {
    const bool under_way = payload_bytes_ > 0;
    iovec payload[kPayloadPiecesMax];
    const int payload_count =
        CutPieces({pieces, static_cast<size_t>(count)}, taken, under_way ? payload_bytes_ : kRecordPayloadBytesMax,
                  payload, kPayloadPiecesMax);
    if (!under_way) Seal(payload, payload_count);
    LOCKSTEP_CHECK(Total(payload, payload_count) == payload_bytes_) << "not the bytes that a record was sealed with";
    const ssize_t sent = Send(payload, payload_count);
    if (sent == -EAGAIN && taken > 0) break;
    if (sent < 0) return sent;
    taken += std::exchange(payload_bytes_, 0);
    sequence_.Step();
  }
  return static_cast<ssize_t>(taken);
}

void RecordWriter::Seal(const iovec* payload, int count) {
  payload_bytes_ = Total(payload, count);
  sent_bytes_ = 0;
  whole_ = sequence_.encrypts() || payload_bytes_ <= kCopiedBytesMax;
  record_.resize(std::max(record_.size(), kRecordOverheadBytes + (whole_ ? payload_bytes_ : 0)));
  unsigned char* const header = record_.data();
  unsigned char* const body =
      StoreLittleEndians(header, static_cast<uint32_t>(payload_bytes_), sequence_.key(), sequence_.number());
  unsigned char* const tag = body + (whole_ ? payload_bytes_ : 0);
  const auto list = absl::MakeConstSpan(payload, count);
  if (!sequence_.encrypts() && whole_) {
    unsigned char* to = body;
    for (const iovec& piece : list) {
      std::memcpy(to, piece.iov_base, piece.iov_len);
      to += piece.iov_len;
    }
  }
  sequence_.cipher()->Seal(sequence_.number(), absl::MakeConstSpan(header, kRecordHeaderBytes), list,
                           sequence_.encrypts() ? body : nullptr, tag);
}

ssize_t RecordWriter::Send(const iovec* payload, int count) {
  iovec record[kPiecesMax];
  int record_count = 0;
  const size_t record_bytes = payload_bytes_ + kRecordOverheadBytes;
  if (whole_) {
    record[record_count++] = {record_.data(), record_bytes};
  } else {
    record[record_count++] = {record_.data(), kRecordHeaderBytes};
    record_count = static_cast<int>(std::copy_n(payload, count, record + record_count) - record);
    record[record_count++] = {record_.data() + kRecordHeaderBytes, RecordCipher::kTagBytes};
  }
  iovec left[kPiecesMax];
  const int left_count =
      CutPieces({record, static_cast<size_t>(record_count)}, sent_bytes_, record_bytes - sent_bytes_, left, kPiecesMax);
  const ssize_t sent = stream_->Write(left, left_count);
  if (sent < 0) return sent;
  sent_bytes_ += static_cast<size_t>(sent);
  // A stream that took less than it was given says when it takes more.
  return sent_bytes_ == record_bytes ? 0 : -EAGAIN;
}

RecordReader::RecordReader(std::unique_ptr<ByteStream> stream, SecurityLevel level, const RecordSecret& secret,
                           uint64_t records_per_key)
    : stream_(std::move(stream)), sequence_(level, secret, records_per_key) {}

ssize_t RecordReader::Write(const iovec*, int) { return -EBADF; }

ssize_t RecordReader::Read(const iovec* pieces, int count) {
  const size_t total = Total(pieces, count);
  size_t given = 0;
  while (given < total) {
    if (opened_begin_ == opened_end_) {
      const ssize_t opened = OpenRecord(total - given);
      if (opened == -EAGAIN && given > 0) break;
      // What came before it counts for nothing: the connection is lost.
      if (opened <= 0) return opened;
    }
    iovec place[kPiecesMax];
    const int places =
        CutPieces({pieces, static_cast<size_t>(count)}, given, opened_end_ - opened_begin_, place, kPiecesMax);
    for (int i = 0; i < places; ++i) {
      std::memcpy(place[i].iov_base, buffer_.data() + opened_begin_, place[i].iov_len);
      opened_begin_ += place[i].iov_len;
      given += place[i].iov_len;
    }
  }
  return static_cast<ssize_t>(given);
}

ssize_t RecordReader::OpenRecord(size_t asked_bytes) {
  if (result_ <= 0) return result_;
  if (begin_ == end_) begin_ = end_ = 0;
  if (const ssize_t filled = Fill(begin_ + kRecordHeaderBytes, asked_bytes); filled <= 0) return filled;
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
  if (const ssize_t filled = Fill(begin_ + bytes + kRecordOverheadBytes, asked_bytes); filled <= 0) return filled;
  unsigned char* const header = buffer_.data() + begin_;
  unsigned char* const payload = header + kRecordHeaderBytes;
  const iovec piece = {payload, bytes};
  const bool genuine = key == sequence_.key() &&
                       sequence_.cipher()->Open(number, absl::MakeConstSpan(header, kRecordHeaderBytes), {piece},
                                                payload + bytes, sequence_.encrypts() ? payload : nullptr);
  if (!genuine) return fail_altered();
  sequence_.Step();
  opened_begin_ = begin_ + kRecordHeaderBytes;
  opened_end_ = opened_begin_ + bytes;
  begin_ = opened_end_ + RecordCipher::kTagBytes;
  return 1;
}

ssize_t RecordReader::Fill(size_t end, size_t asked_bytes) {
  if (end_ >= end) return 1;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t room = std::max(end, std::min(asked_bytes + kRecordOverheadBytes, kRecordBytesMax));
  if (buffer_.size() < room) buffer_.resize(room);
  while (end_ < end) {
    const iovec place = {buffer_.data() + end_, room - end_};
    const ssize_t read = stream_->Read(&place, 1);
    if (read == 0 && end_ > 0) return Fail(0, absl::StrCat("cut inside record ", sequence_.number()));
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

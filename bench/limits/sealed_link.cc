#include "bench/limits/sealed_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/net/little_endian.h"

namespace lockstep::bench {
namespace {

absl::StatusOr<std::unique_ptr<RecordCipher>> CipherFrom(int side, const SealOptions& options) {
  DirectionKey key;
  key.key.fill(static_cast<unsigned char>(1 + side));
  return RecordCipher::Create(options.backend, options.mode, key);
}

}  // namespace

RecordBatches::RecordBatches(const SealOptions& options, std::unique_ptr<RecordCipher> cipher)
    : options_(options),
      cipher_(std::move(cipher)),
      records_(std::max<size_t>(1, options.batch_bytes / options.record_bytes)),
      all_pieces_(3 * records_.size()),
      buffer_(options.mode == CipherMode::kEncrypt ? records_.size() * options.record_bytes : 0) {}

void RecordBatches::Begin(unsigned char* payload, size_t bytes) {
  payload_ = payload;
  bytes_ = bytes;
  sequence_ += count_;
  count_ = opened_ = 0;
}

void RecordBatches::Fill(bool seals) {
  sequence_ += count_;
  count_ = opened_ = 0;
  size_t pieces = 0;
  for (unsigned char* travels = buffer_.data(); bytes_ > 0 && count_ < records_.size(); ++count_) {
    Record& record = records_[count_];
    record.bytes = std::min(bytes_, options_.record_bytes);
    record.plain = payload_;
    payload_ += record.bytes;
    bytes_ -= record.bytes;
    record.travels = options_.mode == CipherMode::kEncrypt ? travels : record.plain;
    travels += buffer_.empty() ? 0 : record.bytes;
    StoreLittleEndians(record.due.data(), static_cast<uint32_t>(record.bytes), uint32_t{0}, sequence_ + count_);
    if (seals) {
      record.header = record.due;
      const iovec plain = {record.plain, record.bytes};
      cipher_->Seal(sequence_ + count_, record.header, {&plain, 1},
                    options_.mode == CipherMode::kEncrypt ? record.travels : nullptr, record.tag.data());
    }
    all_pieces_[pieces++] = {record.header.data(), record.header.size()};
    all_pieces_[pieces++] = {record.travels, record.bytes};
    all_pieces_[pieces++] = {record.tag.data(), record.tag.size()};
  }
  pieces_ = absl::MakeSpan(all_pieces_).first(pieces);
}

absl::Span<iovec> RecordBatches::PiecesToSend() {
  if (pieces_.empty() && bytes_ > 0) Fill(/*seals=*/true);
  return pieces_;
}

absl::Span<iovec> RecordBatches::PiecesToReceive() {
  if (pieces_.empty() && bytes_ > 0) Fill(/*seals=*/false);
  return pieces_;
}

void RecordBatches::Advance(size_t bytes) {
  while (bytes > 0) {
    iovec& piece = pieces_.front();
    const size_t moved = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<char*>(piece.iov_base) + moved;
    piece.iov_len -= moved;
    bytes -= moved;
    if (piece.iov_len == 0) pieces_.remove_prefix(1);
  }
}

absl::Status RecordBatches::Received(size_t bytes) {
  Advance(bytes);
  const size_t complete = count_ - (pieces_.size() + 2) / 3;
  for (; opened_ < complete; ++opened_) {
    Record& record = records_[opened_];
    const uint64_t sequence = sequence_ + opened_;
    const iovec arrived = {record.travels, record.bytes};
    unsigned char* const out = options_.mode == CipherMode::kEncrypt ? record.plain : nullptr;
    if (record.header != record.due || !cipher_->Open(sequence, record.header, {&arrived, 1}, record.tag.data(), out)) {
      return absl::DataLossError(absl::StrCat("record ", sequence, " is not genuine"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SealedSocket> SealedSocket::Create(BareSocket socket, int side, const SealOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<RecordCipher> out, CipherFrom(side, options));
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<RecordCipher> in, CipherFrom(1 - side, options));
  return SealedSocket(std::move(socket), RecordBatches(options, std::move(out)), RecordBatches(options, std::move(in)));
}

absl::Status SealedSocket::Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) {
  out_.Begin(static_cast<unsigned char*>(const_cast<void*>(out)), out_bytes);
  in_.Begin(static_cast<unsigned char*>(in), in_bytes);
  Patience patience;
  while (!out_.done() || !in_.done()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const ssize_t sent, socket_.SendSome(out_.PiecesToSend()));
    if (sent > 0) out_.Sent(sent);
    LOCKSTEP_ASSIGN_OR_RETURN(const ssize_t received, socket_.ReceiveSome(in_.PiecesToReceive()));
    if (received > 0) LOCKSTEP_RETURN_IF_ERROR(in_.Received(received));
    if (sent > 0 || received > 0) {
      patience.Moved();
    } else {
      LOCKSTEP_RETURN_IF_ERROR(patience.NothingMoved());
    }
  }
  return absl::OkStatus();
}

}  // namespace lockstep::bench

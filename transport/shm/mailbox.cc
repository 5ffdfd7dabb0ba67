#include "transport/shm/mailbox.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lockstep {
namespace {

using internal::MailboxCell;
using internal::MailboxLines;

constexpr size_t kPageBytes = 4096;
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kToldParts = 8;

constexpr uint32_t kSmall = 1;
constexpr uint32_t kFirst = 2;
constexpr uint32_t kNext = 3;
constexpr uint32_t kKindShift = 30;
constexpr uint32_t kBytesMask = (uint32_t{1} << kKindShift) - 1;

constexpr size_t kEnvelopeBytes = sizeof(Envelope);
static_assert(kEnvelopeBytes + kMailboxSmallBytesMax == sizeof(MailboxCell::body), "a small message fills its cell");

bool IsPowerOfTwo(uint64_t value) { return value != 0 && (value & (value - 1)) == 0; }

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t RingOffset(const MailboxGeometry& geometry) {
  return RoundUp(sizeof(MailboxLines) + geometry.cells * sizeof(MailboxCell), kPageBytes);
}

MailboxLines* Lines(char* memory) { return reinterpret_cast<MailboxLines*>(memory); }
MailboxCell* Cells(char* memory) { return reinterpret_cast<MailboxCell*>(memory + sizeof(MailboxLines)); }
unsigned char* Ring(char* memory, const MailboxGeometry& geometry) {
  return reinterpret_cast<unsigned char*>(memory) + RingOffset(geometry);
}

uint64_t Stamp(uint32_t kind, size_t bytes, uint64_t position) {
  const uint32_t upper = kind << kKindShift | static_cast<uint32_t>(bytes);
  return uint64_t{upper} << 32 | static_cast<uint32_t>(position + 1);
}

}  // namespace

bool MailboxGeometry::valid() const {
  return IsPowerOfTwo(cells) && cells >= 8 && cells <= 65536 && IsPowerOfTwo(ring_bytes) && ring_bytes >= kPageBytes &&
         ring_bytes <= uint32_t{1} << 29;
}

size_t MailboxGeometry::bytes() const { return RingOffset(*this) + ring_bytes; }

MailboxWriter::MailboxWriter(char* memory, const MailboxGeometry& geometry, size_t piece_bytes_max)
    : lines_(Lines(memory)),
      cells_(Cells(memory)),
      ring_(Ring(memory, geometry)),
      cells_count_(geometry.cells),
      ring_bytes_(geometry.ring_bytes),
      piece_bytes_max_(piece_bytes_max) {
  LOCKSTEP_CHECK(geometry.valid() && piece_bytes_max > 0 && piece_bytes_max % kAlignment == 0)
      << geometry.cells << " cells, " << geometry.ring_bytes << " bytes, pieces of " << piece_bytes_max;
}

MailboxResult MailboxWriter::FindRoom(bool in_ring) {
  const auto found = [&] { return cells_written_ - cells_read_ < cells_count_ && (!in_ring || room_bytes() > 0); };
  if (found()) return MailboxResult::kDone;
  const uint64_t cells_read = lines_->cells_read.load();
  const uint64_t bytes_read = lines_->bytes_read.load();
  const bool sane = cells_read - cells_read_ <= cells_written_ - cells_read_ &&
                    bytes_read - bytes_read_ <= bytes_written_ - bytes_read_ && bytes_read % kAlignment == 0;
  if (!sane) return MailboxResult::kCorrupt;
  cells_read_ = cells_read;
  bytes_read_ = bytes_read;
  return found() ? MailboxResult::kDone : MailboxResult::kBlocked;
}

MailboxResult MailboxWriter::Put(const Envelope& envelope, const void* message, size_t bytes, size_t* done_bytes) {
  const bool small = bytes <= kMailboxSmallBytesMax;
  if (const MailboxResult room = FindRoom(/*in_ring=*/!small); room != MailboxResult::kDone) return room;
  MailboxCell* const cell = &cells_[cells_written_ & (cells_count_ - 1)];
  if (small) {
    std::memcpy(cell->body, envelope.data(), kEnvelopeBytes);
    if (bytes > 0) std::memcpy(cell->body + kEnvelopeBytes, message, bytes);
    *done_bytes = bytes;
    cell->stamp.store(Stamp(kSmall, bytes, cells_written_++));
    return MailboxResult::kDone;
  }
  const uint64_t offset = bytes_written_ & (ring_bytes_ - 1);
  const size_t piece = std::min({bytes - *done_bytes, piece_bytes_max_, static_cast<size_t>(room_bytes()),
                                 static_cast<size_t>(ring_bytes_ - offset)});
  const bool first = *done_bytes == 0;
  if (first) {
    const uint64_t message_bytes = bytes;
    std::memcpy(cell->body, envelope.data(), kEnvelopeBytes);
    std::memcpy(cell->body + kEnvelopeBytes, &message_bytes, sizeof(message_bytes));
  }
  std::memcpy(ring_ + offset, static_cast<const unsigned char*>(message) + *done_bytes, piece);
  *done_bytes += piece;
  bytes_written_ += RoundUp(piece, kAlignment);
  cell->stamp.store(Stamp(first ? kFirst : kNext, piece, cells_written_++));
  return MailboxResult::kDone;
}

MailboxReader::MailboxReader(char* memory, const MailboxGeometry& geometry)
    : lines_(Lines(memory)),
      cells_(Cells(memory)),
      ring_(Ring(memory, geometry)),
      cells_count_(geometry.cells),
      ring_bytes_(geometry.ring_bytes) {
  LOCKSTEP_CHECK(geometry.valid()) << geometry.cells << " cells, " << geometry.ring_bytes << " bytes";
}

MailboxResult MailboxReader::Peek(uint64_t left_bytes, Piece* piece) const {
  const MailboxCell& cell = cells_[cells_read_ & (cells_count_ - 1)];
  const uint64_t stamp = cell.stamp.load();
  if (static_cast<uint32_t>(stamp) != static_cast<uint32_t>(cells_read_ + 1)) return MailboxResult::kBlocked;
  const uint32_t upper = static_cast<uint32_t>(stamp >> 32);
  const uint32_t kind = upper >> kKindShift;
  *piece = Piece();
  piece->bytes = upper & kBytesMask;
  if (kind == kSmall && left_bytes == 0 && piece->bytes <= kMailboxSmallBytesMax) {
    piece->data = cell.body + kEnvelopeBytes;
    piece->envelope = cell.body;
    piece->message_bytes = piece->bytes;
    return MailboxResult::kDone;
  }
  if (kind != (left_bytes == 0 ? kFirst : kNext)) return MailboxResult::kCorrupt;
  if (kind == kFirst) {
    std::memcpy(&left_bytes, cell.body + kEnvelopeBytes, sizeof(left_bytes));
    piece->envelope = cell.body;
    piece->message_bytes = left_bytes;
  }
  const uint64_t offset = bytes_read_ & (ring_bytes_ - 1);
  piece->data = ring_ + offset;
  piece->in_ring = true;
  const bool fits = piece->bytes > 0 && piece->bytes <= left_bytes && piece->bytes <= ring_bytes_ - offset &&
                    (piece->bytes == left_bytes || piece->bytes % kAlignment == 0);
  return fits ? MailboxResult::kDone : MailboxResult::kCorrupt;
}

bool MailboxReader::Pop(const Piece& piece) {
  ++cells_read_;
  if (piece.in_ring) bytes_read_ += RoundUp(piece.bytes, kAlignment);
  if (cells_read_ - cells_told_ < cells_count_ / kToldParts && bytes_read_ - bytes_told_ < ring_bytes_ / kToldParts) {
    return false;
  }
  bytes_told_ = bytes_read_;
  cells_told_ = cells_read_;
  lines_->bytes_read.store(bytes_told_);
  lines_->cells_read.store(cells_told_);
  return true;
}

}  // namespace lockstep

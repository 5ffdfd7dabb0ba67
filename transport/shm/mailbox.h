// Mailbox: the memory through which messages of one channel go from one process to one other. Single producer, single
// consumer, no lock, no system call.
//
//   mailbox = writer line, reader line, closing line   64 bytes each, each written by one side only
//             cell[cells]                              64 bytes each, a ring
//             ring                                     ring_bytes, from the next page on: payload in pieces
//   cell    = stamp:u64 body:56                        stamp = (kind << 30 | bytes) << 32 | low half of position + 1
//
//   kind      body                          payload
//   1 small   envelope:32 payload:24        the whole message, up to 24 bytes, in the cell
//   2 first   envelope:32 message_bytes:8   the first `bytes` of a longer message, in the ring
//   3 next    -                             the next `bytes` of it, in the ring
//
// Numbers are the machine's own: both sides run on it. Cells and pieces follow each other in order; a piece begins at
// a multiple of 64 bytes, does not wrap around the ring's end, and is a multiple of 64 bytes long unless it ends its
// message: so no element of a reduction is ever cut. A message of up to 24 bytes is one cache line, its flag included.
// (Longer ones spread over several cells were tried: slower than the ring from 128 bytes on.)
//
// The table says which store pairs with which load. Both are sequentially consistent, which transport/shm/doorbell.h needs. On x86 this
// costs the writer one exclusive exchange and the reader nothing. On arm64 the store is a store-release and the load is a load-acquire.
// Bodies and payload are accessed plainly.
//   stamp        the writer stores it when body and payload are written; a reader that loads the stamp that it expects
//                at this position sees them.
//   cells_read,  the reader stores them when it will not look at that memory again; a writer that loads them may
//   bytes_read   overwrite it. They are told in steps of an eighth of the ring: a full ring always holds more than a
//                step, so a writer that waits for room gets it, and in between the reader's line stays the reader's.
//   closed       each side stores its own last; who loads it and then looks again sees all that came before.
//
// The other side may be broken. Nothing it writes is used before it was checked: a stamp of an unknown kind, lengths
// that do not fit, counts that run backwards or ahead are kCorrupt.

#ifndef TRANSPORT_SHM_MAILBOX_H_
#define TRANSPORT_SHM_MAILBOX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace lockstep {

inline constexpr size_t kMailboxCellBytes = 64;
inline constexpr size_t kMailboxSmallBytesMax = 24;

struct MailboxGeometry {
  uint32_t cells = 256;             // a power of two from 8 to 65,536
  uint32_t ring_bytes = 512 << 10;  // a power of two from 4,096 to 2^29

  bool valid() const;
  // Of memory that holds such a mailbox; a multiple of the page size (4,096).
  size_t bytes() const;
};

namespace internal {

struct MailboxCell {
  std::atomic<uint64_t> stamp;
  unsigned char body[kMailboxCellBytes - sizeof(uint64_t)];
};
static_assert(sizeof(MailboxCell) == kMailboxCellBytes, "one cache line");

struct MailboxLines {
  alignas(64) std::atomic<uint32_t> writer_closed;
  alignas(64) std::atomic<uint64_t> cells_read;
  std::atomic<uint64_t> bytes_read;
  alignas(64) std::atomic<uint32_t> reader_closed;
};
static_assert(sizeof(MailboxLines) == 3 * 64 && std::atomic<uint64_t>::is_always_lock_free,
              "what is shared between processes has the same shape in all of them and no hidden lock");

}  // namespace internal

enum class MailboxResult { kDone, kBlocked, kCorrupt };

// The sender's end. Borrows the memory, which is zero where no reader or writer was before. Externally synchronised.
class MailboxWriter {
 public:
  // Puts at most `piece_bytes_max` bytes at once, a multiple of 64.
  MailboxWriter(char* memory, const MailboxGeometry& geometry, size_t piece_bytes_max);

  // Puts the next piece of a message of which `*done_bytes` are put already, and counts it there. A message is put when
  // it is done and a call has succeeded: one of no bytes takes a call as well.
  MailboxResult Put(const Envelope& envelope, const void* message, size_t bytes, size_t* done_bytes);

  // Nothing will follow.
  void Close() { lines_->writer_closed.store(1); }
  bool reader_closed() const { return lines_->reader_closed.load() != 0; }

 private:
  // Whether there is room for a cell, and for anything in the ring if it is wanted: kDone or kBlocked; kCorrupt when the
  // reader's counts make no sense.
  MailboxResult FindRoom(bool in_ring);
  uint64_t room_bytes() const { return ring_bytes_ - (bytes_written_ - bytes_read_); }

  internal::MailboxLines* const lines_;
  internal::MailboxCell* const cells_;
  unsigned char* const ring_;
  const uint64_t cells_count_;
  const uint64_t ring_bytes_;
  const size_t piece_bytes_max_;

  uint64_t cells_written_ = 0;
  uint64_t bytes_written_ = 0;
  // What the reader had read when it was last looked at.
  uint64_t cells_read_ = 0;
  uint64_t bytes_read_ = 0;
};

// The receiver's end. Borrows the memory. Externally synchronised.
class MailboxReader {
 public:
  MailboxReader(char* memory, const MailboxGeometry& geometry);

  // What stands at the reader's place; it stays there until Pop.
  struct Piece {
    const unsigned char* data = nullptr;
    size_t bytes = 0;
    bool in_ring = false;
    // Of a message's first piece only:
    const unsigned char* envelope = nullptr;
    uint64_t message_bytes = 0;
  };
  // `left_bytes`: of the message under way, after what was popped; 0 when a new one is to begin. kBlocked: nothing yet.
  MailboxResult Peek(uint64_t left_bytes, Piece* piece) const;

  // True when the writer may have been waiting for the room that this told it of.
  bool Pop(const Piece& piece);

  // Nothing more is read.
  void Close() { lines_->reader_closed.store(1); }
  // What was written before is still there: look once more.
  bool writer_closed() const { return lines_->writer_closed.load() != 0; }

 private:
  internal::MailboxLines* const lines_;
  const internal::MailboxCell* const cells_;
  const unsigned char* const ring_;
  const uint64_t cells_count_;
  const uint64_t ring_bytes_;

  uint64_t cells_read_ = 0;
  uint64_t bytes_read_ = 0;
  // As told to the writer.
  uint64_t cells_told_ = 0;
  uint64_t bytes_told_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_MAILBOX_H_

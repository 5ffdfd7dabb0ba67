// ShmLink: the messages of one channel from one rank to one other, through a mailbox. What transport/link/link.h is to byte
// streams, with the difference that a receive is reduced straight out of the mailbox.
//
//   state     mailbox  Advance does
//   waiting   none     nothing: operations queue up
//   open      one      moves pieces, completes operations
//   broken    none     completes every operation with the reason
//
// A broken link stays broken, and its memory is never used again: a peer that was stopped meanwhile may still write
// into it when it wakes up.

#ifndef TRANSPORT_SHM_SHM_LINK_H_
#define TRANSPORT_SHM_SHM_LINK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "transport/posting.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/mailbox.h"
#include "transport/shm/shared_memory.h"
#include "transport/transport.h"

namespace lockstep {

// If it is destroyed unbroken, the peer finds out from the connection between the two.
//
// Externally synchronised, as the transport that owns it. Completions run inside Advance only.
class ShmLink {
 public:
  enum class Direction : uint8_t { kSend, kReceive };

  // Borrows the transport (for the peer's description in errors), the counters and the peer's bell.
  ShmLink(const Transport* transport, Direction direction, Rank peer, ChannelId channel, PeerCounters* counters,
          PeerDoorbell* bell);

  Direction direction() const { return direction_; }
  Rank peer() const { return peer_; }
  ChannelId channel() const { return channel_; }

  bool waiting() const { return !open() && status_.ok(); }
  bool open() const { return memory_.data() != nullptr; }
  bool broken() const { return !status_.ok(); }
  bool pending() const { return !queue_.empty(); }
  size_t memory_bytes() const { return memory_.bytes(); }

  // From waiting to open.
  void Open(SharedMemory memory, const MailboxGeometry& geometry, size_t piece_bytes_max);

  // To broken; the first reason counts. The peer sees its end of the mailbox close. Operations complete with the
  // reason, as it stands, in Advance.
  void Break(const absl::Status& status);
  // The same with "recv from rank 5 over shm pid 71: " before the cause.
  void BreakBecause(const absl::Status& cause);
  // The same in a forked child, which does not have the memory.
  void Forget(const absl::Status& status);

  // The peer is gone: what lies in the mailbox is the last.
  void MarkEnding();

  void Post(Operation* operation) { queue_.Push(operation); }

  // Moves what can be moved until the budget (bytes, and a fixed charge for each message) is used up. True when bytes
  // moved or operations completed.
  bool Advance(int64_t* budget) {
    if (!pending()) return false;
    return AdvancePending(budget);
  }

 private:
  friend class ShmTransport;

  bool AdvancePending(int64_t* budget);
  bool AdvanceSend(int64_t* budget);
  bool AdvanceReceive(int64_t* budget);
  // Whether a message's first piece is what the operation expects; breaks the link when not.
  bool Accept(Operation* operation, const MailboxReader::Piece& piece);
  void Complete();
  std::string Describe() const;

  const Transport* const transport_;
  const Direction direction_;
  const Rank peer_;
  const ChannelId channel_;
  PeerCounters* const counters_;
  PeerDoorbell* const bell_;

  SharedMemory memory_;
  absl::optional<MailboxWriter> writer_;  // while open, of a link that sends
  absl::optional<MailboxReader> reader_;  // while open, of a link that receives
  absl::Status status_;                   // why it is broken
  bool ending_ = false;
  bool active_ = false;  // kept here for ShmTransport: whether it is in its list
  OperationQueue queue_;
};

}  // namespace lockstep

#endif  // TRANSPORT_SHM_SHM_LINK_H_

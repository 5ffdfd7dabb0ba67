// Transport: reliable messages between the ranks of one world, on channels.
//
// This header is also the porting guide: a back end implements Transport and passes tests/transport_conformance.h.
//
// Channels. A channel is a number that both sides agree on (a communicator's lane). Messages from one rank to another on
// one channel arrive complete, once, and in the order in which they were sent. Nothing is ordered across channels or across
// pairs of ranks, and a channel that is not drained does not hold up another.
//
// Matching. Order alone matches a receive to a send: the k-th Receive posted for (source, channel) takes the k-th message
// sent to this rank on it. Each carries an Envelope, to prove that both sides mean the same message. If the envelope or the
// length differs, the receive fails with FAILED_PRECONDITION and leaves in Operation::arrived what was announced. The
// channel from that source is then broken: every later receive on it fails the same way.
//
// Flow control. A message that nobody receives stays with its sender, except for what the medium buffers. Send then
// completes late, not in error. A send completes when its buffer may be reused, which says nothing about the receiver.
// Operations of one direction with one peer on one channel complete in the order in which they were posted.
//
// THREADS  Externally synchronised: one thread at a time calls anything here except WaitForEvent and Wake, which any thread
//          may call at any time. comm/engine/progress_engine.h owns that lock. Completions run inside Progress(), Send(),
//          Receive(), Abort() or Close() on the calling thread; a completion may post further operations.
// ERRORS   When a peer's connection closes, what had already arrived is still delivered. Then operations with that peer
//          complete with UNAVAILABLE, naming the peer and its address, also if it never sent anything. Only the control
//          channel knows whether that peer is dead or gave up first. Every wait has a deadline.

#ifndef TRANSPORT_TRANSPORT_H_
#define TRANSPORT_TRANSPORT_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/types/reduction.h"

namespace lockstep {

using ChannelId = uint32_t;

// Opaque to transports: the communicator puts the signature of the collective in here (docs/wire_formats.md).
using Envelope = std::array<unsigned char, 32>;

// Where an arriving message goes, as data, so that a transport may read straight into place or reduce from a staging piece.
// With a reduction: target[i] = operand[i] op arriving[i], and `operand` may equal `target`. Without: target = arriving.
struct Sink {
  void* target = nullptr;
  size_t bytes = 0;
  const void* operand = nullptr;         // read only with a reduction
  const Reduction* reduction = nullptr;  // null: copy. Outlives the operation.
};

// The memory of a message that does not lie in one place: pieces one behind the other, each of whole elements of a reduction.
struct MessagePieces {
  absl::Span<const iovec> memory;   // of a send, or a sink's target
  absl::Span<const iovec> operand;  // a sink's, with a reduction
};

// One send or receive in flight. The caller owns it, keeps it in place until it has completed, and may then use it again.
// Embed it in your own record: posting then allocates nothing.
struct Operation {
  // Called exactly once. OK, or why not; on an error the target's contents are unspecified, and the buffer is free.
  void (*complete)(Operation* operation, const absl::Status& status) = nullptr;

  // Set before it is posted, within the transport's send_pieces_max or receive_pieces_max: where the message lies instead of the
  // addresses given then. Stays until completion, and so do the lists. Null: those addresses.
  const MessagePieces* pieces = nullptr;

  // What arrived instead, if a receive failed with FAILED_PRECONDITION. Zeros if nothing arrived, for example because the peer
  // refused the connection.
  Envelope arrived = {};
  uint64_t arrived_bytes = 0;

  // The transport's own: queue link and progress of this operation.
  struct Internal {
    Operation* next = nullptr;
    Rank peer;
    ChannelId channel = 0;
    Envelope envelope = {};
    const void* source = nullptr;
    Sink sink;
    size_t bytes = 0;
    size_t done_bytes = 0;
  } internal;
};

// What happened with one peer so far; for errors, flight records and tests that count bytes.
struct PeerCounters {
  uint64_t sent_bytes = 0;      // payload handed to the medium
  uint64_t received_bytes = 0;  // payload that reached a sink
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const = 0;  // "tcp", "loopback"
  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  // "tcp 10.0.0.7:4411": how this rank reaches the peer. For messages to people.
  virtual std::string DescribePeer(Rank peer) const = 0;

  // Posts a message to another rank; zero bytes are a message too. `data` stays borrowed until completion. A small message
  // may complete before Send returns. Errors arrive through the completion only.
  virtual void Send(Rank target, ChannelId channel, const Envelope& envelope, const void* data, size_t bytes,
                    Operation* operation) = 0;

  // Posts the receive of a message of exactly sink.bytes. The sink's memory stays borrowed until completion.
  virtual void Receive(Rank source, ChannelId channel, const Envelope& expected, const Sink& sink,
                       Operation* operation) = 0;

  // In how many pieces a message to the peer may lie, and one from it; 1: it is contiguous. Never changes.
  virtual int send_pieces_max(Rank peer) const { return 1; }
  virtual int receive_pieces_max(Rank peer) const { return 1; }

  // Registers memory that messages often use, so that the device learns of it once and not for each message.
  // REQUIRES  DeregisterMemory before the memory is unmapped, while no message is under way in it
  // ERRORS    the device's; messages may use the memory all the same
  virtual absl::Status RegisterMemory(const void* memory, size_t bytes) { return absl::OkStatus(); }
  virtual void DeregisterMemory(const void* memory, size_t bytes) {}

  // Sends a short message to a peer and receives one from it, without operations. For ranks in step: it is over before
  // waiting would pay off. Sends `sink.bytes` bytes, then polls up to `polls` times for a message of the same length
  // and envelope. `data` may be the sink's memory. By default: kNothing.
  // RETURNS  kNothing  it was not possible, or only in part. This message must be the next that is sent to the peer on the
  //                    channel, and the next that is received from it
  //          kSent     this message must be the next that is received from the peer on the channel
  //          kAll      both are done
  enum class Exchanged { kNothing, kSent, kAll };
  virtual Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                             int polls) {
    return Exchanged::kNothing;
  }

  // Moves what can be moved without waiting, and runs completions. Returns whether anything moved.
  virtual bool Progress() = 0;

  // Whether a message may need Progress() to leave after its operation has completed (a provider may refuse a post for now),
  // and whether one needs it now. The first never changes.
  virtual bool sends_may_lag() const { return false; }
  virtual bool sends_lag() const { return false; }

  // Blocks until Progress() may have something to do, Wake() was called, or the deadline passed. May return early. Covers
  // operations that are posted meanwhile.
  virtual void WaitForEvent(Deadline deadline) = 0;

  // Ends a WaitForEvent in progress, or the next one.
  virtual void Wake() = 0;

  // Completes all operations of a channel with `status`; later ones on it fail with the same. No sink is written after this
  // returns. Peers see the channel's connections close, also peers that had none.
  virtual void AbortChannel(ChannelId channel, const absl::Status& status) = 0;

  // Does this for all channels, for ever.
  virtual void Abort(const absl::Status& status) = 0;

  // Flushes sends under way until the deadline, then completes the rest with CANCELLED and releases connections and
  // listeners. A second call does nothing. The destructor closes with a deadline that has passed.
  virtual absl::Status Close(Deadline deadline) = 0;

  virtual PeerCounters counters(Rank peer) const = 0;

 protected:
  Transport() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_TRANSPORT_H_

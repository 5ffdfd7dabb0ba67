// Transport: reliable messages between the ranks of one world, on channels.
//
// This header is also the porting guide: a back end implements Transport and passes tests/transport_conformance.h.
//
// Channels. A channel is a number that both sides agree on (a communicator's lane). Messages from one rank to another on
// one channel arrive complete, once, and in the order in which they were sent; nothing is ordered across channels or
// across pairs of ranks, and a channel that is not drained does not hold up another.
//
// Matching. Nothing but order matches a receive to a send: the k-th Receive posted for (source, channel) takes the k-th
// message sent to this rank on it. To prove that both sides mean the same message each carries an Envelope; one that
// differs from the receiver's, or a message of another length, fails the receive with FAILED_PRECONDITION and leaves
// what was announced in Operation::arrived. After that the channel from that source is broken, and so says every later
// receive on it.
//
// Flow control. A message that nobody receives stays with its sender, but for what the medium buffers; Send then completes
// late, not in error. A send completes when its buffer may be reused, which says nothing about the receiver. Operations of one
// direction with one peer on one channel complete in the order in which they were posted.
//
// Threads. Externally synchronised: one thread at a time calls anything here except WaitForEvent and Wake, which any
// thread may call at any time. comm/engine/progress_engine.h owns that lock. Completions run inside Progress(), Send(), Receive(), Abort()
// or Close() on the calling thread; a completion may post further operations.
//
// Failure. When a peer's connection closes, what had already arrived is still delivered; then operations with that peer
// complete with UNAVAILABLE naming the peer and its address, also where it closed before it ever sent anything. Whether that
// peer is dead, or merely first to give up, is for the control channel to say. Nothing here waits without being told until when.

#ifndef TRANSPORT_TRANSPORT_H_
#define TRANSPORT_TRANSPORT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/types/reduction.h"

namespace lockstep {

using ChannelId = uint32_t;

// Opaque to transports: the communicator puts the signature of the collective in here (docs/wire_formats.md).
using Envelope = std::array<unsigned char, 32>;

// Where an arriving message goes, as data, so that a transport may read straight into place or fold from a staging piece.
// With a reduction: target[i] = operand[i] op arriving[i], and `operand` may equal `target`. Without: target = arriving.
struct Sink {
  void* target = nullptr;
  size_t bytes = 0;
  const void* operand = nullptr;         // read only with a reduction
  const Reduction* reduction = nullptr;  // null: copy. Outlives the operation.
};

// One send or receive in flight. The caller owns it, keeps it in place until it completed, and may then use it again;
// it is meant to be embedded in the caller's own record, so that posting allocates nothing.
struct Operation {
  // Called exactly once. OK, or why not; on an error the target's contents are unspecified, and the buffer is free.
  void (*complete)(Operation* operation, const absl::Status& status) = nullptr;

  // Set by a receive that failed with FAILED_PRECONDITION because something else arrived; zeros where nothing did, as where the
  // peer refused the connection.
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

  // Memory from which messages will be sent and into which they will be received often: a transport whose device is told
  // of memory tells it once, not for each message. Until ForgetMemory, which comes before it is unmapped, while no message
  // is under way in it. An error is the device's; messages may lie there all the same.
  virtual absl::Status KeepMemory(const void* memory, size_t bytes) { return absl::OkStatus(); }
  virtual void ForgetMemory(const void* memory, size_t bytes) {}

  // A short message each way between ranks in step, without operations: for what is over before it is worth waiting for.
  // Sends `sink.bytes` bytes, then looks so many times for a message of as many with the same envelope. `data` may lie in
  // the sink.
  //   kNothing  it was not possible, or only in part, or looks wrong. The next message to this peer on the channel must
  //             be this one, and the next that is received from it
  //   kSent     the same of what is to be received
  //   kAll      both were carried out
  // As it is here: nothing.
  enum class Exchanged { kNothing, kSent, kAll };
  virtual Exchanged Exchange(Rank peer, ChannelId channel, const Envelope& envelope, const void* data, const Sink& sink,
                             int looks) {
    return Exchanged::kNothing;
  }

  // Moves what can be moved without waiting and runs completions. True when anything moved, so that a caller who spins
  // knows when to stop.
  virtual bool Progress() = 0;

  // Whether messages may need Progress() to leave when their operations have completed, as where a provider refuses a post for
  // now; and whether one does. The first is the same for as long as the transport lives.
  virtual bool sends_may_lag() const { return false; }
  virtual bool sends_lag() const { return false; }

  // Blocks until Progress() may have something to do, Wake() was called, or the deadline passed. May return early. Holds no
  // lock of the caller's: operations may be posted meanwhile and are covered by this wait.
  virtual void WaitForEvent(Deadline deadline) = 0;

  // Ends a WaitForEvent in progress, or the next one.
  virtual void Wake() = 0;

  // Completes all operations of a channel with `status`; later ones on it fail with the same. Memory of sinks is not written
  // after this returns. Peers see the channel's connections close, also those that have had none.
  virtual void AbortChannel(ChannelId channel, const absl::Status& status) = 0;

  // The same for every channel and for ever.
  virtual void Abort(const absl::Status& status) = 0;

  // Flushes sends that are under way until the deadline, then completes what is left with CANCELLED and releases
  // connections and listeners. A second call does nothing. The destructor is Close with a deadline already passed.
  virtual absl::Status Close(Deadline deadline) = 0;

  virtual PeerCounters counters(Rank peer) const = 0;

 protected:
  Transport() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_TRANSPORT_H_

// Link: the messages of one channel from one rank to one other, over a byte stream. Sockets and loopback pipes share
// it.
//
//   state     stream  ready                        Advance does
//   waiting   none    -                            nothing: operations queue up
//   open      one     the stream may move bytes    moves them, completes operations
//   open      one     no: the stream said EAGAIN   nothing, until MarkReady()
//   broken    closes  -                            completes every operation with the reason
//
// A send completes when the stream has taken it and no longer reads its memory. A stream that copies does not read it later;
// for others MarkReleased() tells.
// A broken link stays broken: what was lost on it cannot be known.

#ifndef TRANSPORT_LINK_LINK_H_
#define TRANSPORT_LINK_LINK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "transport/link/byte_stream.h"
#include "transport/link/sink_writer.h"
#include "transport/net/little_endian.h"
#include "transport/posting.h"
#include "transport/transport.h"

namespace lockstep {

// What stands before each message on a byte stream (docs/wire_formats.md):
//
//   message  = header payload
//   header   = magic:u32 flags:u32 payload_bytes:u64 envelope:32 bytes
//
// Numbers are little-endian; flags are 0 in version 1.
inline constexpr size_t kMessageHeaderBytes = 48;
inline constexpr uint32_t kMessageMagic = 0x31474d4c;  // "LMG1"

struct MessageHeader {
  uint64_t bytes = 0;
  Envelope envelope = {};
};

inline void EncodeMessageHeader(const MessageHeader& header, unsigned char* target) {
  target = StoreLittleEndians(target, kMessageMagic, /*flags=*/uint32_t{0}, header.bytes);
  std::copy(header.envelope.begin(), header.envelope.end(), target);
}

// False when this is no header of ours.
inline bool DecodeMessageHeader(const unsigned char* source, MessageHeader* header) {
  if (LoadLittleEndian<uint32_t>(source) != kMessageMagic || LoadLittleEndian<uint32_t>(source + 4) != 0) return false;
  header->bytes = LoadLittleEndian<uint64_t>(source + 8);
  std::copy(source + 16, source + kMessageHeaderBytes, header->envelope.begin());
  return true;
}

// Externally synchronised, as the transport that owns it. Completions run inside Advance only.
class Link {
 public:
  enum class Direction : uint8_t { kSend, kReceive };

  // Borrows the transport (for the peer's description in errors), the counters and the staging piece.
  Link(const Transport* transport, Direction direction, Rank peer, ChannelId channel, PeerCounters* counters,
       StagingPiece staging);

  Direction direction() const { return direction_; }
  Rank peer() const { return peer_; }
  ChannelId channel() const { return channel_; }

  bool waiting() const { return stream_ == nullptr && status_.ok(); }
  bool open() const { return stream_ != nullptr && status_.ok(); }
  bool broken() const { return !status_.ok(); }
  bool pending() const { return !queue_.empty() || !unreleased_.empty(); }
  // Whether Advance would do something.
  bool runnable() const {
    if (broken()) return pending();
    return (ready_ && !queue_.empty()) || (released_ && !unreleased_.empty());
  }

  // From waiting to open, and ready.
  void Open(std::unique_ptr<ByteStream> stream);

  // To broken, closing the stream; the first reason counts. Operations complete with it, as it stands, in Advance, but
  // for sends that the stream is done with.
  void Break(const absl::Status& status);
  // The same with "recv from rank 5 over tcp 10.0.0.7:4411: " before the cause.
  void BreakBecause(const absl::Status& cause);

  // The stream may move bytes again. Does nothing to a link that is not open.
  void MarkReady() { ready_ = open(); }
  // The stream has ended behind what it still holds: it is worth reading until that end is reached.
  void MarkEnding() {
    ending_ = true;
    MarkReady();
  }

  // The stream may have released memory of sends. Does nothing to a link that is not open.
  void MarkReleased() { released_ = open(); }

  // A payload of up to this many bytes travels in one piece with its header: a second piece costs the system call more
  // than the copy.
  static constexpr size_t kInlineBytesMax = 1024;

  // Messages of up to kInlineBytesMax that are no operations, moved at once where nothing else is under way on the link.
  // If one could not be sent, or a part of one has come, the operation that is posted next must be of the same message, and moves the rest.
  bool can_move_at_once() const { return open() && !pending() && early_bytes_ == 0; }
  // True when all of it was sent.
  bool SendAtOnce(const Envelope& envelope, const void* data, size_t bytes);
  // Looks so many times. True when the message was received.
  bool ReceiveAtOnce(const Envelope& expected, const Sink& sink, int polls);

  void Post(Operation* operation) { queue_.Push(operation); }

  // Moves what can be moved until the budget (bytes, and a fixed charge for each call of the stream) is used up. True
  // when bytes moved or operations completed.
  bool Advance(int64_t* budget);

 private:
  friend class LinkTable;

  bool AdvanceSend(int64_t* budget);
  bool AdvanceReceive(int64_t* budget);
  // Completes the sends whose memory the stream has released. True when there were any.
  bool CompleteReleased();
  // The header into head_, and behind it a payload that is short enough.
  void EncodeHead(const Envelope& envelope, const void* data, size_t bytes, const MessagePieces* pieces);
  // Some of the message's bytes came: of its header into head_, of its payload to `payload`, or where the writer said if that is null.
  // False when the link broke.
  bool Received(Operation* operation, size_t bytes, const unsigned char* payload);
  // Whether the header that arrived is what the operation expects; breaks the link when not.
  bool Accept(Operation* operation);
  std::string Describe() const;

  const Transport* const transport_;
  const Direction direction_;
  const Rank peer_;
  const ChannelId channel_;
  PeerCounters* const counters_;

  std::unique_ptr<ByteStream> stream_;
  absl::Status status_;  // why it is broken
  bool ready_ = false;   // only while open
  bool ending_ = false;
  bool released_ = false;  // only while open
  OperationQueue queue_;
  // Sends that the stream has taken whole, before those in queue_, and may still read; and their bytes, headers included.
  OperationQueue unreleased_;
  uint64_t unreleased_bytes_ = 0;

  // Of the front operation: its header, and behind it a payload that is short enough.
  alignas(64) unsigned char head_[kMessageHeaderBytes + kInlineBytesMax];
  size_t early_bytes_ = 0;  // of the next one's in head_: sent or received before it is posted
  SinkWriter writer_;

  // Kept here for LinkTable: where this link stands in its lists, and what is left to it in this round.
  bool active_ = false;
  bool scheduled_ = false;
  uint64_t round_ = 0;
  int64_t budget_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_LINK_H_

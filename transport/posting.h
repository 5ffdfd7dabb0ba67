// What all transports do alike: check arguments, fill in operations and queue them, describe errors, close.

#ifndef TRANSPORT_POSTING_H_
#define TRANSPORT_POSTING_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/types/dtype.h"
#include "transport/transport.h"

namespace lockstep {

// Who a rank is: the beginning of every transport's options. The ranks of a world must agree in it.
struct WorldIdentity {
  Rank rank;
  int size = 1;
  std::string job_id;
  // A random number that the ranks of one world agree on, so that a process left from an earlier one is turned away.
  uint64_t world_id = 0;
  // The unit into which the layers above cut long messages.
  uint32_t chunk_bytes = uint32_t{1} << 20;
};

namespace internal {

absl::Status NoPeer(const char* transport, Rank rank, int size, Rank peer);
absl::Status BrokenSink(const Sink& sink);

}  // namespace internal

// INVALID_ARGUMENT for a rank outside the world and for a job id that is too long.
absl::Status CheckWorld(const char* transport, const WorldIdentity& self, size_t job_id_bytes_max);

// INVALID_ARGUMENT for this rank itself and for ranks outside the world.
inline absl::Status CheckPeer(const char* transport, Rank rank, int size, Rank peer) {
  if (peer.value() >= 0 && peer.value() < size && peer != rank) return absl::OkStatus();
  return internal::NoPeer(transport, rank, size, peer);
}

// INVALID_ARGUMENT for a reduction of a broken number of elements.
inline absl::Status CheckSink(const Sink& sink) {
  if (sink.reduction == nullptr || sink.bytes % SizeOf(sink.reduction->dtype) == 0) return absl::OkStatus();
  return internal::BrokenSink(sink);
}

inline void Fill(Operation* operation, Rank peer, ChannelId channel, const Envelope& envelope, size_t bytes) {
  Operation::Internal& message = operation->internal;
  message.peer = peer;
  message.channel = channel;
  message.envelope = envelope;
  message.bytes = bytes;
  message.done_bytes = 0;
}
inline void FillSend(Operation* operation, Rank peer, ChannelId channel, const Envelope& envelope, const void* data,
                     size_t bytes) {
  Fill(operation, peer, channel, envelope, bytes);
  operation->internal.source = data;
}
inline void FillReceive(Operation* operation, Rank peer, ChannelId channel, const Envelope& expected,
                        const Sink& sink) {
  Fill(operation, peer, channel, expected, sink.bytes);
  operation->internal.sink = sink;
}

// Where messages move over streams. In more pieces than this they are short, and copying them costs less than their number does.
inline constexpr int kLinkPiecesMax = 64;

// What is at an offset of a message in pieces, to the end of its piece. REQUIRES  the message is longer
inline iovec PieceAt(absl::Span<const iovec> pieces, size_t offset) {
  size_t index = 0;
  for (; offset >= pieces[index].iov_len; ++index) offset -= pieces[index].iov_len;
  return {static_cast<char*>(pieces[index].iov_base) + offset, pieces[index].iov_len - offset};
}

inline size_t TotalBytes(const iovec* pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += pieces[i].iov_len;
  return total;
}

// The pieces from an offset on, up to `max` of them and `bytes` together at most. Returns how many.
int CutPieces(absl::Span<const iovec> pieces, size_t offset, size_t bytes, iovec* cut, int max);

inline void CopyPieces(absl::Span<const iovec> pieces, unsigned char* target) {
  for (const iovec& piece : pieces) {
    std::memcpy(target, piece.iov_base, piece.iov_len);
    target += piece.iov_len;
  }
}

// Copies a whole message from `data`, or from its pieces if they are not null.
inline void CopyMessage(const void* data, size_t bytes, const MessagePieces* pieces, unsigned char* target) {
  if (bytes == 0) return;
  if (pieces == nullptr) {
    std::memcpy(target, data, bytes);
  } else {
    CopyPieces(pieces->memory, target);
  }
}

// Puts what arrived, from an offset of the message on, into a sink in pieces. With a reduction (null: copy) these are whole
// elements, aligned.
void CombinePieces(const MessagePieces& pieces, const Reduction* reduction, size_t offset, const unsigned char* source,
                   size_t bytes);

// FAILED_PRECONDITION: what arrived first (operation->arrived) is not what the receive expects, so the channel is broken.
absl::Status Mismatch(const Operation& operation);

// "recv from rank 5 over tcp 10.0.0.7:4411", for errors.
std::string DescribeWay(bool sends, const Transport& transport, Rank peer);

// Operations in the order in which they were posted, linked through themselves: posting allocates nothing.
//
// Borrows what it links. Externally synchronised.
class OperationQueue {
 public:
  OperationQueue() = default;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  bool empty() const { return front_ == nullptr; }
  Operation* front() const { return front_; }

  void Push(Operation* operation) {
    operation->internal.next = nullptr;
    (front_ == nullptr ? front_ : back_->internal.next) = operation;
    back_ = operation;
  }

  Operation* Pop() {
    Operation* const operation = front_;
    front_ = operation->internal.next;
    return operation;
  }

  // Completes what is queued now; what completions post stays for a later call, so that this one ends.
  void CompleteAll(const absl::Status& status) {
    Operation* operation = front_;
    front_ = nullptr;
    while (operation != nullptr) {
      // Read first: the completion may use the operation again.
      Operation* const next = operation->internal.next;
      operation->complete(operation, status);
      operation = next;
    }
  }

 private:
  Operation* front_ = nullptr;
  Operation* back_ = nullptr;  // valid while front_ is set
};

// Transport::Close by Progress, WaitForEvent and Abort: waits until nothing is `pending`, sets *closed, and aborts.
// DEADLINE_EXCEEDED when sends were cut off.
absl::Status FlushAndClose(Transport* transport, Deadline deadline, bool* closed, const std::function<bool()>& pending);

}  // namespace lockstep

#endif  // TRANSPORT_POSTING_H_

// Puts a message that arrives in pieces of any length into its sink: straight into place, or reduced whole element by
// whole element from a staging piece.

#ifndef TRANSPORT_LINK_SINK_WRITER_H_
#define TRANSPORT_LINK_SINK_WRITER_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types/dtype.h"
#include "transport/posting.h"
#include "transport/transport.h"

namespace lockstep {

// Memory through which arriving bytes pass on their way into a reduction. Small enough to stay in the processor's
// cache, shared by all streams of a transport: nothing stays in it between a read and the Commit that follows.
struct StagingPiece {
  unsigned char* data = nullptr;
  size_t bytes = 0;  // at least kElementBytesMax * 2
};

// Ask Next() where to read to, read, Commit() what came. Externally synchronised; allocates nothing.
class SinkWriter {
 public:
  static constexpr size_t kElementBytesMax = 16;

  explicit SinkWriter(StagingPiece staging) : staging_(staging) {}

  // `pieces`: of the operation, may be null.
  void Begin(const Sink& sink, const MessagePieces* pieces = nullptr) {
    sink_ = sink;
    pieces_ = pieces;
    element_bytes_ = sink.reduction == nullptr ? 1 : SizeOf(sink.reduction->dtype);
    arrived_bytes_ = 0;
    carried_bytes_ = 0;
  }

  bool reduces() const { return sink_.reduction != nullptr; }
  size_t left() const { return sink_.bytes - arrived_bytes_; }

  // Where the next bytes go: empty when the message is complete.
  iovec Next() {
    const size_t left = sink_.bytes - arrived_bytes_;
    if (sink_.reduction == nullptr) {
      if (pieces_ != nullptr && left > 0) return PieceAt(pieces_->memory, arrived_bytes_);
      return {static_cast<unsigned char*>(sink_.target) + arrived_bytes_, left};
    }
    // The carried bytes go in front, so that elements lie aligned in the staging piece whatever lengths arrive.
    std::memcpy(staging_.data, carried_, carried_bytes_);
    return {staging_.data + carried_bytes_, std::min(left, staging_.bytes - carried_bytes_)};
  }

  // `bytes` arrived where Next() said.
  void Commit(size_t bytes) {
    if (sink_.reduction != nullptr) {
      const size_t staged = carried_bytes_ + bytes;
      const size_t count = staged / element_bytes_;
      Combine(arrived_bytes_ - carried_bytes_, staging_.data, count);
      carried_bytes_ = staged - count * element_bytes_;
      std::memcpy(carried_, staging_.data + count * element_bytes_, carried_bytes_);
    }
    arrived_bytes_ += bytes;
  }

  // The same as a list of up to `max` places, of `bytes` together at most; how many. `bytes` is not 0.
  int Next(iovec* places, int max, size_t bytes) {
    if (pieces_ != nullptr && sink_.reduction == nullptr) {
      return CutPieces(pieces_->memory, arrived_bytes_, bytes, places, max);
    }
    places[0] = Next();
    places[0].iov_len = std::min(places[0].iov_len, bytes);
    return places[0].iov_len > 0 ? 1 : 0;
  }

  // The same for bytes that arrived elsewhere: whole elements are reduced from there if they lie aligned.
  void Put(const unsigned char* source, size_t bytes) {
    const bool reduces = sink_.reduction != nullptr && carried_bytes_ == 0;
    if (reduces && reinterpret_cast<uintptr_t>(source) % element_bytes_ == 0) {
      const size_t count = bytes / element_bytes_;
      Combine(arrived_bytes_, source, count);
      arrived_bytes_ += count * element_bytes_;
      source += count * element_bytes_;
      bytes -= count * element_bytes_;
    }
    while (bytes > 0) {
      const iovec place = Next();
      const size_t piece = std::min(bytes, place.iov_len);
      std::memcpy(place.iov_base, source, piece);
      Commit(piece);
      source += piece;
      bytes -= piece;
    }
  }

 private:
  // Whole elements, aligned, of the message from `position` bytes on.
  void Combine(size_t position, const unsigned char* source, size_t count) {
    if (pieces_ != nullptr) return CombinePieces(*pieces_, sink_.reduction, position, source, count * element_bytes_);
    sink_.reduction->combine(static_cast<unsigned char*>(sink_.target) + position,
                             static_cast<const unsigned char*>(sink_.operand) + position, source, count);
  }

  const StagingPiece staging_;
  Sink sink_;
  const MessagePieces* pieces_ = nullptr;  // of the memory, instead of the sink's addresses
  size_t element_bytes_ = 1;
  size_t arrived_bytes_ = 0;
  // The beginning of an element whose end has not arrived: kept here, since the staging piece is shared.
  size_t carried_bytes_ = 0;
  unsigned char carried_[kElementBytesMax];
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_SINK_WRITER_H_

// Puts a message that arrives in pieces of any length into its sink: straight into place, or reduced whole element by
// whole element from a staging piece.

#ifndef TRANSPORT_LINK_SINK_WRITER_H_
#define TRANSPORT_LINK_SINK_WRITER_H_

#include <sys/uio.h>

#include <cstddef>

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

  void Begin(const Sink& sink);

  // Where the next bytes go: empty when the message is complete.
  iovec Next();

  // `bytes` arrived where Next() said.
  void Commit(size_t bytes);

  // The same for bytes that arrived elsewhere.
  void Put(const unsigned char* source, size_t bytes);

 private:
  // Whole elements, aligned, of the message from `position` bytes on.
  void Combine(size_t position, const unsigned char* source, size_t count);

  const StagingPiece staging_;
  Sink sink_;
  size_t element_bytes_ = 1;
  size_t arrived_bytes_ = 0;
  // The beginning of an element whose end has not arrived: kept here, since the staging piece is shared.
  size_t carried_bytes_ = 0;
  unsigned char carried_[kElementBytesMax];
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_SINK_WRITER_H_

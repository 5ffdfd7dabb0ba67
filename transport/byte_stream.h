// One direction of a connection as a socket gives it: reliable, ordered, without message boundaries, never blocking.

#ifndef TRANSPORT_BYTE_STREAM_H_
#define TRANSPORT_BYTE_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

namespace lockstep {

// Externally synchronised. Destroying a stream closes it: the other end sees that.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // How many bytes the stream took from the pieces, in their order, or a negative errno: -EAGAIN when it takes none
  // now, -EPIPE when nobody will read them.
  virtual ssize_t Write(const iovec* pieces, int count) = 0;

  // How many bytes were put into the pieces, 0 at the end of the stream, or a negative errno: -EAGAIN when none are
  // there.
  virtual ssize_t Read(const iovec* pieces, int count) = 0;

 protected:
  ByteStream() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_BYTE_STREAM_H_

// One direction of a connection as a socket gives it: reliable, ordered, without message boundaries, never blocking.

#ifndef TRANSPORT_LINK_BYTE_STREAM_H_
#define TRANSPORT_LINK_BYTE_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

// Externally synchronised. Destroying a stream closes it: the other end sees that.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // A call takes no more pieces than this.
  static constexpr int kPiecesMax = 17;

  // A piece that is shorter than this is copied by Write; a longer one may be read from where it lies until
  // UnreleasedBytes says that it no longer is. Long enough that copying costs more than pinning pages and being told.
  static constexpr size_t kLentBytesMin = size_t{32} << 10;

  // How many bytes the stream took from the pieces, in their order, or a negative errno: -EAGAIN when it takes none
  // now, -EPIPE when nobody will read them. After -EAGAIN, or less than all of them, the next call begins with what is left, from the same
  // memory and at least as long: it may be sealed already, and on its way.
  virtual ssize_t Write(const iovec* pieces, int count) = 0;

  // How many bytes were put into the pieces, 0 at the end of the stream, or a negative errno: -EAGAIN when none are
  // there, -EBADMSG when what arrived is not what the peer sent.
  virtual ssize_t Read(const iovec* pieces, int count) = 0;

  // For a stream that holds what it has read: instead of Read, and cheaper, for what is not to lie in the caller's memory.
  virtual bool views() const { return false; }
  // At most so many bytes, where they lie until the next call: how many, or as Read. Less than was asked for does not say that there
  // are no more. A stream with views() only.
  virtual ssize_t View(size_t /*bytes*/, const unsigned char** /*data*/) { return -EOPNOTSUPP; }

  // What is wrong with what arrived: after -EBADMSG, and perhaps at the end of the stream.
  virtual std::string Defect() const { return ""; }

  // Of how many of the last bytes written the memory may not be used again yet. 0 for a stream that copies. Asks the system
  // for news, if there may be any.
  virtual uint64_t UnreleasedBytes() { return 0; }

 protected:
  ByteStream() = default;
};

}  // namespace lockstep

#endif  // TRANSPORT_LINK_BYTE_STREAM_H_

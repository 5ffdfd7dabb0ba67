// The sending direction of a socket that has SO_ZEROCOPY: long pieces are sent from where they lie, short ones copied.
//
// It copies instead where the kernel would: for good once the kernel says that it copied (to a peer on the same machine
// it always does), and a single piece where the kernel refuses to lock more memory (RLIMIT_MEMLOCK, or
// net.core.optmem_max) or too many sends are outstanding.
//
// A stream that goes while the kernel still reads lets its socket reset the connection, so that the kernel drops what it
// has not sent and does not send it again. What the network device holds by then may still be sent, as it lies in
// memory at that moment: the kernel has the pages pinned, so that it reads no other memory, and never writes to them.

#ifndef TRANSPORT_TCP_ZERO_COPY_STREAM_H_
#define TRANSPORT_TCP_ZERO_COPY_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "transport/link/byte_stream.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/zero_copy_sends.h"

namespace lockstep {

class ZeroCopyStream final : public ByteStream {
 public:
  // `ended`: as TcpStream's. Copies everything when the socket does not have SO_ZEROCOPY.
  ZeroCopyStream(std::shared_ptr<TcpSocket> socket, bool* ended);
  ~ZeroCopyStream() override;

  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override { return copying_.Read(pieces, count); }
  uint64_t UnreleasedBytes() override;

 private:
  // What Write does, but for counting.
  ssize_t Send(const iovec* pieces, int count);
  ssize_t SendFromWhereItLies(const iovec& piece, uint64_t position);
  void ReadErrorQueue();

  const std::shared_ptr<TcpSocket> socket_;
  TcpStream copying_;
  bool on_;
  uint64_t written_bytes_ = 0;
  ZeroCopySends sends_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_ZERO_COPY_STREAM_H_

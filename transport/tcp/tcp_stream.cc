#include "transport/tcp/tcp_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace lockstep {

ssize_t TcpStream::Write(const iovec* pieces, int count) {
  for (;;) {
    ssize_t written;
    if (count == 1) {
      written = send(socket_.get(), pieces->iov_base, pieces->iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
      msghdr message = {};
      message.msg_iov = const_cast<iovec*>(pieces);  // read only, here
      message.msg_iovlen = count;
      written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (written >= 0) return written;
    if (errno != EINTR) return -errno;
  }
}

ssize_t TcpStream::Read(const iovec* pieces, int count) {
  for (;;) {
    const ssize_t read = count == 1 ? recv(socket_.get(), pieces->iov_base, pieces->iov_len, MSG_DONTWAIT)
                                    : readv(socket_.get(), pieces, count);  // the socket does not block
    if (read >= 0) return read;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace lockstep

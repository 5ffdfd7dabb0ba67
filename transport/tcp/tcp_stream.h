// A connected socket as a ByteStream: one system call for each call.

#ifndef TRANSPORT_TCP_TCP_STREAM_H_
#define TRANSPORT_TCP_TCP_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <utility>

#include "base/fork.h"
#include "transport/byte_stream.h"

namespace lockstep {

class TcpStream final : public ByteStream {
 public:
  explicit TcpStream(UniqueFd socket) : socket_(std::move(socket)) {}

  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override;

 private:
  const UniqueFd socket_;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_STREAM_H_

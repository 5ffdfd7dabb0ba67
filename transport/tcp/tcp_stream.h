// A connected socket, its two directions as ByteStreams with one system call for each call, and several of them as one.
//
// Data flows both ways on one socket, so that acknowledgements ride on data. Each direction begins and ends by itself, as the
// link that uses it does. The socket closes with the later one.

#ifndef TRANSPORT_TCP_TCP_STREAM_H_
#define TRANSPORT_TCP_TCP_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "transport/link/byte_stream.h"

namespace lockstep {

// Externally synchronised, with all that share it.
class TcpSocket {
 public:
  // Registered with the epoll instance `events`, edge-triggered for everything, with `event_data`, until it closes.
  static absl::StatusOr<std::shared_ptr<TcpSocket>> Create(UniqueFd socket, int events, void* event_data);
  // Throws away what has arrived unread before it closes: a socket that is closed with unread data resets the
  // connection, and what was sent last would be lost on its way.
  ~TcpSocket();
  TcpSocket(const TcpSocket&) = delete;
  TcpSocket& operator=(const TcpSocket&) = delete;

  int get() const { return socket_.get(); }

  // Not in a forked child, where the number may stand for a descriptor of the child's own.
  bool ours() const { return fork_generation_ == ForkGeneration(); }

  // It will drop what it has not sent, and reset the connection, instead of ending it behind that.
  void ResetWhenClosed();

 private:
  TcpSocket(UniqueFd socket, int events);

  const UniqueFd socket_;
  const int events_;
  const uint64_t fork_generation_;
};

// One direction. Shared are the lifetimes of the two links that a socket serves.
class TcpStream final : public ByteStream {
 public:
  // `ended` belongs to all streams of a connection, and outlives them: set when one has been read to its end. Peers
  // close everything at once, so nobody reads what is written from then on; the kernel tells only after the next write.
  TcpStream(std::shared_ptr<TcpSocket> socket, bool* ended)
      : socket_(std::move(socket)), descriptor_(socket_->get()), ended_(ended) {}

  ssize_t Write(const iovec* pieces, int count) override { return Send(pieces, count, 0); }
  ssize_t Read(const iovec* pieces, int count) override;

  // Write with flags of sendmsg().
  ssize_t Send(const iovec* pieces, int count, int flags);

 private:
  const std::shared_ptr<TcpSocket> socket_;
  const int descriptor_;
  bool* const ended_;
};

// A byte stream over several sockets: where a network gives one flow too little, or hashes it to a busy path.
//
// The stream is cut into stripes of one length, and stripe i travels on socket i mod n. Both ends count, and so know
// where they are: nothing is added to the bytes, their order is kept, and short messages stay together on one socket.
// The writer goes on to the next socket as soon as the kernel has taken a stripe, so that all are under way at once.
class StripedStream final : public ByteStream {
 public:
  // The same streams in the same order, and the same length, at both ends.
  StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, size_t stripe_bytes);

  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override;

 private:
  // Moves what lies in each stripe with `move`, until one of them moves less than it was asked for.
  template <typename Move>
  ssize_t Run(const iovec* pieces, int count, Move move);

  const std::vector<std::unique_ptr<ByteStream>> streams_;
  const size_t stripe_bytes_;
  uint64_t position_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_TCP_STREAM_H_

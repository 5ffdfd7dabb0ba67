// A connected socket, its two directions as ByteStreams with one system call for each call, several of them as one, and one that
// sends without copying.
//
// Data flows both ways on one socket, so that acknowledgements ride on data. Each direction begins and ends by itself, as the
// link that uses it does. The socket closes with the later one.

#ifndef TRANSPORT_TCP_TCP_STREAM_H_
#define TRANSPORT_TCP_TCP_STREAM_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
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
  // Streams of one kind. The same in the same order, and the same length, at both ends.
  StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, size_t stripe_bytes);

  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override;
  bool views() const override { return streams_.front()->views(); }
  ssize_t View(size_t bytes, const unsigned char** data) override;
  std::string Defect() const override;

 private:
  size_t stripe_left() const { return stripe_bytes_ - position_ % stripe_bytes_; }
  ByteStream* stream() const { return streams_[position_ / stripe_bytes_ % streams_.size()].get(); }
  // Moves what lies in each stripe with `move`, until one of them moves less than it was asked for.
  template <typename Move>
  ssize_t Run(const iovec* pieces, int count, Move move);

  const std::vector<std::unique_ptr<ByteStream>> streams_;
  const size_t stripe_bytes_;
  uint64_t position_ = 0;
};

// The kernel numbers such sends from 0, one for each call that took anything, modulo 2^32. It pins the pages, only ever
// reads them, and says on the socket's error queue which sends it is done with: ranges of numbers, each number once,
// mostly in order. Until then it may read them again, to send what was lost once more. A range may also say that bytes
// were copied after all; to a socket of the same machine they always are, when they reach it. (The kernel's
// Documentation/networking/msg_zerocopy.rst.)
struct ReleasedSends {
  uint32_t first = 0;
  uint32_t last = 0;  // may be less than `first`: numbers wrap
  bool copied = false;
};

// What a message from a socket's error queue says of zero-copy sends; nothing when it is about something else.
absl::optional<ReleasedSends> ParseReleasedSends(msghdr* message);

// Sends that the kernel reads from where they lie (MSG_ZEROCOPY), as one socket counts them. Externally synchronised.
class ZeroCopySends {
 public:
  // Of one socket: what a full send buffer takes in the shortest pieces that are worth it.
  static constexpr uint32_t kOutstandingMax = 256;

  // `next`: the number of the first send to come.
  explicit ZeroCopySends(uint32_t next = 0) : oldest_(next), next_(next) {}

  bool empty() const { return oldest_ == next_; }
  // Whether no more may be added before some are released.
  bool full() const { return next_ - oldest_ == kOutstandingMax; }

  // The kernel took a send whose first byte is at `position` in the stream. Not when full.
  void Add(uint64_t position);

  // Numbers that are not outstanding are passed over.
  void Release(const ReleasedSends& released);

  // Of the oldest send that is outstanding. Not when empty.
  uint64_t position() const { return sends_[oldest_ % kOutstandingMax].position; }

 private:
  struct Send {
    uint64_t position;
    bool released;
  };

  // By number, modulo its size: a power of two, so that it goes on evenly where numbers wrap.
  std::array<Send, kOutstandingMax> sends_;
  static_assert((kOutstandingMax & (kOutstandingMax - 1)) == 0);
  // Outstanding are [oldest_, next_), but for those among them that were released early.
  uint32_t oldest_;
  uint32_t next_;
};

// The sending direction of a socket that has SO_ZEROCOPY: long pieces are sent from where they lie, short ones copied.
//
// It copies a single piece if the kernel refuses to lock more memory (RLIMIT_MEMLOCK, or net.core.optmem_max), or if too many
// sends are outstanding. It copies everything from then on if the kernel says that it copied; to a peer on the same machine
// it always does.
//
// A stream that is destroyed while the kernel still reads makes its socket reset the connection. Then the kernel drops what it
// has not sent, and does not send it again. What the network device holds by then may still be sent, as it lies in
// memory at that moment: the kernel has the pages pinned, so that it reads no other memory, and never writes to them.
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

#endif  // TRANSPORT_TCP_TCP_STREAM_H_

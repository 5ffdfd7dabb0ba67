// The sending direction of a socket that has SO_ZEROCOPY: long pieces are sent from where they lie, short ones copied.
//
// It copies a single piece if the kernel refuses to lock more memory (RLIMIT_MEMLOCK, or net.core.optmem_max), or if too many
// sends are outstanding. It copies everything from then on if the kernel says that it copied; to a peer on the same machine
// it always does.
//
// A stream that is destroyed while the kernel still reads makes its socket reset the connection. Then the kernel drops what it
// has not sent, and does not send it again. What the network device holds by then may still be sent, as it lies in
// memory at that moment: the kernel has the pages pinned, so that it reads no other memory, and never writes to them.
//
// The kernel numbers such sends from 0, one for each call that took anything, modulo 2^32. It pins the pages, only ever
// reads them, and says on the socket's error queue which sends it is done with: ranges of numbers, each number once,
// mostly in order. Until then it may read them again, to send what was lost once more. A range may also say that bytes
// were copied after all; to a socket of the same machine they always are, when they reach it. (The kernel's
// Documentation/networking/msg_zerocopy.rst.)

#ifndef TRANSPORT_TCP_ZERO_COPY_STREAM_H_
#define TRANSPORT_TCP_ZERO_COPY_STREAM_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/types/optional.h"
#include "transport/link/byte_stream.h"
#include "transport/tcp/tcp_stream.h"

namespace lockstep {

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

// A byte stream over several sockets: one flow that a network gives too little, or hashes to a busy path, becomes some.
//
// The stream is cut into stripes of one length, and stripe i travels on socket i mod n. Both ends count, and so know
// where they are: nothing is added to the bytes, their order is kept, and short messages stay together on one socket.
// The writer goes on to the next socket as soon as the kernel has taken a stripe, so that all are under way at once.

#ifndef TRANSPORT_TCP_STRIPED_STREAM_H_
#define TRANSPORT_TCP_STRIPED_STREAM_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/link/byte_stream.h"

namespace lockstep {

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

#endif  // TRANSPORT_TCP_STRIPED_STREAM_H_

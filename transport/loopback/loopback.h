// Loopback: a transport between ranks that are threads (or turns) of one process. For tests, and first-class: it runs
// the same links as the TCP transport, over pipes that behave as badly as a network may.
//
// A pipe delivers its bytes in pieces, and holds each piece back for a number of attempts. Both follow from the seed, for each
// (source, target, channel). So a run repeats exactly if one thread drives all ranks; with a thread for each rank the pieces
// of each pipe repeat.

#ifndef TRANSPORT_LOOPBACK_LOOPBACK_H_
#define TRANSPORT_LOOPBACK_LOOPBACK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/rank.h"
#include "transport/transport.h"

namespace lockstep {

// A message at the moment when it is handed to the network, before its first byte moves.
struct LoopbackMessage {
  Rank source;
  Rank target;
  ChannelId channel = 0;
  size_t bytes = 0;
  Envelope envelope = {};
};

struct LoopbackOptions {
  uint64_t seed = 1;
  // What a pipe holds of messages that nobody has received, headers included; beyond that a send waits.
  size_t buffer_bytes = size_t{256} << 10;
  // The longest piece that moves at once; many are much shorter.
  size_t piece_bytes_max = size_t{64} << 10;
  // For how many attempts to read it a piece is held back at most.
  int delay_max = 3;
  // Called on the sender's thread, outside of any lock of ours. May be empty.
  std::function<void(const LoopbackMessage&)> observer;
};

// Thread-safe. Outlives its transports.
class LoopbackNetwork {
 public:
  explicit LoopbackNetwork(int size, LoopbackOptions options = {});
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  // Once for each rank, in any order and on any thread; what is sent to a rank that has none yet waits.
  std::unique_ptr<Transport> CreateTransport(Rank rank);

  // The rank dies: its connections close, as those of a killed process do. What it sent before can still be received.
  void Disconnect(Rank rank);

 private:
  friend class LoopbackTransport;
  class Pipes;

  const std::unique_ptr<Pipes> pipes_;
};

}  // namespace lockstep

#endif  // TRANSPORT_LOOPBACK_LOOPBACK_H_

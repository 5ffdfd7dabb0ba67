// What is priced, and what its messages cost. Shared by the files of this folder.

#ifndef COMM_PRICES_CALL_H_
#define COMM_PRICES_CALL_H_

#include <algorithm>
#include <cmath>

#include "comm/link_costs.h"
#include "comm/schedule.h"
#include "comm/streams.h"

namespace lockstep {
namespace prices {

enum class Reduces { kNo, kYes };

// One collective of at least two ranks on a network, with rank 0 as root.
struct Call {
  Collective collective;
  int size;
  double bytes;  // as for PriceNs()
  const Network& network;

  bool crosses() const { return size > network.ranks_per_host; }
  // Whether there is one kind of link: one rank on each host is like one host, with the other link.
  bool flat() const { return !crosses() || network.ranks_per_host == 1; }
  int hosts() const { return network.HostOf(size - 1) + 1; }
  // Ranks of every host but the last, and of the last.
  int locals() const { return std::min(size, network.ranks_per_host); }
  int last_locals() const { return size - (hosts() - 1) * network.ranks_per_host; }
  double block_bytes() const { return bytes / size; }

  // `sharers`: how many messages share the sending host's link.
  Message MessageOf(double message_bytes, bool remote, Reduces reduces, double sharers = 1) const {
    const LinkCosts& link = remote ? network.remote : network.local;
    Message message;
    message.chunks = std::max(1.0, std::ceil(message_bytes / static_cast<double>(network.chunk_bytes)));
    const double chunk_bytes = message_bytes / message.chunks;
    message.receiving_ns = link.message_ns + chunk_bytes * link.byte_ns;
    message.sending_ns = link.message_ns + chunk_bytes * link.byte_ns * sharers;
    message.reducing_ns = reduces == Reduces::kYes ? chunk_bytes * network.reduced_byte_ns : 0;
    message.copying_ns = chunk_bytes * network.copied_byte_ns;
    message.latency_ns = link.latency_ns;
    return message;
  }
  Message Between(int source, int target, double message_bytes, Reduces reduces) const {
    return MessageOf(message_bytes, network.HostOf(source) != network.HostOf(target), reduces);
  }
};

}  // namespace prices
}  // namespace lockstep

#endif  // COMM_PRICES_CALL_H_

// What moving and combining bytes costs: the input of the simulator and of the selector. The built-in numbers are
// rounded measurements of one machine. They are constants so that the selector's choice is the same in every run.

#ifndef COMM_TOPOLOGY_LINK_COSTS_H_
#define COMM_TOPOLOGY_LINK_COSTS_H_

#include <cstdint>

namespace lockstep {

struct LinkCosts {
  // From the last byte's departure to its arrival at a receiver that waits: wire, switches, and both ends' software.
  double latency_ns = 0;
  // For each byte of a message that has the link to itself.
  double byte_ns = 0;
  // Of either end, for each message, beside its bytes. The next message waits for it.
  double message_ns = 0;

  friend bool operator==(const LinkCosts& a, const LinkCosts& b) {
    return a.latency_ns == b.latency_ns && a.byte_ns == b.byte_ns && a.message_ns == b.message_ns;
  }
};

// Ranks on hosts, and what is between them. Ranks are numbered host by host. Every host has `ranks_per_host`; the last may
// have fewer.
struct Network {
  LinkCosts local;             // between two ranks of one host
  LinkCosts remote;            // between two hosts: a host's ranks share it, each direction for itself
  double reduced_byte_ns = 0;  // target = left op right, for each byte of the target
  double copied_byte_ns = 0;
  int64_t chunk_bytes = 1;  // how far a step may lag behind the one it passes on: see comm/engine/executor.h
  int ranks_per_host = 1;
  // Consecutive ranks are on different hosts, as when they are dealt out to the hosts in turn. Used by the cost model, ignored
  // by the simulator.
  bool interleaved = false;

  int HostOf(int rank) const { return rank / ranks_per_host; }
  friend bool operator==(const Network& a, const Network& b) {
    return a.local == b.local && a.remote == b.remote && a.reduced_byte_ns == b.reduced_byte_ns &&
           a.copied_byte_ns == b.copied_byte_ns && a.chunk_bytes == b.chunk_bytes &&
           a.ranks_per_host == b.ranks_per_host && a.interleaved == b.interleaved;
  }
  const LinkCosts& Between(int a, int b) const { return HostOf(a) == HostOf(b) ? local : remote; }
};

// Link classes. Latencies are those of ranks that wait busily, as blocking collectives do.
inline constexpr LinkCosts kTcpBetweenHosts = {/*latency_ns=*/20'000, /*byte_ns=*/0.8,
                                               /*message_ns=*/2000};  // 10 Gbit/s Ethernet
inline constexpr LinkCosts kTcpOnOneHost = {/*latency_ns=*/4000, /*byte_ns=*/0.3,
                                            /*message_ns=*/2000};  // both ends' copies
inline constexpr LinkCosts kLibfabricOnOneHost = {/*latency_ns=*/60'000, /*byte_ns=*/0.3,
                                                  /*message_ns=*/3000};  // tcp;ofi_rxm, of long messages
inline constexpr LinkCosts kSharedMemory = {/*latency_ns=*/100, /*byte_ns=*/0.08,
                                            /*message_ns=*/100};  // through a mailbox
inline constexpr LinkCosts kLoopback = {/*latency_ns=*/1000, /*byte_ns=*/0.15,
                                        /*message_ns=*/500};  // threads of one process

// A barrier of ranks that share memory (kBarrier and kShare in comm/schedule/schedule.h).
//
// One rank's slot for one other rank. Rounded from all-reduces of 128 bytes between two ranks on a core each: 0.27 to 0.38 us with
// one barrier, 0.37 to 0.51 us with two and as few bytes to copy.
inline constexpr LinkCosts kLine = {/*latency_ns=*/100, /*byte_ns=*/0, /*message_ns=*/10};

// From the arrival of the last rank until all may go on. Each rank tells all others, one after the other.
constexpr double BarrierNs(int size) { return (size - 1) * kLine.message_ns + kLine.latency_ns; }

// A processor's own part: reductions and copies of what is in its caches or on the way there.
inline constexpr double kReducedByteNs = 0.02;
// What an operand costs beside that if another rank has it, in shared memory: its lines come from that rank's cache.
inline constexpr double kPeerByteNs = 0.04;
inline constexpr double kCopiedByteNs = 0.035;
inline constexpr int64_t kChunkBytes = 128 << 10;

constexpr Network MakeNetwork(const LinkCosts& local, const LinkCosts& remote, int ranks_per_host) {
  return {local, remote, kReducedByteNs, kCopiedByteNs, kChunkBytes, ranks_per_host};
}

// The network with `ranks_per_core` ranks on each core: an end's work for a message waits for that of the others. The costs of bytes
// stay, since all algorithms move about as many.
constexpr Network Crowded(Network network, double ranks_per_core) {
  if (ranks_per_core <= 1) return network;
  network.local.message_ns *= ranks_per_core;
  network.remote.message_ns *= ranks_per_core;
  return network;
}

// One rank on each host, over TCP.
inline constexpr Network kTcpNetwork = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/1);

}  // namespace lockstep

#endif  // COMM_TOPOLOGY_LINK_COSTS_H_

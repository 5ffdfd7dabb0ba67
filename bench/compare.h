// The comparison as a program: Lockstep, the limits and the peers that are there, over one transport after the other.

#ifndef BENCH_COMPARE_H_
#define BENCH_COMPARE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/compare_peers.h"

namespace lockstep {
namespace bench {

struct CompareOptions {
  int ranks = 2;
  bool pin = true;  // each rank to one core, by turns
  std::vector<std::string> transports = {"shm", "tcp"};
  std::vector<PeerKind> peers;
  std::vector<int64_t> sizes;  // bytes
  int rounds = 15;
  std::chrono::milliseconds round_time{20};
  std::chrono::milliseconds patience{30'000};
  bool mpi_malloc = false;
  std::string congestion_control;  // of bare sockets; empty: the system's default
  std::string json;                // a file; empty: none
  std::string plot;                // a file; empty: none
};

// Returns the program's exit status: 0 when Lockstep went through every contest; 1 when it was dropped from one, when
// SIGINT, SIGTERM or SIGHUP ended a contest early, and when a file could not be written; 2 for options that do not go
// together. What happens to limits and peers is told and changes nothing.
int RunCompare(const CompareOptions& options);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_H_

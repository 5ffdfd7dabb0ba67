// FlightRecorder: the last collectives of a communicator. Always on, fixed in size. Every failure writes them to a file
// (failure_report.h).

#ifndef COMM_RECORD_FLIGHT_RECORDER_H_
#define COMM_RECORD_FLIGHT_RECORDER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/record/signature.h"

namespace lockstep {

// One collective. Plain data; the owner of the recorder guards it.
struct FlightRecord {
  enum class State : uint8_t { kEmpty, kQueued, kRunning, kDone, kFailed };
  using Clock = std::chrono::steady_clock;  // of deadlines, so that one reading serves both

  struct Peer {
    Rank rank;
    uint64_t sent_bytes = 0;
    uint64_t received_bytes = 0;
  };
  // Ring needs 2, recursive doubling log2(n) + 1. Further peers are counted in the sum only.
  static constexpr int kPeersMax = 8;

  State state = State::kEmpty;
  Signature signature;
  uint64_t bytes = 0;  // of the vector
  // Not set if the collective was over sooner than it takes to read the clock.
  Clock::time_point queued;
  Clock::time_point started;
  Clock::time_point ended;
  // In messages; in shared memory, what this rank wrote to its peers' memory and read from it.
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  int peer_count = 0;
  std::array<Peer, kPeersMax> peers;  // the first `peer_count`; the others belong to an older collective

  void AddSent(Rank peer, uint64_t bytes);
  void AddReceived(Rank peer, uint64_t bytes);
};

// "all_reduce #17 (6553600 f32 sum, ring) 26214400 B running for 3.2 ms, sent 13107200 B (rank 1: 13107200), received ..."
std::string ToString(const FlightRecord& record, FlightRecord::Clock::time_point now);

// Externally synchronised, like the executor that fills it.
class FlightRecorder {
 public:
  // `capacity` records, at least 1.
  explicit FlightRecorder(size_t capacity);

  // Makes the record of a new collective, queued at `now`, in place of the oldest. The pointer stays valid, but after `capacity` more
  // calls it is another collective's: compare the sequence before a late write.
  FlightRecord* Add(const Signature& signature, uint64_t bytes, FlightRecord::Clock::time_point now);
  FlightRecord* Add(const Signature& signature, uint64_t bytes) {
    return Add(signature, bytes, FlightRecord::Clock::now());
  }

  // The record of the collective with that sequence number; null when it was not added yet or was overwritten.
  // REQUIRES  every collective was added
  const FlightRecord* Find(uint64_t sequence) const;

  // One line each, oldest first, at most `count_max` of the newest.
  std::string ToString(size_t count_max) const;

 private:
  std::vector<FlightRecord> records_;
  size_t next_ = 0;  // where the next one goes
  uint64_t added_ = 0;
};

}  // namespace lockstep

#endif  // COMM_RECORD_FLIGHT_RECORDER_H_

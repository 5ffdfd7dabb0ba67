// BareSocket: two processes that swap bytes over one TCP connection, with nothing in between. Lockstep's transports are measured against
// it. None of their code moves a byte here.
//
// Not thread-safe. A transfer polls and never sleeps, so both processes need a core of their own.
//
// ERRORS  UNAVAILABLE        the peer is gone
//         DEADLINE_EXCEEDED  the peer does not move for half a minute

#ifndef BENCH_LIMITS_LINK_H_
#define BENCH_LIMITS_LINK_H_

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/fork.h"

namespace lockstep::bench {

// Bounds how long a transfer does not move. It reads the clock once in many polls: after every poll that would show in short transfers.
class Patience {
 public:
  static constexpr std::chrono::seconds kLongest{30};

  void Moved() { idle_polls_ = 0; }

  // After a poll that moved nothing.
  absl::Status NothingMoved() {
    if (++idle_polls_ % kPollsPerLook != 0) return absl::OkStatus();
    if (idle_polls_ == kPollsPerLook) deadline_ = Deadline::After(kLongest);
    return deadline_.passed() ? absl::DeadlineExceededError("the peer does not move") : absl::OkStatus();
  }

 private:
  static constexpr int kPollsPerLook = 4096;

  int idle_polls_ = 0;
  Deadline deadline_ = Deadline::Infinite();
};

class BareSocket {
 public:
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  static constexpr size_t kWhole = SIZE_MAX;

  // Connects to a BareListener at an IPv4 address. `congestion_control`: a name that the kernel knows; empty: its default.
  static absl::StatusOr<BareSocket> Connect(uint16_t port, const std::string& congestion_control,
                                            const std::string& host = "127.0.0.1");

  // A system call moves at most so many bytes; kPieceBytes unless it is set. Which size is the best depends on that of the transfer.
  void set_piece_bytes(size_t bytes) { piece_bytes_ = bytes; }

  absl::Status Send(const void* data, size_t bytes) { return Exchange(data, bytes, nullptr, 0); }
  absl::Status Receive(void* data, size_t bytes) { return Exchange(nullptr, 0, data, bytes); }
  // Moves bytes both ways at once. The other side makes the matching call.
  absl::Status Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes);

  // One system call for several pieces, as many bytes as go. -1: would block; 0: there are no pieces.
  absl::StatusOr<ssize_t> SendSome(absl::Span<iovec> pieces);
  absl::StatusOr<ssize_t> ReceiveSome(absl::Span<iovec> pieces);

 private:
  friend class BareListener;

  explicit BareSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  // The same for one piece.
  absl::StatusOr<ssize_t> SendSome(const char* data, size_t bytes);
  absl::StatusOr<ssize_t> ReceiveSome(char* data, size_t bytes);

  UniqueFd socket_;
  size_t piece_bytes_ = kPieceBytes;
};

class BareListener {
 public:
  // Listens at an IPv4 address of this machine, on a port of the kernel's choice.
  static absl::StatusOr<BareListener> Create(const std::string& congestion_control,
                                             const std::string& host = "127.0.0.1");

  uint16_t port() const { return port_; }
  // Waits for a BareSocket, half a minute at most.
  absl::StatusOr<BareSocket> Accept();

 private:
  BareListener(UniqueFd socket, uint16_t port) : socket_(std::move(socket)), port_(port) {}

  UniqueFd socket_;
  uint16_t port_;
};

}  // namespace lockstep::bench

#endif  // BENCH_LIMITS_LINK_H_

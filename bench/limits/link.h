// BareSocket: two processes that swap bytes over one TCP connection, with nothing in between. Lockstep's transports are measured against
// it. None of their code moves a byte here.
//
// Not thread-safe. A transfer polls and never sleeps, so both processes need a core of their own.
//
// ERRORS  UNAVAILABLE        the peer is gone
//         DEADLINE_EXCEEDED  the peer does not move for half a minute

#ifndef BENCH_LIMITS_LINK_H_
#define BENCH_LIMITS_LINK_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fork.h"

namespace lockstep {
namespace bench {

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

 private:
  friend class BareListener;

  explicit BareSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  // -1: would block; 0: nothing left to do.
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

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_LINK_H_

// BareSocket: what two processes get out of one TCP connection with nothing in between. The limit that
// Lockstep's TCP transport is measured against: none of its code moves a byte here.
//
// Non-blocking. A peer that is gone is UNAVAILABLE.

#ifndef BENCH_LIMITS_BARE_SOCKETS_H_
#define BENCH_LIMITS_BARE_SOCKETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fork.h"
#include "bench/limits/bare_link.h"

namespace lockstep {
namespace bench {

class BareSocket : public BareLink {
 public:
  static constexpr size_t kCallBytes = size_t{256} << 10;

  // To a BareListener at an IPv4 address. `congestion_control`: a name that the kernel knows; empty: its default.
  static absl::StatusOr<BareSocket> Connect(uint16_t port, const std::string& congestion_control,
                                            const std::string& host = "127.0.0.1");

  // No system call moves more than this; small and large ones differ by a factor of two.
  void set_call_bytes(size_t bytes) { call_bytes_ = bytes; }

  absl::Status Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) override;

  // What the kernel says that this socket uses.
  std::string CongestionControl() const;

 private:
  friend class BareListener;

  explicit BareSocket(UniqueFd socket) : socket_(std::move(socket)) {}
  // -1: would block; 0: nothing left to do.
  absl::StatusOr<ssize_t> SendSome(const char* data, size_t bytes);
  absl::StatusOr<ssize_t> ReceiveSome(char* data, size_t bytes);

  UniqueFd socket_;
  size_t call_bytes_ = kCallBytes;
};

class BareListener {
 public:
  // At an IPv4 address of this machine, on a port of the kernel's choice.
  static absl::StatusOr<BareListener> Create(const std::string& congestion_control,
                                             const std::string& host = "127.0.0.1");

  uint16_t port() const { return port_; }
  // Waits half a minute at most.
  absl::StatusOr<BareSocket> Accept();

 private:
  BareListener(UniqueFd socket, uint16_t port) : socket_(std::move(socket)), port_(port) {}

  UniqueFd socket_;
  uint16_t port_;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_LIMITS_BARE_SOCKETS_H_

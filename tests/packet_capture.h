// Records what processes send over the loopback interface, as an attacker on the same network can.

#ifndef TESTS_PACKET_CAPTURE_H_
#define TESTS_PACKET_CAPTURE_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fork.h"

namespace lockstep {

// Records what connecting sides send over IPv4's loopback, by a packet socket.
class PacketCapture {
 public:
  // From now on.
  // ERRORS  UNAVAILABLE  this process may not (CAP_NET_RAW)
  static absl::StatusOr<PacketCapture> Start();

  // What was sent to listeners at these ports: for each connection that began since then, its first bytes, up to `bytes_max`.
  // Connections whose beginning was lost are left out. To be called once.
  std::vector<std::string> Take(const std::set<uint16_t>& ports, size_t bytes_max = 16'384);

 private:
  explicit PacketCapture(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
};

}  // namespace lockstep

#endif  // TESTS_PACKET_CAPTURE_H_

// What a stranger on the same network hears.

#ifndef TESTS_STRANGER_CAPTURES_H_
#define TESTS_STRANGER_CAPTURES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fork.h"

namespace lockstep {

// Records what connecting sides send over IPv4's loopback, by a packet socket.
class Wiretap {
 public:
  // From now on.
  // ERRORS  UNAVAILABLE  this process may not (CAP_NET_RAW)
  static absl::StatusOr<Wiretap> Start();

  // What was sent to listeners at these ports: for each connection that began since then, its first bytes, up to `bytes_max`.
  // Connections whose beginning was lost are left out. To be called once.
  std::vector<std::string> Take(const std::set<uint16_t>& ports, size_t bytes_max = 16'384);

 private:
  explicit Wiretap(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
};

}  // namespace lockstep

#endif  // TESTS_STRANGER_CAPTURES_H_

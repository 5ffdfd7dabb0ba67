// HeldPort: keeps a TCP port for another process until that process listens on it.
//
// The port is one of LOCKSTEP_PORTS if that is set, and free on every address of this host. It is held by a socket with SO_REUSEADDR that
// is bound and never listens: the kernel gives the port to no one that asks for any port, and connections to it are refused. A server
// that sets SO_REUSEADDR, as PyTorch's TCPStore and Lockstep's stores do, may bind it and listen. A server that does not gets EADDRINUSE.

#ifndef LAUNCH_HELD_PORT_H_
#define LAUNCH_HELD_PORT_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "transport/net/socket.h"

namespace lockstep {

class HeldPort {
 public:
  static absl::StatusOr<std::unique_ptr<HeldPort>> Hold();

  uint16_t port() const { return port_; }

 private:
  HeldPort(UniqueFd socket, uint16_t port) : socket_(std::move(socket)), port_(port) {}

  const UniqueFd socket_;  // closed by exec
  const uint16_t port_;
};

}  // namespace lockstep

#endif  // LAUNCH_HELD_PORT_H_

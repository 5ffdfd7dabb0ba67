// Keeps a TCP port for another process until that process listens on it.
//
// The port is one of LOCKSTEP_PORTS if that is set, and free on every address of this host. It is held by a socket with SO_REUSEADDR that
// is bound and never listens: the kernel gives the port to no one that asks for any port, and connections to it are refused. A server
// that sets SO_REUSEADDR, as PyTorch's TCPStore and Lockstep's stores do, may bind it and listen. A server that does not gets EADDRINUSE.

#ifndef LAUNCH_HELD_PORT_H_
#define LAUNCH_HELD_PORT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "transport/net/socket.h"

namespace lockstep {

struct HeldPort {
  UniqueFd socket;  // closed by exec
  uint16_t port = 0;
};

absl::StatusOr<HeldPort> HoldPort();

}  // namespace lockstep

#endif  // LAUNCH_HELD_PORT_H_

// What is set on a connection's sockets beyond what every socket of ours has.
//
// Congestion control: between ranks of one host nothing is ever congested, but the system's default may pace: bbr moves a
// third of what reno does when both ends send at once. So a connection that stays on the host gets reno, which any user may
// choose on any Linux, unless the option names something else.

#ifndef TRANSPORT_TCP_SOCKET_TUNING_H_
#define TRANSPORT_TCP_SOCKET_TUNING_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {

struct SocketTuning {
  std::string congestion_control;  // empty: reno if the connection stays on the host, else the system's default
  // Of the kernel's buffers. 0 leaves them to the kernel, which lets them grow as the connection needs; any other
  // number ends that. The kernel doubles it for its own needs, and caps it (net.core.wmem_max and rmem_max).
  int send_buffer_bytes = 0;
  int receive_buffer_bytes = 0;
  // SO_ZEROCOPY; see ZeroCopyStream. Connections of several sockets make no use of it.
  bool zero_copy = false;
};

// Sets this on a connected socket. Logs at debug level what it cannot have: the connection works without.
void Tune(int socket, const SocketTuning& tuning);

// Whether sockets of this system take a congestion control of this name; OK for an empty name, and where that cannot be
// tried.
// ERRORS  NOT_FOUND          the kernel has none of that name
//         PERMISSION_DENIED  its administrator does not let everyone use it
//         Both name what is allowed
absl::Status CheckCongestionControl(const std::string& name);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_SOCKET_TUNING_H_

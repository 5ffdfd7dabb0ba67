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
  std::string congestion_control;  // see ChooseCongestionControl
  // Of the kernel's buffers. 0 leaves them to the kernel, which lets them grow as the connection needs; any other
  // number ends that. The kernel doubles it for its own needs, and caps it (net.core.wmem_max and rmem_max).
  int send_buffer_bytes = 0;
  int receive_buffer_bytes = 0;
  // SO_ZEROCOPY; see ZeroCopyStream. Connections of several sockets make no use of it.
  bool zero_copy = false;
};

// For a connected socket. What cannot be had is logged at debug level: the connection works without.
void Tune(int socket, const SocketTuning& tuning);

// Does nothing for an empty name. NOT_FOUND when the kernel has none of that name, PERMISSION_DENIED when its
// administrator does not let everyone use it; both name what is allowed.
absl::Status SetCongestionControl(int socket, const std::string& name);

// Whether SetCongestionControl would take it on a socket of this system; OK where that cannot be tried.
absl::Status CheckCongestionControl(const std::string& name);

// What a connected socket uses: "reno".
std::string CongestionControlOf(int socket);

// Whether a connected socket's other end is on this host, in the same network namespace.
bool StaysOnHost(int socket);

// For a connected socket. Names one by the option; empty: reno if the connection stays on the host, else the system's
// default. Failures are logged at debug level: the connection works with any.
void ChooseCongestionControl(int socket, const std::string& option);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_SOCKET_TUNING_H_

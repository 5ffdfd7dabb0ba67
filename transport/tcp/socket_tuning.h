// What is set on a connection's sockets beyond what every socket of ours has.

#ifndef TRANSPORT_TCP_SOCKET_TUNING_H_
#define TRANSPORT_TCP_SOCKET_TUNING_H_

#include <string>

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

}  // namespace lockstep

#endif  // TRANSPORT_TCP_SOCKET_TUNING_H_

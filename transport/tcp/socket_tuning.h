// The options of a TCP transport, and what they set on a connection's sockets beyond what every socket of ours has.
//
// Congestion control: between ranks of one host nothing is ever congested, but the system's default may pace: bbr moves a
// third of what reno does when both ends send at once. So a connection that stays on the host gets reno, which any user may
// choose on any Linux, unless the option names something else.

#ifndef TRANSPORT_TCP_SOCKET_TUNING_H_
#define TRANSPORT_TCP_SOCKET_TUNING_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "transport/net/socket.h"
#include "transport/posting.h"
#include "transport/secure/credentials.h"
#include "transport/secure/half_open.h"

namespace lockstep {

class KernelTls;

struct SocketTuning {
  std::string congestion_control;  // empty: reno if the connection stays on the host, else the system's default
  // Of the kernel's buffers. 0 leaves them to the kernel, which lets them grow as the connection needs; any other
  // number ends that. The kernel doubles it for its own needs, and caps it (net.core.wmem_max and rmem_max).
  int send_buffer_bytes = 0;
  int receive_buffer_bytes = 0;
  // SO_ZEROCOPY; see ZeroCopyStream. Connections of several sockets make no use of it.
  bool zero_copy = false;
};

inline constexpr int kTcpSocketsMax = 64;

struct TcpTransportOptions : WorldIdentity {
  // Port 0 lets the system choose; address() tells.
  SocketAddress bind_address;
  // How long an accepted connection may take to say who it is.
  std::chrono::milliseconds handshake_timeout{5000};
  // How long to try a peer's listener that cannot be reached. A refusal is final.
  std::chrono::milliseconds connect_timeout{10000};
  // How long a receive waits for the peer to connect before this rank connects.
  std::chrono::milliseconds receive_patience{1000};
  // Connections that have not shaken hands. Beyond that one is dropped: the oldest of the address that has the most.
  int pending_connections_max = static_cast<int>(HalfOpen::MostForThisProcess());
  // Through which reductions read: about a quarter of a core's private cache.
  size_t staging_bytes = size_t{256} << 10;
  SocketTuning tuning;  // of every connection
  // Over which each connection's bytes are spread, 64 KiB to each in turn; compared between ranks. More than one where
  // a network limits a single flow; over loopback one is fastest.
  int sockets = 1;
  // What peers have to prove to each other: the world's secret.
  Credentials credentials;
  // Whether kAuthenticate has records between ranks of one host, too. The same for all ranks.
  bool records_on_one_host = false;
  // Asked for TLS at kEncrypt, and borrowed. Null: the system's, unless ipsec-mb is there, which is faster than OpenSSL.
  KernelTls* kernel_tls = nullptr;
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

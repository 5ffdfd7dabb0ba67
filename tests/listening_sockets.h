// The sockets at which processes listen, found from outside by what /proc tells.

#ifndef TESTS_LISTENING_SOCKETS_H_
#define TESTS_LISTENING_SOCKETS_H_

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/fork.h"
#include "transport/net/socket.h"

namespace lockstep {

// Regular value type.
struct ListeningSocket {
  int family = 0;    // AF_INET, AF_INET6 or AF_UNIX
  int type = 0;      // SOCK_STREAM or SOCK_SEQPACKET
  std::string name;  // "127.0.0.1:4000"; of the abstract namespace "@lockstep-0123456789abcdef"

  friend bool operator<(const ListeningSocket& a, const ListeningSocket& b) { return a.name < b.name; }
  friend bool operator==(const ListeningSocket& a, const ListeningSocket& b) { return a.name == b.name; }
};

// Those of these processes, each once, ordered by name. A socket on all addresses is named by the loopback address. Sockets of processes
// that have ended, or whose descriptors this user may not see, are left out.
std::vector<ListeningSocket> ListeningSocketsOf(const std::vector<pid_t>& processes);

// The ports of those that have one.
std::set<uint16_t> PortsOf(const std::vector<ListeningSocket>& sockets);

// Begins to connect. The socket is non-blocking. `source` chooses the address to come from where the listener is on IPv4's loopback:
// 127.0.0.1 and three others, modulo 4. Closing the socket resets the connection.
absl::StatusOr<UniqueFd> BeginConnect(const ListeningSocket& listener, size_t source);

// An address of the loopback interface at which no process listened a moment ago. By default, the kernel gives its port to no connection.
absl::StatusOr<SocketAddress> FreeAddress();

}  // namespace lockstep

#endif  // TESTS_LISTENING_SOCKETS_H_

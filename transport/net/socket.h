// Addresses and sockets, for stores, the control channel and the TCP transport alike.
//
// IPv4 and IPv6 (with %scope for link-local addresses). Every socket is non-blocking and close-on-exec, belongs to a
// UniqueFd (so a forked child closes it) and never raises SIGPIPE. Every wait takes a Deadline.

#ifndef TRANSPORT_NET_SOCKET_H_
#define TRANSPORT_NET_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork.h"

namespace lockstep {

// An IPv4 or IPv6 address with a port. Regular value type.
class SocketAddress {
 public:
  SocketAddress() = default;

  // "10.0.0.7:4411", "[fe80::1%eth0]:4411". Numbers only: names are for Resolve.
  static absl::StatusOr<SocketAddress> Parse(absl::string_view text);
  static SocketAddress From(const sockaddr* address, socklen_t length);

  std::string ToString() const;    // what Parse takes
  std::string HostString() const;  // without the port and brackets
  uint16_t port() const;
  SocketAddress WithPort(uint16_t port) const;
  int family() const { return storage_.ss_family; }
  bool loopback() const;
  bool wildcard() const;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const;

  friend bool operator==(const SocketAddress& a, const SocketAddress& b);
  friend bool operator!=(const SocketAddress& a, const SocketAddress& b) { return !(a == b); }

 private:
  sockaddr_storage storage_ = {};
};

// Splits "host:port" or "[v6]:port"; INVALID_ARGUMENT says what is wrong.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);
// The inverse: with the brackets that an IPv6 address needs.
std::string HostPortText(const HostPort& server);

// A listening socket. Port 0: the first free port of LOCKSTEP_PORTS (transport/net/port_range.h), or without it one that the system
// chooses. ALREADY_EXISTS when the port is taken; RESOURCE_EXHAUSTED when all of the range are.
absl::StatusOr<UniqueFd> Listen(const SocketAddress& address);
// The same without the range, for what no other host connects to.
absl::StatusOr<UniqueFd> ListenAnywhere(const SocketAddress& address);
absl::StatusOr<SocketAddress> LocalAddress(int socket);
absl::StatusOr<SocketAddress> PeerAddress(int socket);

// Whether a connected socket's other end is on this host, in the same network namespace. False where that cannot be told.
bool StaysOnHost(int socket);

// One accepted connection; an invalid descriptor when none is waiting.
absl::StatusOr<UniqueFd> Accept(int listener, SocketAddress* peer);

// Connects. Messages name the address, the local address if known, and the errno text.
absl::StatusOr<UniqueFd> Connect(const SocketAddress& address, Deadline deadline);

// Starts a connection and returns at once, for use with poll or epoll; FinishConnect tells how it ended. On an error
// `refused`, unless null, says whether it is because nobody listens there.
absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address, bool* refused = nullptr);
absl::Status FinishConnect(int socket, const SocketAddress& address, bool* refused = nullptr);

// Exactly `bytes`, or an error: UNAVAILABLE on end of file or reset, DEADLINE_EXCEEDED. For set-up traffic only.
absl::Status SendAll(int socket, const void* data, size_t bytes, Deadline deadline);
absl::Status ReceiveAll(int socket, void* data, size_t bytes, Deadline deadline);

// Throws away what has arrived, 4096 bytes at most: a socket that is closed with unread bytes resets its connection, and what it sent last
// may be lost.
void DiscardUnread(int socket);

// A copy of a descriptor of any kind, close-on-exec. Invalid, with errno, if the process may have no more.
UniqueFd Duplicate(int descriptor);

// All addresses of a host name or numeric address, each once. NOT_FOUND, with getaddrinfo's words, for an unknown host;
// UNAVAILABLE when the resolver says to try again; DEADLINE_EXCEEDED when it has not answered.
//
// A name is looked up on a thread of its own ("lockstep-dns"), since getaddrinfo cannot be interrupted: past the deadline the
// thread is left to itself and ends when the resolver gives up. A numeric address starts none.
absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, uint16_t port, Deadline deadline);

}  // namespace lockstep

#endif  // TRANSPORT_NET_SOCKET_H_

#include "transport/net/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/call_within.h"
#include "base/clipped.h"
#include "base/env.h"
#include "base/status.h"
#include "transport/net/port_range.h"

namespace lockstep {
namespace {

const sockaddr_in& V4(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in&>(storage); }
const sockaddr_in6& V6(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in6&>(storage); }

// True once one of `events` (or an error, which the next call on the socket tells) is there; false when the deadline
// passed.
absl::StatusOr<bool> PollUntil(int socket, short events, Deadline deadline) {
  for (;;) {
    pollfd entry = {socket, events, 0};
    const int timeout_ms = deadline.remaining_ms();
    const int ready = poll(&entry, 1, timeout_ms);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (ready == 0 && timeout_ms >= 0 && deadline.passed()) return false;
  }
}

std::string DescribePeer(int socket) {
  const absl::StatusOr<SocketAddress> peer = PeerAddress(socket);
  return peer.ok() ? peer->ToString() : "the peer";
}

absl::StatusOr<SocketAddress> AddressFrom(int (*get)(int, sockaddr*, socklen_t*), const char* what, int socket) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(storage);
  if (get(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return ErrnoStatus(errno, what);
  if (storage.ss_family != AF_INET && storage.ss_family != AF_INET6) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": neither IPv4 nor IPv6, but family ", storage.ss_family));
  }
  return SocketAddress::From(reinterpret_cast<const sockaddr*>(&storage), length);
}

absl::StatusOr<UniqueFd> NewSocket(const SocketAddress& address) {
  const int descriptor = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    const int error = errno;
    return ErrnoStatus(error, absl::StrCat("socket for ", address.ToString()));
  }
  return UniqueFd(descriptor);
}

absl::Status SetOption(int socket, int level, int option, int value, const char* name) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("setsockopt ", name));
}

// Starts connecting; 0 also when the connection is still being made, else the errno.
int Begin(int socket, const SocketAddress& address) {
  if (connect(socket, address.get(), address.length()) == 0) return 0;
  // An interrupted connect goes on in the background, just as one that would block.
  return errno == EINPROGRESS || errno == EINTR ? 0 : errno;
}

// How a connection that was begun ended, once the socket is writable; EINPROGRESS when it has not.
int Outcome(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  if (error != 0) return error;
  const absl::StatusOr<SocketAddress> peer = PeerAddress(socket);
  if (!peer.ok()) return EINPROGRESS;
  // Connecting to a port of this host that nobody listens on may pick that same port as its own, and TCP then connects
  // the socket to itself ("simultaneous open"). Nobody is there: it counts as refused.
  const absl::StatusOr<SocketAddress> local = LocalAddress(socket);
  return local.ok() && *local == *peer ? ECONNREFUSED : 0;
}

// "connect to 10.0.0.7:4411 from 10.0.0.3:51230", or without the local address if the system has not chosen one yet.
std::string ConnectText(int socket, const SocketAddress& address) {
  const absl::StatusOr<SocketAddress> local = LocalAddress(socket);
  return absl::StrCat("connect to ", address.ToString(),
                      local.ok() && !local->wildcard() ? absl::StrCat(" from ", local->ToString()) : "");
}

// Calls move(done), which returns as send() and recv() do, until all bytes have moved.
template <typename Move>
absl::Status MoveAll(int socket, const char* verb, const char* way, short events, size_t bytes, Deadline deadline,
                     Move move) {
  const auto attempt = [&] { return absl::StrCat(verb, bytes, way, DescribePeer(socket)); };
  for (size_t done = 0; done < bytes;) {
    const ssize_t moved = move(done);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
    } else if (moved == 0) {
      return absl::UnavailableError(absl::StrCat(attempt(), ": connection closed after ", done));
    } else if (errno == EAGAIN) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool ready, PollUntil(socket, events, deadline));
      if (!ready) return absl::DeadlineExceededError(absl::StrCat(attempt(), ": only ", done, " by the deadline"));
    } else if (errno != EINTR) {
      const int error = errno;  // before describing the peer overwrites it
      return ErrnoStatus(error, absl::StrCat(attempt(), ", after ", done));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  LOCKSTEP_ASSIGN_OR_RETURN(const HostPort parts, ParseHostPort(text));
  SocketAddress result;
  auto& v4 = reinterpret_cast<sockaddr_in&>(result.storage_);
  if (inet_pton(AF_INET, parts.host.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(parts.port);
    return result;
  }
  const size_t percent = parts.host.find('%');
  auto& v6 = reinterpret_cast<sockaddr_in6&>(result.storage_);
  if (inet_pton(AF_INET6, parts.host.substr(0, percent).c_str(), &v6.sin6_addr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Clipped(text), "': '", Clipped(parts.host), "' is no numeric IPv4 or IPv6 address"));
  }
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(parts.port);
  if (percent != std::string::npos) {
    const std::string scope = parts.host.substr(percent + 1);
    v6.sin6_scope_id = if_nametoindex(scope.c_str());
    uint32_t index = 0;
    if (v6.sin6_scope_id == 0 && absl::SimpleAtoi(scope, &index)) v6.sin6_scope_id = index;
    if (v6.sin6_scope_id == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", Clipped(text), "': there is no interface '", Clipped(scope), "'"));
    }
  }
  return result;
}

SocketAddress SocketAddress::From(const sockaddr* address, socklen_t length) {
  SocketAddress result;
  std::memcpy(&result.storage_, address, std::min<size_t>(length, sizeof(result.storage_)));
  return result;
}

std::string SocketAddress::HostString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &V4(storage_).sin_addr, text, sizeof(text));
    return text;
  }
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &V6(storage_).sin6_addr, text, sizeof(text));
    const uint32_t scope = V6(storage_).sin6_scope_id;
    if (scope == 0) return text;
    char name[IF_NAMESIZE] = "";
    if (if_indextoname(scope, name) != nullptr) return absl::StrCat(text, "%", name);
    return absl::StrCat(text, "%", scope);
  }
  return "(no address)";
}

std::string SocketAddress::ToString() const {
  if (family() == AF_INET6) return absl::StrCat("[", HostString(), "]:", port());
  return absl::StrCat(HostString(), ":", port());
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(V4(storage_).sin_port);
  if (family() == AF_INET6) return ntohs(V6(storage_).sin6_port);
  return 0;
}

SocketAddress SocketAddress::WithPort(uint16_t port) const {
  SocketAddress result = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(result.storage_).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(result.storage_).sin6_port = htons(port);
  return result;
}

bool SocketAddress::loopback() const {
  if (family() == AF_INET) return ntohl(V4(storage_).sin_addr.s_addr) >> 24 == 127;
  if (family() != AF_INET6) return false;
  const in6_addr& v6 = V6(storage_).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool SocketAddress::wildcard() const {
  if (family() == AF_INET) return V4(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&V6(storage_).sin6_addr);
}

socklen_t SocketAddress::length() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : family() == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  if (a.family() != b.family() || a.port() != b.port()) return false;
  if (a.family() == AF_INET) return V4(a.storage_).sin_addr.s_addr == V4(b.storage_).sin_addr.s_addr;
  if (a.family() != AF_INET6) return true;
  return V6(a.storage_).sin6_scope_id == V6(b.storage_).sin6_scope_id &&
         std::memcmp(&V6(a.storage_).sin6_addr, &V6(b.storage_).sin6_addr, sizeof(in6_addr)) == 0;
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const auto wrong = [text](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Clipped(text), "': ", what, "; expected host:port or [v6]:port"));
  };
  absl::string_view host;
  absl::string_view port_text;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == absl::string_view::npos) return wrong("no closing ']'");
    host = text.substr(1, close - 1);
    if (text.substr(close + 1, 1) != ":") return wrong("no port");
    port_text = text.substr(close + 2);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == absl::string_view::npos) return wrong("no port");
    host = text.substr(0, colon);
    if (host.find(':') != absl::string_view::npos) return wrong("an IPv6 address stands in brackets");
    port_text = text.substr(colon + 1);
  }
  if (host.empty()) return wrong("no host");
  // A NUL would end the name early where the C library reads it.
  if (host.find('\0') != absl::string_view::npos) return wrong("the host contains a NUL byte");
  int port = 0;
  const bool digits = !port_text.empty() && port_text.find_first_not_of("0123456789") == absl::string_view::npos;
  if (!digits || !absl::SimpleAtoi(port_text, &port) || port > 65535) {
    return wrong(absl::StrCat("'", Clipped(port_text), "' is no port (0 to 65535)"));
  }
  HostPort result;
  result.host = std::string(host);
  result.port = static_cast<uint16_t>(port);
  return result;
}

std::string HostPortText(const HostPort& server) {
  const bool v6 = server.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", server.host, v6 ? "]:" : ":", server.port);
}

namespace {

// `reuse` takes a port that has connections of an earlier run in TIME_WAIT, and one that another process has bound in the same way
// without listening.
absl::StatusOr<UniqueFd> ListenAt(const SocketAddress& address, bool reuse) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(address));
  if (reuse) {
    LOCKSTEP_RETURN_IF_ERROR(SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  }
  if (address.family() == AF_INET6 && address.wildcard()) {
    LOCKSTEP_RETURN_IF_ERROR(SetOption(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY"));
  }
  const std::string attempt = absl::StrCat("listen on ", address.ToString());
  if (bind(socket.get(), address.get(), address.length()) != 0) {
    if (errno == EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(absl::StrCat(attempt, ": this machine does not have that address"));
    }
    return ErrnoStatus(errno, attempt);
  }
  if (listen(socket.get(), SOMAXCONN) != 0) return ErrnoStatus(errno, attempt);
  return socket;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenAnywhere(const SocketAddress& address) {
  // With a port that the system chooses, the option would only let two listeners be given the same one.
  return ListenAt(address, /*reuse=*/address.port() != 0);
}

absl::StatusOr<UniqueFd> Listen(const SocketAddress& address) {
  LOCKSTEP_ASSIGN_OR_RETURN(const absl::optional<PortRange> range, PortRangeOfEnvironment());
  if (!range.has_value() || address.port() != 0) return ListenAnywhere(address);
  absl::StatusOr<UniqueFd> listener;
  absl::Status status;
  for (const bool reuse : {false, true}) {
    status = ListenInRange(*range, address, [&](const SocketAddress& at) {
      // lockstep-run holds that port in such a way.
      if (reuse && GetEnv("MASTER_PORT") == absl::StrCat(at.port())) {
        return absl::AlreadyExistsError("it is MASTER_PORT");
      }
      listener = ListenAt(at, reuse);
      return listener.status();
    });
    if (!absl::IsResourceExhausted(status)) break;
  }
  if (!status.ok()) return status;
  return listener;
}

absl::StatusOr<SocketAddress> LocalAddress(int socket) { return AddressFrom(getsockname, "getsockname", socket); }
absl::StatusOr<SocketAddress> PeerAddress(int socket) { return AddressFrom(getpeername, "getpeername", socket); }

bool StaysOnHost(int socket) {
  const absl::StatusOr<SocketAddress> local = LocalAddress(socket);
  const absl::StatusOr<SocketAddress> peer = PeerAddress(socket);
  if (!local.ok() || !peer.ok()) return false;
  return peer->loopback() || local->WithPort(0) == peer->WithPort(0);
}

absl::StatusOr<UniqueFd> Accept(int listener, SocketAddress* peer) {
  for (;;) {
    sockaddr_storage storage = {};
    socklen_t length = sizeof(storage);
    const int accepted =
        accept4(listener, reinterpret_cast<sockaddr*>(&storage), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
      UniqueFd socket(accepted);
      // Fails only when the peer has gone again, which the first read will tell.
      (void)SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
      if (peer != nullptr) *peer = SocketAddress::From(reinterpret_cast<const sockaddr*>(&storage), length);
      return socket;
    }
    switch (errno) {
      case EAGAIN:
        return UniqueFd();
      // Linux hands an error of the new connection to accept: that one is gone, the next may be fine.
      case EINTR:
      case ECONNABORTED:
      case EPROTO:
      case ENOPROTOOPT:
      case ENETDOWN:
      case ENETUNREACH:
      case EHOSTDOWN:
      case EHOSTUNREACH:
      case ENONET:
        continue;
      default:
        const int error = errno;
        // Without a free descriptor it fails whether a connection waits or not.
        pollfd waiting = {listener, POLLIN, 0};
        if (poll(&waiting, 1, 0) == 0) return UniqueFd();
        return ErrnoStatus(error, "accept");
    }
  }
}

absl::StatusOr<UniqueFd> Connect(const SocketAddress& address, Deadline deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, StartConnect(address));
  LOCKSTEP_ASSIGN_OR_RETURN(const bool in_time, PollUntil(socket.get(), POLLOUT, deadline));
  if (!in_time) {
    return absl::DeadlineExceededError(absl::StrCat(ConnectText(socket.get(), address), ": no answer by the deadline"));
  }
  LOCKSTEP_RETURN_IF_ERROR(FinishConnect(socket.get(), address));
  return socket;
}

absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& address, bool* refused) {
  if (refused != nullptr) *refused = false;
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(address));
  LOCKSTEP_RETURN_IF_ERROR(SetOption(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  if (const int error = Begin(socket.get(), address); error != 0) {
    if (refused != nullptr) *refused = error == ECONNREFUSED;
    // Nobody can be reached there, however long one waits.
    if (error == ENETUNREACH && address.loopback()) {
      return absl::InternalError(absl::StrCat("connect to ", address.ToString(), ": the loopback interface is down"));
    }
    return ErrnoStatus(error, ConnectText(socket.get(), address));
  }
  return socket;
}

absl::Status FinishConnect(int socket, const SocketAddress& address, bool* refused) {
  const int error = Outcome(socket);
  if (refused != nullptr) *refused = error == ECONNREFUSED;
  if (error == 0) return absl::OkStatus();
  const std::string attempt = ConnectText(socket, address);
  if (error == EINPROGRESS) {
    return absl::FailedPreconditionError(absl::StrCat(attempt, ": the connection is still being made"));
  }
  return ErrnoStatus(error, attempt);
}

absl::Status SendAll(int socket, const void* data, size_t bytes, Deadline deadline) {
  return MoveAll(socket, "send ", " bytes to ", POLLOUT, bytes, deadline, [&](size_t done) {
    return send(socket, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

absl::Status ReceiveAll(int socket, void* data, size_t bytes, Deadline deadline) {
  return MoveAll(socket, "receive ", " bytes from ", POLLIN, bytes, deadline, [&](size_t done) {
    return recv(socket, static_cast<char*>(data) + done, bytes - done, MSG_DONTWAIT);
  });
}

namespace {

using Addresses = std::vector<SocketAddress>;

absl::Status ResolverError(absl::string_view host, int error, int system_error) {
  const std::string attempt = absl::StrCat("resolve host '", Clipped(host), "'");
  const std::string message = absl::StrCat(attempt, ": ", gai_strerror(error));
  switch (error) {
    case EAI_NONAME:
#ifdef EAI_NODATA
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
#endif
      return absl::NotFoundError(message);
    case EAI_AGAIN:
      return absl::UnavailableError(message);
    case EAI_MEMORY:
      return absl::ResourceExhaustedError(message);
    case EAI_SYSTEM:
      return ErrnoStatus(system_error, attempt);
    default:
      return absl::InternalError(message);
  }
}

// Empty when the host is a name and only numbers were asked for.
absl::StatusOr<absl::optional<Addresses>> LookUp(const std::string& host, uint16_t port, bool numeric_only) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (numeric_only ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == EAI_NONAME && numeric_only) return absl::optional<Addresses>();
  if (error != 0) return ResolverError(host, error, errno);
  Addresses addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    const SocketAddress address = SocketAddress::From(entry->ai_addr, entry->ai_addrlen);
    // /etc/hosts may name the same address twice ("localhost" in both its lines).
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) addresses.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return absl::NotFoundError(
        absl::StrCat("resolve host '", Clipped(host), "': it has neither an IPv4 nor an IPv6 address"));
  }
  return absl::make_optional(std::move(addresses));
}

}  // namespace

void DiscardUnread(int socket) {
  char unread[4096];
  (void)recv(socket, unread, sizeof(unread), MSG_DONTWAIT);
}

UniqueFd Duplicate(int descriptor) { return UniqueFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host, uint16_t port, Deadline deadline) {
  const std::string name(host);
  LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<Addresses> numeric, LookUp(name, port, /*numeric_only=*/true));
  if (numeric.has_value()) return *std::move(numeric);

  absl::optional<absl::StatusOr<absl::optional<Addresses>>> answer;
  if (!deadline.passed()) {
    LOCKSTEP_ASSIGN_OR_RETURN(answer, CallWithin(deadline, "lockstep-dns",
                                                 [name, port] { return LookUp(name, port, /*numeric_only=*/false); }));
  }
  if (!answer.has_value()) {
    return absl::DeadlineExceededError(
        absl::StrCat("resolve host '", Clipped(host), "': the resolver has not answered"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(absl::optional<Addresses> found, *std::move(answer));
  return *std::move(found);
}

}  // namespace lockstep

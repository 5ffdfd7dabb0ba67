#include "bench/limits/link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/status.h"

namespace lockstep {
namespace bench {
namespace {

absl::StatusOr<sockaddr_in> AddressOf(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1) return address;
  return absl::InvalidArgumentError("'" + host + "' is no IPv4 address");
}

absl::StatusOr<UniqueFd> NewSocket(const std::string& congestion_control) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return ErrnoStatus(errno, "socket");
  UniqueFd owned(descriptor);
  if (congestion_control.empty()) return owned;
  if (setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(), congestion_control.size()) != 0) {
    return ErrnoStatus(errno, "congestion control " + congestion_control);
  }
  return owned;
}

absl::Status PrepareForPolling(int descriptor) {
  const int on = 1;
  if (setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) return ErrnoStatus(errno, "TCP_NODELAY");
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags < 0 || fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) != 0) return ErrnoStatus(errno, "O_NONBLOCK");
  return absl::OkStatus();
}

bool NothingNow(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

absl::StatusOr<BareSocket> BareSocket::Connect(uint16_t port, const std::string& congestion_control,
                                               const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(const sockaddr_in address, AddressOf(host, port));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(congestion_control));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, "connect to " + host + ":" + std::to_string(port));
  }
  LOCKSTEP_RETURN_IF_ERROR(PrepareForPolling(socket.get()));
  return BareSocket(std::move(socket));
}

absl::StatusOr<ssize_t> BareSocket::SendSome(const char* data, size_t bytes) {
  if (bytes == 0) return 0;
  const ssize_t sent = send(socket_.get(), data, std::min(bytes, piece_bytes_), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  if (NothingNow(errno)) return -1;
  return ErrnoStatus(errno, "send");
}

absl::StatusOr<ssize_t> BareSocket::ReceiveSome(char* data, size_t bytes) {
  if (bytes == 0) return 0;
  const ssize_t received = recv(socket_.get(), data, std::min(bytes, piece_bytes_), 0);
  if (received > 0) return received;
  if (received == 0) return absl::UnavailableError("the peer closed its socket");
  if (NothingNow(errno)) return -1;
  return ErrnoStatus(errno, "recv");
}

absl::Status BareSocket::Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) {
  const char* source = static_cast<const char*>(out);
  char* target = static_cast<char*>(in);
  BarePatience patience;
  while (out_bytes > 0 || in_bytes > 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(const ssize_t sent, SendSome(source, out_bytes));
    LOCKSTEP_ASSIGN_OR_RETURN(const ssize_t received, ReceiveSome(target, in_bytes));
    if (sent > 0) {
      source += sent;
      out_bytes -= sent;
    }
    if (received > 0) {
      target += received;
      in_bytes -= received;
    }
    if (sent > 0 || received > 0) {
      patience.Moved();
    } else {
      LOCKSTEP_RETURN_IF_ERROR(patience.NothingMoved());
    }
  }
  return absl::OkStatus();
}

std::string BareSocket::CongestionControl() const {
  char name[16] = "";  // TCP_CA_NAME_MAX
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return "unknown";
  return name;
}

absl::StatusOr<BareListener> BareListener::Create(const std::string& congestion_control, const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(sockaddr_in address, AddressOf(host, 0));
  // Accepted sockets inherit the congestion control.
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, NewSocket(congestion_control));
  socklen_t length = sizeof(address);
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return ErrnoStatus(errno, "bind");
  if (listen(socket.get(), 1) != 0) return ErrnoStatus(errno, "listen");
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  return BareListener(std::move(socket), ntohs(address.sin_port));
}

absl::StatusOr<BareSocket> BareListener::Accept() {
  pollfd waiting = {socket_.get(), POLLIN, 0};
  const int patience_ms = static_cast<int>(std::chrono::milliseconds(BarePatience::kPatience).count());
  const int ready = poll(&waiting, 1, patience_ms);
  if (ready < 0) return ErrnoStatus(errno, "poll");
  if (ready == 0) return absl::DeadlineExceededError("the other process does not connect");
  const int accepted = accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (accepted < 0) return ErrnoStatus(errno, "accept");
  UniqueFd socket(accepted);
  LOCKSTEP_RETURN_IF_ERROR(PrepareForPolling(accepted));
  return BareSocket(std::move(socket));
}

}  // namespace bench
}  // namespace lockstep

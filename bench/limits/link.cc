#include "bench/limits/link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "transport/net/socket.h"

namespace lockstep::bench {
namespace {

absl::StatusOr<SocketAddress> AddressOf(const std::string& host, uint16_t port) {
  absl::StatusOr<SocketAddress> address = SocketAddress::Parse(absl::StrCat(host, ":", port));
  if (address.ok() && address->family() == AF_INET) return address;
  return absl::InvalidArgumentError(absl::StrCat("'", host, "' is no IPv4 address"));
}

// Connections that are accepted have both from their listener.
absl::Status Tune(int descriptor, const std::string& congestion_control) {
  const int on = 1;
  if (setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) return ErrnoStatus(errno, "TCP_NODELAY");
  if (congestion_control.empty()) return absl::OkStatus();
  const bool set =
      setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(), congestion_control.size()) == 0;
  return set ? absl::OkStatus() : ErrnoStatus(errno, "congestion control " + congestion_control);
}

bool NothingNow(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// What a system call returned.
absl::StatusOr<ssize_t> SentOr(ssize_t sent) {
  if (sent >= 0) return sent;
  if (NothingNow(errno)) return -1;
  return ErrnoStatus(errno, "send");
}

absl::StatusOr<ssize_t> ReceivedOr(ssize_t received) {
  if (received > 0) return received;
  if (received == 0) return absl::UnavailableError("the peer closed its socket");
  if (NothingNow(errno)) return -1;
  return ErrnoStatus(errno, "recv");
}

msghdr MessageOf(absl::Span<iovec> pieces) {
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

absl::StatusOr<BareSocket> BareSocket::Connect(uint16_t port, const std::string& congestion_control,
                                               const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(host, port));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, lockstep::Connect(address, Deadline::After(Patience::kLongest)));
  LOCKSTEP_RETURN_IF_ERROR(Tune(socket.get(), congestion_control));
  return BareSocket(std::move(socket));
}

absl::StatusOr<ssize_t> BareSocket::SendSome(const char* data, size_t bytes) {
  if (bytes == 0) return 0;
  return SentOr(send(socket_.get(), data, std::min(bytes, piece_bytes_), MSG_NOSIGNAL));
}

absl::StatusOr<ssize_t> BareSocket::ReceiveSome(char* data, size_t bytes) {
  if (bytes == 0) return 0;
  return ReceivedOr(recv(socket_.get(), data, std::min(bytes, piece_bytes_), 0));
}

absl::StatusOr<ssize_t> BareSocket::SendSome(absl::Span<iovec> pieces) {
  if (pieces.empty()) return 0;
  const msghdr message = MessageOf(pieces);
  return SentOr(sendmsg(socket_.get(), &message, MSG_NOSIGNAL));
}

absl::StatusOr<ssize_t> BareSocket::ReceiveSome(absl::Span<iovec> pieces) {
  if (pieces.empty()) return 0;
  msghdr message = MessageOf(pieces);
  return ReceivedOr(recvmsg(socket_.get(), &message, 0));
}

absl::Status BareSocket::Exchange(const void* out, size_t out_bytes, void* in, size_t in_bytes) {
  const char* source = static_cast<const char*>(out);
  char* target = static_cast<char*>(in);
  Patience patience;
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

absl::StatusOr<BareListener> BareListener::Create(const std::string& congestion_control, const std::string& host) {
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, AddressOf(host, 0));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, Listen(address));
  LOCKSTEP_RETURN_IF_ERROR(Tune(socket.get(), congestion_control));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress local, LocalAddress(socket.get()));
  return BareListener(std::move(socket), local.port());
}

absl::StatusOr<BareSocket> BareListener::Accept() {
  pollfd waiting = {socket_.get(), POLLIN, 0};
  const int ready = poll(&waiting, 1, Deadline::After(Patience::kLongest).remaining_ms());
  if (ready < 0) return ErrnoStatus(errno, "poll");
  if (ready == 0) return absl::DeadlineExceededError("the other process does not connect");
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, lockstep::Accept(socket_.get(), /*peer=*/nullptr));
  return BareSocket(std::move(socket));
}

}  // namespace lockstep::bench

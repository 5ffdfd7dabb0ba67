#include "transport/net/unix_socket.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"

namespace lockstep {
namespace {

constexpr int kBacklog = 512;

// The leading zero byte makes the name abstract; the length says where it ends.
socklen_t AbstractAddress(absl::string_view name, sockaddr_un* address) {
  LOCKSTEP_CHECK(name.size() <= 100) << "a name of " << name.size() << " bytes";
  *address = {};
  address->sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address->sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

absl::StatusOr<UniqueFd> UnixSocket(int type = SOCK_SEQPACKET) {
  const int descriptor = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return ErrnoStatus(errno, "unix socket");
  return UniqueFd(descriptor);
}

absl::Status DescriptorLimit() {
  rlimit limit = {};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrCat(
      "unix socket: the descriptors of a message could not be taken: RLIMIT_NOFILE allows ", limit.rlim_cur));
}

}  // namespace

absl::StatusOr<UniqueFd> ListenUnix(absl::string_view name) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, UnixSocket());
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return ErrnoStatus(errno, absl::StrCat("bind unix socket @", name));
  }
  if (listen(socket.get(), kBacklog) != 0) return ErrnoStatus(errno, absl::StrCat("listen on unix socket @", name));
  return socket;
}

absl::StatusOr<UniqueFd> AcceptUnix(int listener) {
  for (;;) {
    const int descriptor = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor >= 0) return UniqueFd(descriptor);
    if (errno == EAGAIN) return UniqueFd();
    if (errno == EINTR || errno == ECONNABORTED) continue;
    const int error = errno;
    // Without a free descriptor it fails whether a connection waits or not.
    pollfd waiting = {listener, POLLIN, 0};
    if (poll(&waiting, 1, 0) == 0) return UniqueFd();
    return ErrnoStatus(error, "accept on a unix socket");
  }
}

absl::StatusOr<UniqueFd> ConnectUnix(absl::string_view name) {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, UnixSocket());
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  while (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN) return UniqueFd();
    if (errno != EINTR) return ErrnoStatus(errno, absl::StrCat("connect to unix socket @", name));
  }
  return socket;
}

absl::StatusOr<UnixCredentials> PeerCredentials(int socket) {
  ucred credentials = {};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED of a unix socket");
  }
  return UnixCredentials{credentials.pid, credentials.uid};
}

absl::StatusOr<bool> SendUnix(int socket, absl::string_view bytes, absl::Span<const int> descriptors) {
  LOCKSTEP_CHECK(bytes.size() <= kUnixMessageBytesMax && descriptors.size() <= kUnixDescriptorsMax)
      << bytes.size() << " bytes and " << descriptors.size() << " descriptors";
  // sendmsg reads only; its iovec is not const because recvmsg shares the type.
  iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kUnixDescriptorsMax)] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent == bytes.size()) return true;
    // ETOOMANYREFS: this user's descriptors under way are as many as it may open; they become fewer as peers read.
    if (errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
    if (errno == EPIPE || errno == ECONNRESET) return absl::UnavailableError("connection closed by peer");
    if (errno != EINTR) return ErrnoStatus(errno, "send on a unix socket");
  }
}

absl::StatusOr<bool> ReceiveUnix(int socket, UnixMessage* message, int flags) {
  char bytes[kUnixMessageBytesMax];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kUnixDescriptorsMax)];
  iovec piece = {bytes, sizeof(bytes)};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t received;
  // A reset (the peer left without reading all) is told once, before what the peer had sent until then.
  do {
    received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
  } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
  if (received < 0 && errno == EAGAIN) return false;
  if (received < 0) return ErrnoStatus(errno, "receive from a unix socket");

  // Descriptors come with an empty message, too.
  message->descriptors.clear();
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      message->descriptors.emplace_back(descriptor);
    }
  }
  if (received == 0) {
    message->descriptors.clear();
    return absl::UnavailableError("connection closed by peer");
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) return DescriptorLimit();
  if ((header.msg_flags & MSG_TRUNC) != 0) return absl::DataLossError("unix socket: a message longer than any of ours");
  message->bytes.assign(bytes, received);
  explicit_bzero(bytes, received);  // it may be a secret
  return true;
}

absl::StatusOr<UniqueFd> LoopUnix() {
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd socket, UnixSocket(SOCK_DGRAM));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(address.sun_family);  // the system chooses a name
  sockaddr* const generic = reinterpret_cast<sockaddr*>(&address);
  bool made = bind(socket.get(), generic, length) == 0;
  length = sizeof(address);
  made = made && getsockname(socket.get(), generic, &length) == 0 && connect(socket.get(), generic, length) == 0;
  if (!made) return ErrnoStatus(errno, "connect a unix socket to itself");
  // Drops what another process may have sent before the socket was connected. Now the system accepts messages from this socket alone.
  char byte;
  while (recv(socket.get(), &byte, 1, MSG_DONTWAIT) >= 0) {
  }
  return socket;
}

}  // namespace lockstep

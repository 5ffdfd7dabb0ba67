#include "transport/tcp/opening.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/status.h"

namespace lockstep {

absl::Status Opening::Start(int socket) {
  const std::string first = channel_.Start();
  return first.empty() ? absl::OkStatus() : Send(socket, first);
}

absl::StatusOr<bool> Opening::Await(int socket, size_t bytes) {
  while (!channel_.ready() || said_.size() < bytes) {
    char piece[kHandshakeBytesMax];
    const size_t wanted = channel_.ready() && !secured_ ? bytes - said_.size() : channel_.wanted();
    const ssize_t read = recv(socket, piece, std::min(wanted, sizeof(piece)), MSG_DONTWAIT);
    if (read == 0) return absl::UnavailableError("connection closed by peer");
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && errno == EAGAIN) return false;
    if (read < 0) return ErrnoStatus(errno, "read");
    std::string answer;
    const absl::Status received = channel_.Receive(absl::string_view(piece, read), &said_, &answer);
    const absl::Status sent = answer.empty() ? absl::OkStatus() : Send(socket, answer);
    LOCKSTEP_RETURN_IF_ERROR(received);
    LOCKSTEP_RETURN_IF_ERROR(sent);
  }
  return true;
}

absl::Status Opening::Say(int socket, absl::string_view bytes) {
  std::string to_send;
  channel_.Send(bytes, &to_send);
  return Send(socket, to_send);
}

absl::Status Opening::Send(int socket, absl::string_view bytes) {
  const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent == bytes.size() ? absl::OkStatus() : ErrnoStatus(sent < 0 ? errno : EAGAIN, "send");
}

}  // namespace lockstep

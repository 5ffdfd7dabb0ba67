#include "transport/tcp/zero_copy_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/log.h"
#include "transport/net/socket.h"

namespace lockstep {
namespace {

// Of what the kernel says with one message of the error queue; what does not fit is of no interest.
constexpr size_t kControlBytes = 256;

bool HasZeroCopy(int socket) {
  int on = 0;
  socklen_t length = sizeof(on);
  return getsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, &length) == 0 && on != 0;
}

}  // namespace

ZeroCopyStream::ZeroCopyStream(std::shared_ptr<TcpSocket> socket, bool* ended)
    : socket_(std::move(socket)), copying_(socket_, ended), on_(HasZeroCopy(socket_->get())) {}

ZeroCopyStream::~ZeroCopyStream() {
  if (!sends_.empty()) socket_->ResetWhenClosed();
}

ssize_t ZeroCopyStream::Write(const iovec* pieces, int count) {
  const ssize_t written = Send(pieces, count);
  if (written > 0) written_bytes_ += written;
  return written;
}

ssize_t ZeroCopyStream::Send(const iovec* pieces, int count) {
  const iovec& last = pieces[count - 1];
  if (!on_ || last.iov_len < kLentBytesMin || sends_.full()) return copying_.Write(pieces, count);
  if (count == 1) return SendFromWhereItLies(last, written_bytes_);
  size_t short_bytes = 0;
  for (int i = 0; i + 1 < count; ++i) short_bytes += pieces[i].iov_len;
  const ssize_t copied = copying_.Send(pieces, count - 1, MSG_MORE);
  if (copied < 0 || copied < short_bytes) return copied;
  const ssize_t lent = SendFromWhereItLies(last, written_bytes_ + copied);
  return lent < 0 ? copied : copied + lent;
}

ssize_t ZeroCopyStream::SendFromWhereItLies(const iovec& piece, uint64_t position) {
  const ssize_t sent = copying_.Send(&piece, 1, MSG_ZEROCOPY);
  if (sent == -ENOBUFS) return copying_.Send(&piece, 1, 0);
  if (sent > 0) sends_.Add(position);
  return sent;
}

uint64_t ZeroCopyStream::UnreleasedBytes() {
  if (!sends_.empty()) ReadErrorQueue();
  return sends_.empty() ? 0 : written_bytes_ - sends_.position();
}

void ZeroCopyStream::ReadErrorQueue() {
  if (!socket_->ours()) return;
  for (;;) {
    alignas(cmsghdr) char control[kControlBytes];
    msghdr message = {};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (recvmsg(socket_->get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    const absl::optional<ReleasedSends> released = ParseReleasedSends(&message);
    if (!released.has_value()) continue;
    sends_.Release(*released);
    if (!released->copied || !on_) continue;
    on_ = false;
    const absl::StatusOr<SocketAddress> peer = PeerAddress(socket_->get());
    LOCKSTEP_LOG(kInfo) << "tcp transport: no more zero-copy sends to " << (peer.ok() ? peer->ToString() : "a peer")
                        << ": the kernel copies them";
  }
}

}  // namespace lockstep

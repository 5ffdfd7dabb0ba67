#include "transport/tcp/zero_copy_stream.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"
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

absl::optional<ReleasedSends> ParseReleasedSends(msghdr* message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(message); control != nullptr; control = CMSG_NXTHDR(message, control)) {
    const bool from_ipv4 = control->cmsg_level == IPPROTO_IP && control->cmsg_type == IP_RECVERR;
    const bool from_ipv6 = control->cmsg_level == IPPROTO_IPV6 && control->cmsg_type == IPV6_RECVERR;
    if ((!from_ipv4 && !from_ipv6) || control->cmsg_len < CMSG_LEN(sizeof(sock_extended_err))) continue;
    sock_extended_err said;
    std::memcpy(&said, CMSG_DATA(control), sizeof(said));
    if (said.ee_errno != 0 || said.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    return ReleasedSends{said.ee_info, said.ee_data, (said.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
  }
  return absl::nullopt;
}

void ZeroCopySends::Add(uint64_t position) {
  LOCKSTEP_CHECK(!full());
  sends_[next_++ % kOutstandingMax] = {position, /*released=*/false};
}

void ZeroCopySends::Release(const ReleasedSends& released) {
  for (uint32_t number = oldest_; number != next_; ++number) {
    const bool within = number - released.first <= released.last - released.first;
    if (within) sends_[number % kOutstandingMax].released = true;
  }
  while (!empty() && sends_[oldest_ % kOutstandingMax].released) ++oldest_;
}

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

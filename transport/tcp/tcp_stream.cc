#include "transport/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.h"
#include "transport/net/epoll.h"

namespace lockstep {
namespace {

// Thrown away at most, so that a peer that goes on sending cannot keep a close from returning.
constexpr int kDiscardCalls = 64;
constexpr size_t kDiscardBytes = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<TcpSocket>> TcpSocket::Create(UniqueFd socket, int events, void* event_data) {
  LOCKSTEP_RETURN_IF_ERROR(
      EpollControl(events, EPOLL_CTL_ADD, socket.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, event_data));
  return std::shared_ptr<TcpSocket>(new TcpSocket(std::move(socket), events));
}

TcpSocket::TcpSocket(UniqueFd socket, int events)
    : socket_(std::move(socket)), events_(events), fork_generation_(ForkGeneration()) {}

TcpSocket::~TcpSocket() {
  if (!ours()) return;
  // Closing does not do this while a child between fork and exec has a copy: late events would name who is gone.
  (void)epoll_ctl(events_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  // MSG_TRUNC: TCP drops the bytes without copying them anywhere. Not through recv(), which ThreadSanitizer takes to write to
  // the null pointer, from two threads.
  for (int i = 0; i < kDiscardCalls; ++i) {
    if (syscall(SYS_recvfrom, socket_.get(), nullptr, kDiscardBytes, MSG_TRUNC | MSG_DONTWAIT, nullptr, nullptr) <= 0)
      break;
  }
}

void TcpSocket::ResetWhenClosed() {
  const linger reset = {/*l_onoff=*/1, /*l_linger=*/0};
  if (ours()) (void)setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
}

ssize_t TcpStream::Send(const iovec* pieces, int count, int flags) {
  if (*ended_) return -EPIPE;
  flags |= MSG_NOSIGNAL | MSG_DONTWAIT;
  for (;;) {
    ssize_t written;
    if (count == 1) {
      written = send(descriptor_, pieces->iov_base, pieces->iov_len, flags);
    } else {
      msghdr message = {};
      message.msg_iov = const_cast<iovec*>(pieces);  // read only, here
      message.msg_iovlen = count;
      written = sendmsg(descriptor_, &message, flags);
    }
    if (written >= 0) return written;
    if (errno != EINTR) return -errno;
  }
}

ssize_t TcpStream::Read(const iovec* pieces, int count) {
  for (;;) {
    const ssize_t read = count == 1 ? recv(descriptor_, pieces->iov_base, pieces->iov_len, MSG_DONTWAIT)
                                    : readv(descriptor_, pieces, count);  // the socket does not block
    if (read > 0) return read;
    const int error = read == 0 ? 0 : errno;
    if (error == EINTR) continue;
    if (error != EAGAIN) *ended_ = true;
    return -error;
  }
}

}  // namespace lockstep

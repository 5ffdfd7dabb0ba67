#include "transport/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/status.h"
#include "transport/net/epoll.h"

namespace lockstep {
namespace {

// Thrown away at most, so that a peer that goes on sending cannot keep a close from returning.
constexpr int kDiscardCalls = 64;
constexpr size_t kDiscardBytes = size_t{1} << 20;

// As links ask for: a header and a payload.
constexpr int kPiecesMax = 2;

size_t Total(const iovec* pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; ++i) total += pieces[i].iov_len;
  return total;
}

// The pieces without their first `skipped` bytes, and no more than `limit` of the rest. Returns how many pieces.
int Cut(const iovec* pieces, int count, size_t skipped, size_t limit, iovec* cut) {
  int cut_count = 0;
  for (int i = 0; i < count && limit > 0; ++i) {
    const size_t skip = std::min(skipped, pieces[i].iov_len);
    const size_t bytes = std::min(pieces[i].iov_len - skip, limit);
    skipped -= skip;
    limit -= bytes;
    if (bytes > 0) cut[cut_count++] = {static_cast<char*>(pieces[i].iov_base) + skip, bytes};
  }
  return cut_count;
}

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

StripedStream::StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, size_t stripe_bytes)
    : streams_(std::move(streams)), stripe_bytes_(stripe_bytes) {
  LOCKSTEP_CHECK(!streams_.empty() && stripe_bytes_ > 0);
}

template <typename Move>
ssize_t StripedStream::Run(const iovec* pieces, int count, Move move) {
  LOCKSTEP_CHECK(count <= kPiecesMax) << count << " pieces";
  const size_t total = Total(pieces, count);
  size_t moved = 0;
  while (moved < total) {
    iovec cut[kPiecesMax];
    const size_t stripe_left = stripe_bytes_ - position_ % stripe_bytes_;
    const int cut_count = Cut(pieces, count, moved, stripe_left, cut);
    const ssize_t result = move(streams_[position_ / stripe_bytes_ % streams_.size()].get(), cut, cut_count);
    // The next call returns the end or the error.
    if (result <= 0) return moved > 0 ? static_cast<ssize_t>(moved) : result;
    moved += result;
    position_ += result;
    if (result < Total(cut, cut_count)) break;
  }
  return static_cast<ssize_t>(moved);
}

ssize_t StripedStream::Write(const iovec* pieces, int count) {
  return Run(pieces, count,
             [](ByteStream* stream, const iovec* cut, int cut_count) { return stream->Write(cut, cut_count); });
}

ssize_t StripedStream::Read(const iovec* pieces, int count) {
  return Run(pieces, count,
             [](ByteStream* stream, const iovec* cut, int cut_count) { return stream->Read(cut, cut_count); });
}

}  // namespace lockstep

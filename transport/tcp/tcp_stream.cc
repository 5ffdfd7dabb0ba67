#include "transport/tcp/tcp_stream.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/net/socket.h"
#include "transport/posting.h"

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

StripedStream::StripedStream(std::vector<std::unique_ptr<ByteStream>> streams, size_t stripe_bytes)
    : streams_(std::move(streams)), stripe_bytes_(stripe_bytes) {
  LOCKSTEP_CHECK(!streams_.empty() && stripe_bytes_ > 0);
}

template <typename Move>
ssize_t StripedStream::Run(const iovec* pieces, int count, Move move) {
  LOCKSTEP_CHECK(count <= kPiecesMax) << count << " pieces";
  const size_t total = TotalBytes(pieces, count);
  size_t moved = 0;
  while (moved < total) {
    iovec cut[kPiecesMax];
    const int cut_count = CutPieces({pieces, static_cast<size_t>(count)}, moved, stripe_left(), cut, kPiecesMax);
    const ssize_t result = move(stream(), cut, cut_count);
    // No event tells of it again.
    if (result == -EBADMSG) return result;
    // The next call returns the end or the error.
    if (result <= 0) return moved > 0 ? static_cast<ssize_t>(moved) : result;
    moved += result;
    position_ += result;
    if (result < TotalBytes(cut, cut_count)) break;
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

ssize_t StripedStream::View(size_t bytes, const unsigned char** data) {
  const ssize_t viewed = stream()->View(std::min(bytes, stripe_left()), data);
  if (viewed > 0) position_ += viewed;
  return viewed;
}

std::string StripedStream::Defect() const {
  for (const auto& stream : streams_) {
    if (std::string defect = stream->Defect(); !defect.empty()) return defect;
  }
  return "";
}

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

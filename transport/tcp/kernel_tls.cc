#include "transport/tcp/kernel_tls.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status.h"
#include "transport/net/epoll.h"
#include "transport/net/socket.h"
#include "transport/posting.h"

namespace lockstep {
namespace {

constexpr unsigned char kHandshakeType = 22;
constexpr unsigned char kDataType = 23;
// Type 24, a length of 1, and 0: no key update is asked for in return.
constexpr std::array<unsigned char, 5> kKeyUpdate = {24, 0, 0, 1, 0};

constexpr char kNoKeyUpdate[] = "a TLS handshake record that is no key update";

// What a socket's buffers are at least, in bytes as getsockopt has them. With less, the kernel holds back several records, and part of them
// when EPOLLOUT holds, too: a segment is half the peer's window at most, and must hold a record. The defaults are 46 KB and 128 KiB.
constexpr int kSendBufferBytesMin = 40'000;
constexpr int kReceiveBufferBytesMin = 64 << 10;

// What a kernel is tried with: several records and keys.
constexpr size_t kProbeBytes = 100'000;

// Thrown away at most, so that a peer that goes on sending cannot keep a close from returning.
constexpr int kDiscardCalls = 64;
constexpr size_t kDiscardBytes = size_t{64} << 10;

// What the kernel answers, to reads and writes alike, once it has met a record of which the tag, the length or the version is wrong.
bool SaysNotGenuine(ssize_t result) { return result == -EBADMSG || result == -EMSGSIZE || result == -EINVAL; }

template <typename Call>
auto Uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0) return result;
    if (errno != EINTR) return static_cast<decltype(result)>(-errno);
  }
}

// A message in pieces with room for the content type of its record.
struct TypedMessage {
  TypedMessage(const iovec* pieces, int count) {
    header.msg_iov = const_cast<iovec*>(pieces);  // read only, here
    header.msg_iovlen = count;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }

  void SetType(unsigned char type) {
    cmsghdr* const said = CMSG_FIRSTHDR(&header);
    said->cmsg_level = SOL_TLS;
    said->cmsg_type = TLS_SET_RECORD_TYPE;
    said->cmsg_len = CMSG_LEN(sizeof(type));
    *CMSG_DATA(said) = type;
  }

  unsigned char type() {
    for (cmsghdr* said = CMSG_FIRSTHDR(&header); said != nullptr; said = CMSG_NXTHDR(&header, said)) {
      if (said->cmsg_level == SOL_TLS && said->cmsg_type == TLS_GET_RECORD_TYPE) return *CMSG_DATA(said);
    }
    return kDataType;
  }

  msghdr header = {};
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(unsigned char))] = {};
};

}  // namespace

KernelTls* KernelTls::OfSystem() {
  static auto* const system = new KernelTls;
  return system;
}

int KernelTls::SetOption(int socket, int level, int option, const void* value, socklen_t bytes) {
  return setsockopt(socket, level, option, value, bytes) == 0 ? 0 : -errno;
}

ssize_t KernelTls::Send(int socket, const msghdr& message) {
  return Uninterrupted([&] { return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

ssize_t KernelTls::Receive(int socket, msghdr* message) {
  const size_t room = message->msg_controllen;
  return Uninterrupted([&] {
    message->msg_controllen = room;
    return recvmsg(socket, message, MSG_DONTWAIT);
  });
}

bool KernelTls::Writable(int socket) {
  pollfd polled = {socket, POLLOUT, 0};
  return Uninterrupted([&] { return poll(&polled, 1, 0); }) != 0;
}

int KernelTls::Attach(int socket) {
  int send_bytes = 0, receive_bytes = 0;
  socklen_t length = sizeof(int);
  if (getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_bytes, &length) != 0 ||
      getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &receive_bytes, &length) != 0) {
    return -errno;
  }
  if (send_bytes < kSendBufferBytesMin || receive_bytes < kReceiveBufferBytesMin) return -ENOBUFS;
  constexpr char kName[] = "tls";
  return SetOption(socket, IPPROTO_TCP, TCP_ULP, kName, sizeof(kName));
}

int KernelTls::SetKey(int socket, int direction, const DirectionKey& key) {
  tls12_crypto_info_aes_gcm_256 info = {};
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = TLS_CIPHER_AES_GCM_256;
  static_assert(sizeof(info.salt) + sizeof(info.iv) == sizeof(key.nonce_base) && sizeof(info.key) == sizeof(key.key));
  std::memcpy(info.salt, key.nonce_base.data(), sizeof(info.salt));
  std::memcpy(info.iv, key.nonce_base.data() + sizeof(info.salt), sizeof(info.iv));
  std::memcpy(info.key, key.key.data(), sizeof(info.key));
  const int set = SetOption(socket, SOL_TLS, direction, &info, sizeof(info));
  explicit_bzero(&info, sizeof(info));
  return set;
}

absl::Status KernelTls::Check() {
  std::call_once(checked_, [this] {
    const absl::Status probed = Probe();
    if (!probed.ok()) check_ = absl::UnavailableError(probed.message());
  });
  return check_;
}

absl::Status KernelTls::Probe() {
  const Deadline deadline = Deadline::AfterMs(1000);
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress any, SocketAddress::Parse("127.0.0.1:0"));
  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd listener, ListenAnywhere(any));
  LOCKSTEP_ASSIGN_OR_RETURN(const SocketAddress address, LocalAddress(listener.get()));
  LOCKSTEP_ASSIGN_OR_RETURN(UniqueFd source, Connect(address, deadline));
  if (const int attached = Attach(source.get()); attached < 0) return ErrnoStatus(-attached, "TCP_ULP tls");
  UniqueFd target;
  while (!target.valid()) {
    if (deadline.passed()) return absl::UnavailableError("no connection to itself");
    LOCKSTEP_ASSIGN_OR_RETURN(target, Accept(listener.get(), nullptr));
  }
  if (const int attached = Attach(target.get()); attached < 0) return ErrnoStatus(-attached, "TCP_ULP tls");

  LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd events, NewEpoll());
  LOCKSTEP_ASSIGN_OR_RETURN(auto from, TcpSocket::Create(std::move(source), events.get(), nullptr));
  LOCKSTEP_ASSIGN_OR_RETURN(auto to, TcpSocket::Create(std::move(target), events.get(), nullptr));
  const RecordSecret secret(std::array<char, RecordSecret::kBytes>{});
  bool from_ended = false, to_ended = false;
  KernelTlsWriter writer(this, std::move(from), &from_ended, secret, kProbeBytes / 3);
  KernelTlsReader reader(this, std::move(to), &to_ended, secret);
  std::vector<unsigned char> sent(kProbeBytes), received(kProbeBytes);
  for (size_t i = 0; i < kProbeBytes; ++i) sent[i] = static_cast<unsigned char>(i ^ i >> 8);
  for (size_t written = 0, read = 0; read < kProbeBytes;) {
    const iovec unsent = {sent.data() + written, kProbeBytes - written};
    const ssize_t wrote = written < kProbeBytes ? writer.Write(&unsent, 1) : -EAGAIN;
    if (wrote < 0 && wrote != -EAGAIN) return ErrnoStatus(static_cast<int>(-wrote), "TLS records to itself, write");
    written += static_cast<size_t>(std::max<ssize_t>(wrote, 0));
    (void)writer.UnreleasedBytes();
    const iovec missing = {received.data() + read, kProbeBytes - read};
    const ssize_t got = reader.Read(&missing, 1);
    if (got <= 0 && got != -EAGAIN) {
      return ErrnoStatus(static_cast<int>(-got), absl::StrCat("TLS records to itself, read: ", reader.Defect()));
    }
    read += static_cast<size_t>(std::max<ssize_t>(got, 0));
    if (deadline.passed()) return absl::UnavailableError("TLS records to itself do not arrive");
  }
  return sent == received ? absl::OkStatus() : absl::UnavailableError("TLS records to itself arrive changed");
}

KernelTlsWriter::KernelTlsWriter(KernelTls* kernel, std::shared_ptr<TcpSocket> socket, bool* ended,
                                 const RecordSecret& secret, uint64_t bytes_per_key)
    : kernel_(kernel),
      socket_(std::move(socket)),
      descriptor_(socket_->get()),
      ended_(ended),
      bytes_per_key_(bytes_per_key),
      secret_(secret),
      error_(kernel_->SetKey(descriptor_, TLS_TX, secret_.Key())) {}

ssize_t KernelTlsWriter::Read(const iovec*, int) { return -EBADF; }

ssize_t KernelTlsWriter::Write(const iovec* pieces, int count) {
  if (error_ < 0) return error_;
  if (*ended_) return -EPIPE;
  const size_t total = TotalBytes(pieces, count);
  size_t taken = 0;
  while (taken < total) {
    const ssize_t updated = key_bytes_ < bytes_per_key_ ? 0 : UpdateKey();
    if (updated == -EAGAIN && taken > 0) break;
    if (updated < 0) return updated;
    iovec left[kPiecesMax];
    msghdr message = {};
    message.msg_iov = left;
    message.msg_iovlen =
        CutPieces({pieces, static_cast<size_t>(count)}, taken, bytes_per_key_ - key_bytes_, left, kPiecesMax);
    const ssize_t sent = Send(message);
    if (sent == -EAGAIN && taken > 0) break;
    if (sent < 0) return sent;
    taken += static_cast<size_t>(sent);
    unreleased_ += static_cast<uint64_t>(sent);
    key_bytes_ += static_cast<uint64_t>(sent) + kKernelTlsRecordCharge;
    // An event will tell that it takes more.
    if (sent < TotalBytes(left, static_cast<int>(message.msg_iovlen))) break;
  }
  return static_cast<ssize_t>(taken);
}

ssize_t KernelTlsWriter::Send(const msghdr& message) {
  const ssize_t sent = kernel_->Send(descriptor_, message);
  if (sent >= 0 || sent == -EAGAIN) return sent;
  return error_ = SaysNotGenuine(sent) ? -EBADMSG : sent;
}

ssize_t KernelTlsWriter::UpdateKey() {
  const iovec piece = {const_cast<unsigned char*>(kKeyUpdate.data()), kKeyUpdate.size()};
  TypedMessage message(&piece, 1);
  message.SetType(kHandshakeType);
  const ssize_t sent = Send(message.header);
  if (sent < 0) return sent;
  if (sent != kKeyUpdate.size()) return error_ = -EIO;
  key_bytes_ = 0;
  secret_.Step();
  return error_ = kernel_->SetKey(descriptor_, TLS_TX, secret_.Key());
}

uint64_t KernelTlsWriter::UnreleasedBytes() {
  if (unreleased_ > 0 && kernel_->Writable(descriptor_)) unreleased_ = 0;
  return unreleased_;
}

std::string KernelTlsWriter::Defect() const {
  return error_ == -EBADMSG ? "what arrives on this connection is not what the peer sends" : "";
}

KernelTlsReader::KernelTlsReader(KernelTls* kernel, std::shared_ptr<TcpSocket> socket, bool* ended,
                                 const RecordSecret& secret)
    : kernel_(kernel), socket_(std::move(socket)), descriptor_(socket_->get()), ended_(ended), secret_(secret) {
  if (const int set = kernel_->SetKey(descriptor_, TLS_RX, secret_.Key()); set < 0) End(set);
}

KernelTlsReader::~KernelTlsReader() {
  if (!socket_->ours() || result_ <= 0) return;
  std::vector<unsigned char> unread(kDiscardBytes);
  const iovec piece = {unread.data(), unread.size()};
  for (int i = 0; i < kDiscardCalls; ++i) {
    TypedMessage message(&piece, 1);
    if (kernel_->Receive(descriptor_, &message.header) <= 0) break;
  }
}

ssize_t KernelTlsReader::Write(const iovec*, int) { return -EBADF; }

ssize_t KernelTlsReader::Read(const iovec* pieces, int count) {
  const size_t total = TotalBytes(pieces, count);
  size_t given = 0;
  while (given < total && result_ > 0) {
    iovec left[kPiecesMax];
    const int left_count = CutPieces({pieces, static_cast<size_t>(count)}, given, total - given, left, kPiecesMax);
    TypedMessage message(left, left_count);
    const ssize_t read = kernel_->Receive(descriptor_, &message.header);
    if (read == -EAGAIN) return given > 0 ? static_cast<ssize_t>(given) : read;
    if (SaysNotGenuine(read)) {
      End(-EBADMSG, "a TLS record was altered, or is not from this connection");
    } else if (read == -EKEYEXPIRED) {  // the kernel took what has come for one
      End(-EBADMSG, kNoKeyUpdate);
    } else if (read <= 0) {
      End(read);
    } else if (const int type = message.type(); type != kDataType) {
      TakeKeyUpdate(type, left, left_count, static_cast<size_t>(read));
    } else {
      given += static_cast<size_t>(read);
    }
  }
  // What came before an end counts for nothing: the connection is lost.
  return result_ > 0 ? static_cast<ssize_t>(given) : result_;
}

void KernelTlsReader::TakeKeyUpdate(int type, const iovec* pieces, int count, size_t bytes) {
  if (type != kHandshakeType) {
    End(-EBADMSG, absl::StrCat("a TLS record of content type ", type, ", which is neither data nor a key update"));
    return;
  }
  for (int i = 0; i < count && bytes > 0; ++i) {
    const size_t piece = std::min(bytes, pieces[i].iov_len);
    if (piece > update_.size() - update_bytes_) break;
    std::memcpy(update_.data() + update_bytes_, pieces[i].iov_base, piece);
    update_bytes_ += piece;
    bytes -= piece;
  }
  const bool begins_well = std::equal(update_.begin(), update_.begin() + update_bytes_, kKeyUpdate.begin());
  if (bytes > 0 || !begins_well) {
    End(-EBADMSG, kNoKeyUpdate);
    return;
  }
  if (update_bytes_ < update_.size()) return;
  update_bytes_ = 0;
  secret_.Step();
  if (const int set = kernel_->SetKey(descriptor_, TLS_RX, secret_.Key()); set < 0) End(set);
}

void KernelTlsReader::End(ssize_t result, std::string defect) {
  *ended_ = true;
  result_ = result;
  defect_ = std::move(defect);
}

}  // namespace lockstep

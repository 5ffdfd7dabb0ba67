#include "transport/tcp/fake_kernel_tls.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"

namespace lockstep {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kPayloadBytesMax = 16384;
constexpr unsigned char kHandshake = 22;
constexpr unsigned char kData = 23;

// Of a record with so many bytes behind it. Its type always says data; the true one is inside.
std::string Header(size_t bytes) { return {kData, 3, 3, static_cast<char>(bytes >> 8), static_cast<char>(bytes)}; }

size_t BodyBytes(const std::string& record) {
  return size_t{static_cast<unsigned char>(record[3])} << 8 | static_cast<unsigned char>(record[4]);
}

const unsigned char* Bytes(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }
unsigned char* Bytes(std::string* text) { return reinterpret_cast<unsigned char*>(&(*text)[0]); }

ino_t Inode(int socket) {
  struct stat status = {};
  LOCKSTEP_CHECK(fstat(socket, &status) == 0) << errno;
  return status.st_ino;
}

}  // namespace

FakeKernelTls* FakeKernelTls::OfAll() {
  static auto* const all = new FakeKernelTls;
  return all;
}

FakeKernelTls::Counts FakeKernelTls::counts() const {
  MutexLock lock(&mu_);
  return counts_;
}

FakeKernelTls::Socket* FakeKernelTls::Find(int socket) {
  const auto found = sockets_.find(socket);
  return found == sockets_.end() || found->second.inode != Inode(socket) ? nullptr : &found->second;
}

int FakeKernelTls::SetOption(int socket, int level, int option, const void* value, socklen_t bytes) {
  MutexLock lock(&mu_);
  Socket* const known = Find(socket);
  if (level == SOL_TLS) {
    if (known == nullptr) return -ENOPROTOOPT;
    if (faults.set_key != 0) return -faults.set_key;
    return SetKey(known, option, value, bytes);
  }
  LOCKSTEP_CHECK(level == IPPROTO_TCP && option == TCP_ULP && std::strcmp(static_cast<const char*>(value), "tls") == 0);
  if (faults.attach != 0) return -faults.attach;
  if (known != nullptr) return -EEXIST;
  tcp_info info = {};
  socklen_t length = sizeof(info);
  LOCKSTEP_CHECK(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0) << errno;
  if (info.tcpi_state != TCP_ESTABLISHED) return -ENOTCONN;
  sockets_[socket] = Socket();
  sockets_[socket].inode = Inode(socket);
  ++counts_.attached;
  return 0;
}

int FakeKernelTls::SetKey(Socket* state, int direction, const void* value, socklen_t bytes) {
  tls12_crypto_info_aes_gcm_256 info;
  if (bytes != sizeof(info) || (direction != TLS_TX && direction != TLS_RX)) return -EINVAL;
  std::memcpy(&info, value, sizeof(info));
  if (info.info.version != TLS_1_3_VERSION || info.info.cipher_type != TLS_CIPHER_AES_GCM_256) return -EINVAL;
  for (const unsigned char byte : info.rec_seq) LOCKSTEP_CHECK(byte == 0) << "a key that was used";
  auto& cipher = direction == TLS_TX ? state->sends : state->receives;
  if (cipher != nullptr && !faults.updates_keys) return -EBUSY;
  DirectionKey key;
  std::copy_n(info.key, sizeof(info.key), key.key.begin());
  std::copy_n(info.iv, sizeof(info.iv), std::copy_n(info.salt, sizeof(info.salt), key.nonce_base.begin()));
  cipher = *RecordCipher::Create(CipherBackend::kOpenSsl, CipherMode::kEncrypt, key);
  (direction == TLS_TX ? state->send_sequence : state->receive_sequence) = 0;
  if (direction == TLS_RX) state->update_pending = false;
  ++counts_.keys;
  return 0;
}

void FakeKernelTls::Seal(Socket* state, unsigned char type, const std::string& bytes) {
  std::string payload = bytes + static_cast<char>(type);
  const std::string header = Header(payload.size() + RecordCipher::kTagBytes);
  std::string tag(RecordCipher::kTagBytes, 0);
  const iovec piece = {&payload[0], payload.size()};
  state->sends->Seal(state->send_sequence++, absl::MakeConstSpan(Bytes(header), header.size()), {piece},
                     Bytes(&payload), Bytes(&tag));
  if (std::exchange(faults.alters_next, false)) payload[0] ^= 1;
  state->unsent = header + payload + tag;
  ++counts_.sealed;
}

ssize_t FakeKernelTls::Flush(int socket, Socket* state) {
  while (!state->unsent.empty()) {
    const ssize_t sent = send(socket, state->unsent.data(), state->unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return -errno;
    state->unsent.erase(0, sent);
  }
  return 0;
}

ssize_t FakeKernelTls::Send(int socket, const msghdr& message) {
  MutexLock lock(&mu_);
  Socket* const state = Find(socket);
  LOCKSTEP_CHECK(state != nullptr && state->sends != nullptr) << "this would be sent in the clear";
  unsigned char type = kData;
  auto* const header = const_cast<msghdr*>(&message);
  for (cmsghdr* said = CMSG_FIRSTHDR(header); said != nullptr; said = CMSG_NXTHDR(header, said)) {
    if (said->cmsg_level == SOL_TLS && said->cmsg_type == TLS_SET_RECORD_TYPE) type = *CMSG_DATA(said);
  }
  std::string bytes;
  for (size_t i = 0; i < message.msg_iovlen; ++i) {
    bytes.append(static_cast<const char*>(message.msg_iov[i].iov_base), message.msg_iov[i].iov_len);
  }
  if (state->receives != nullptr && state->error == 0) (void)Arrive(socket, state);
  if (state->error < 0) return state->error;
  size_t taken = 0;
  while (taken < bytes.size()) {
    if (const ssize_t flushed = Flush(socket, state); flushed < 0) {
      if (taken > 0) break;
      return flushed;
    }
    const size_t piece = std::min(bytes.size() - taken, kPayloadBytesMax);
    Seal(state, type, bytes.substr(taken, piece));
    taken += piece;
    (void)Flush(socket, state);
  }
  return static_cast<ssize_t>(taken);
}

bool FakeKernelTls::Writable(int socket) {
  MutexLock lock(&mu_);
  Socket* const state = Find(socket);
  return Flush(socket, state) != -EAGAIN && KernelTls::Writable(socket);
}

ssize_t FakeKernelTls::Arrive(int socket, Socket* state) {
  if (state->stopped) return -EAGAIN;
  std::string& arrived = state->arrived;
  for (;;) {
    if (arrived.size() >= kHeaderBytes) {
      const size_t body = BodyBytes(arrived);
      if (body > kPayloadBytesMax + 1 + RecordCipher::kTagBytes) {
        state->error = -EMSGSIZE;
      } else if (body < RecordCipher::kTagBytes) {
        state->error = -EBADMSG;
      } else if (arrived[1] != 3 || arrived[2] != 3) {
        state->error = -EINVAL;
      }
      state->stopped = state->error < 0;
      if (state->stopped) return state->error;
      if (arrived.size() >= kHeaderBytes + body) return 1;
    }
    char piece[kPayloadBytesMax];
    const ssize_t read = recv(socket, piece, sizeof(piece), MSG_DONTWAIT);
    if (read <= 0) return read < 0 ? -errno : 0;
    arrived.append(piece, read);
  }
}

ssize_t FakeKernelTls::Open(int socket, Socket* state) {
  if (state->error == 0) {
    if (state->update_pending) return -EKEYEXPIRED;
    const ssize_t whole = Arrive(socket, state);
    if (whole <= 0 && state->error == 0) return whole;
  }
  if (state->error < 0) return state->stopped ? std::exchange(state->error, 0) : state->error;
  std::string& arrived = state->arrived;
  const size_t bytes = kHeaderBytes + BodyBytes(arrived);
  std::string body = arrived.substr(kHeaderBytes, bytes - kHeaderBytes - RecordCipher::kTagBytes);
  const std::string tag = arrived.substr(bytes - RecordCipher::kTagBytes, RecordCipher::kTagBytes);
  arrived.erase(0, bytes);
  const std::string header = Header(body.size() + tag.size());
  const iovec piece = {&body[0], body.size()};
  if (!state->receives->Open(state->receive_sequence++, absl::MakeConstSpan(Bytes(header), header.size()), {piece},
                             Bytes(tag), Bytes(&body))) {
    return state->error = -EBADMSG;
  }
  while (!body.empty() && body.back() == 0) body.pop_back();
  if (body.empty()) return state->error = -EBADMSG;
  const auto type = static_cast<unsigned char>(body.back());
  body.pop_back();
  state->update_pending = type == kHandshake && !body.empty() && body[0] == 24;
  state->opened.push_back({type, std::move(body)});
  ++counts_.opened;
  return 1;
}

ssize_t FakeKernelTls::Receive(int socket, msghdr* message) {
  MutexLock lock(&mu_);
  Socket* const state = Find(socket);
  LOCKSTEP_CHECK(state != nullptr && state->receives != nullptr) << "this would be taken in the clear";
  ssize_t read = 0;
  unsigned char type = 0;
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    auto* const target = static_cast<char*>(message->msg_iov[i].iov_base);
    size_t filled = 0;
    while (filled < message->msg_iov[i].iov_len) {
      if (state->opened.empty()) {
        if (type != 0 && type != kData) return read;
        const ssize_t opened = Open(socket, state);
        if (opened <= 0) return read > 0 ? read : opened;
      }
      Plain& plain = state->opened.front();
      if (type == 0) {
        type = plain.type;
        cmsghdr* const said = CMSG_FIRSTHDR(message);
        if (said == nullptr) return -EIO;
        said->cmsg_level = SOL_TLS;
        said->cmsg_type = TLS_GET_RECORD_TYPE;
        said->cmsg_len = CMSG_LEN(sizeof(type));
        *CMSG_DATA(said) = type;
      }
      if (plain.type != type) return read;
      const size_t piece = plain.bytes.copy(target + filled, message->msg_iov[i].iov_len - filled);
      plain.bytes.erase(0, piece);
      filled += piece;
      read += static_cast<ssize_t>(piece);
      if (plain.bytes.empty()) state->opened.pop_front();
    }
  }
  return read;
}

ssize_t SendAs(KernelTls* kernel, int socket, unsigned char type, absl::string_view bytes) {
  iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(type))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const said = CMSG_FIRSTHDR(&message);
  said->cmsg_level = SOL_TLS;
  said->cmsg_type = TLS_SET_RECORD_TYPE;
  said->cmsg_len = CMSG_LEN(sizeof(type));
  *CMSG_DATA(said) = type;
  return kernel->Send(socket, message);
}

}  // namespace lockstep

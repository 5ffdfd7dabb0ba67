// A socket whose bytes travel in TLS records that the kernel seals and opens (Linux, Documentation/networking/tls.rst), in place of
// records of our own: at level encrypt, where the kernel can change keys.
//
//   stream = record*                          each way by itself: TLS 1.3 (RFC 8446, 5.2) with AES-256-GCM
//   record = data | key update                content type 23; or 22, with the bytes 24 0 0 1 0 (RFC 8446, 4.6.3)
//
// Keys follow from a RecordSecret, as those of our own records do, and not as RFC 8446, 7.2, says: both ends are ours. The kernel gives
// each key its sequence numbers, from 0. The sender counts what a key has sealed. When that is enough it says so by a key update, and all
// behind it is under the next key. A stream that is cut ends as one that was closed does, inside a record too.

#ifndef TRANSPORT_TCP_KERNEL_TLS_H_
#define TRANSPORT_TCP_KERNEL_TLS_H_

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "transport/link/byte_stream.h"
#include "transport/link/record_keys.h"
#include "transport/secure/cipher.h"
#include "transport/tcp/tcp_stream.h"

namespace lockstep {

// What the kernel is asked for. A test has one of its own. Thread-safe.
class KernelTls {
 public:
  KernelTls() = default;
  virtual ~KernelTls() = default;
  KernelTls(const KernelTls&) = delete;
  KernelTls& operator=(const KernelTls&) = delete;

  static KernelTls* OfSystem();

  // Whether it carries the streams below, key updates included. Tried at the first call, on a connection to itself, in a second at most.
  // ERRORS  UNAVAILABLE  what it does not
  absl::Status Check();

  // Makes SetKey possible on a connected socket, on which all goes on as before until then. Negative errno if it cannot:
  // -ENOTCONN where the peer has closed already, -ENOBUFS where a buffer is too small for what KernelTlsWriter::UnreleasedBytes says.
  int Attach(int socket);

  // The key of a direction, TLS_TX or TLS_RX, from the next record on. With the first, records begin: behind all that was sent, or read.
  // Negative errno if it cannot; then nothing has changed.
  int SetKey(int socket, int direction, const DirectionKey& key);

  // As the system calls, without waiting; a negative errno for errors, and never -EINTR.
  virtual int SetOption(int socket, int level, int option, const void* value, socklen_t bytes);
  virtual ssize_t Send(int socket, const msghdr& message);
  virtual ssize_t Receive(int socket, msghdr* message);
  // Whether EPOLLOUT holds, or the connection is lost. If not, an event will tell.
  virtual bool Writable(int socket);

 private:
  absl::Status Probe();

  std::once_flag checked_;
  absl::Status check_;
};

// 64 GiB, as a key of our own records seals: far from the 2^24.5 full records of 16 KiB that RFC 8446, section 5.5, allows.
inline constexpr uint64_t kKernelTlsBytesPerKey = uint64_t{1} << 36;
// What a call counts for beyond its bytes, so that many short ones come to no more blocks of AES than that.
inline constexpr uint64_t kKernelTlsRecordCharge = 64;

// The sending direction of an attached socket. Externally synchronised, as TcpStream; `ended` is as its.
class KernelTlsWriter final : public ByteStream {
 public:
  KernelTlsWriter(KernelTls* kernel, std::shared_ptr<TcpSocket> socket, bool* ended, const RecordSecret& secret,
                  uint64_t bytes_per_key = kKernelTlsBytesPerKey);

  // Any error but -EAGAIN stays. -EBADMSG if what arrives on the socket, the other way, is not genuine.
  ssize_t Write(const iovec* pieces, int count) override;
  ssize_t Read(const iovec* pieces, int count) override;  // -EBADF
  std::string Defect() const override;

  // The kernel may hold records that TCP had no room for, and drops them if the socket closes before there is. So all since the socket was
  // writable is not sent, though no memory of it is read. It is when the socket is writable, of which EPOLLOUT tells.
  uint64_t UnreleasedBytes() override;

 private:
  // As KernelTls::Send, but that errors stay.
  ssize_t Send(const msghdr& message);
  // 0, -EAGAIN, or an error that stays.
  ssize_t UpdateKey();

  KernelTls* const kernel_;
  const std::shared_ptr<TcpSocket> socket_;
  const int descriptor_;
  bool* const ended_;
  const uint64_t bytes_per_key_;
  RecordSecret secret_;
  ssize_t error_;            // 0 if there is none
  uint64_t key_bytes_ = 0;   // that the key has sealed
  uint64_t unreleased_ = 0;  // bytes, since the socket was writable
};

// The receiving direction. Externally synchronised, as TcpStream; `ended` is as its.
class KernelTlsReader final : public ByteStream {
 public:
  KernelTlsReader(KernelTls* kernel, std::shared_ptr<TcpSocket> socket, bool* ended, const RecordSecret& secret);
  // Throws away what has arrived, as far as it can be opened: TcpSocket, which does that for others, cannot.
  ~KernelTlsReader() override;

  ssize_t Write(const iovec* pieces, int count) override;  // -EBADF
  // -EBADMSG for a record that is not genuine, or is neither data nor a key update; and from then on, as any end. Asks the kernel until
  // it has no more: a key update makes it give less.
  ssize_t Read(const iovec* pieces, int count) override;
  std::string Defect() const override { return defect_; }

 private:
  // Of a record of another type than data's.
  void TakeKeyUpdate(int type, const iovec* pieces, int count, size_t bytes);
  // From now on Read returns `result`.
  void End(ssize_t result, std::string defect = "");

  KernelTls* const kernel_;
  const std::shared_ptr<TcpSocket> socket_;
  const int descriptor_;
  bool* const ended_;
  RecordSecret secret_;
  ssize_t result_ = 1;  // of End
  std::string defect_;
  // Of a key update, which comes in parts where less is asked for.
  std::array<unsigned char, 5> update_;
  size_t update_bytes_ = 0;
};

}  // namespace lockstep

#endif  // TRANSPORT_TCP_KERNEL_TLS_H_

// The kernel's TLS as its documentation and source have it (net/tls of Linux 6.14 and later), over ordinary sockets: records of 16 KiB,
// sequence numbers and content types of TLS 1.3; key updates, and EKEYEXPIRED until there is another key; reads that end where the content
// type changes; the part of a record that TCP has no room for, which is lost if the socket closes.

#ifndef TRANSPORT_TCP_FAKE_KERNEL_TLS_H_
#define TRANSPORT_TCP_FAKE_KERNEL_TLS_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "transport/secure/cipher.h"
#include "transport/tcp/kernel_tls.h"

namespace lockstep {

// Thread-safe.
class FakeKernelTls final : public KernelTls {
 public:
  // What it does not do, or not well. Changed while nobody uses it.
  struct Faults {
    int attach = 0;            // the errno of TCP_ULP: ENOENT from a kernel without TLS
    bool updates_keys = true;  // EBUSY from one before 6.14
    int set_key = 0;           // the errno of TLS_TX and TLS_RX
    bool alters_next = false;  // a bit of the next record that is sent
  };
  Faults faults;

  // One for all that have no wishes.
  static FakeKernelTls* OfAll();

  // How many so far: sockets, records and keys.
  struct Counts {
    int attached = 0;
    uint64_t sealed = 0;
    uint64_t opened = 0;
    uint64_t keys = 0;
  };
  Counts counts() const;

  int SetOption(int socket, int level, int option, const void* value, socklen_t bytes) override;
  ssize_t Send(int socket, const msghdr& message) override;
  ssize_t Receive(int socket, msghdr* message) override;
  bool Writable(int socket) override;

 private:
  struct Plain {
    unsigned char type;
    std::string bytes;
  };
  struct Socket {
    ino_t inode = 0;  // numbers of descriptors return
    std::unique_ptr<RecordCipher> sends, receives;
    uint64_t send_sequence = 0, receive_sequence = 0;
    std::string unsent;        // of the last record
    std::string arrived;       // and not opened
    std::deque<Plain> opened;  // and not read
    bool update_pending = false;
    ssize_t error = 0;     // of what has arrived, for who asks next
    bool stopped = false;  // by a header, behind which no more is read; but its error is read once
  };

  // Null if it is not attached.
  Socket* Find(int socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int SetKey(Socket* state, int direction, const void* value, socklen_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Seal(Socket* state, unsigned char type, const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of what is unsent. 0, -EAGAIN if some of it is left, or another error.
  ssize_t Flush(int socket, Socket* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes in the next record, if nothing of it is wrong with its header. 1, 0 at the end, or an error.
  ssize_t Arrive(int socket, Socket* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Opens it. The same.
  ssize_t Open(int socket, Socket* state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  std::map<int, Socket> sockets_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

// Sends these bytes as a record of another content type, as only another program than ours would.
// RETURNS  as KernelTls::Send
ssize_t SendAs(KernelTls* kernel, int socket, unsigned char type, absl::string_view bytes);

}  // namespace lockstep

#endif  // TRANSPORT_TCP_FAKE_KERNEL_TLS_H_

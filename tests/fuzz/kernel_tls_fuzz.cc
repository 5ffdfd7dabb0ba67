// A connection in the kernel's TLS records, over the fake of the kernel: what a peer that has the keys seals, records of any content type
// and key updates among them; and what somebody between the two changes and puts in.
//
//   input = bytes_per_key:u16 { event }
//   event = kind:u8 ...        kind modulo 5: 0 bytes:u16  the writer writes
//                                             1 bytes:u16  the reader reads, into two pieces
//                                             2            the next record is changed on its way
//                                             3 type:u8 text   the peer seals a record of this content type
//                                             4 text           bytes that nobody sealed

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/fork.h"
#include "tests/fuzz/fuzz.h"
#include "transport/link/record_keys.h"
#include "transport/net/epoll.h"
#include "transport/net/socket.h"
#include "transport/tcp/fake_kernel_tls.h"
#include "transport/tcp/kernel_tls.h"
#include "transport/tcp/tcp_stream.h"

namespace lockstep {
namespace {

// What sockets of the loopback hold, with so many bytes of TLS's and of keys for each call.
constexpr size_t kSentMax = 32768;
constexpr size_t kChargeBytes = 64;
constexpr unsigned char kHandshakeType = 22;
constexpr unsigned char kDataType = 23;

const std::string& KeyUpdate() {
  static const auto* const bytes = new std::string("\x18\0\0\1\0", 5);
  return *bytes;
}

RecordSecret TheSecret() {
  std::array<char, RecordSecret::kBytes> bytes;
  bytes.fill('s');
  return RecordSecret(bytes);
}

// Of the loopback, where it comes soon.
void Await(int socket, short event) {
  pollfd polled = {socket, event, 0};
  int ready;
  do ready = poll(&polled, 1, 10'000);
  while (ready < 0 && errno == EINTR);
  LOCKSTEP_CHECK(ready == 1) << ready;
}

class Connection {
 public:
  explicit Connection(uint64_t bytes_per_key) {
    static const auto* const events = new UniqueFd(*NewEpoll());
    static const auto* const listener = new UniqueFd(*Listen(*SocketAddress::Parse("127.0.0.1:0")));
    UniqueFd source = *Connect(*LocalAddress(listener->get()), Deadline::AfterMs(10'000));
    Await(listener->get(), POLLIN);
    UniqueFd target = *Accept(listener->get(), nullptr);
    from_ = *TcpSocket::Create(std::move(source), events->get(), nullptr);
    to_ = *TcpSocket::Create(std::move(target), events->get(), nullptr);
    LOCKSTEP_CHECK(kernel_.Attach(from_->get()) == 0 && kernel_.Attach(to_->get()) == 0);
    writer_ = std::make_unique<KernelTlsWriter>(&kernel_, from_, &from_ended_, TheSecret(), bytes_per_key);
    reader_ = std::make_unique<KernelTlsReader>(&kernel_, to_, &to_ended_, TheSecret());
  }

  void Write(size_t bytes) {
    std::string text(bytes, static_cast<char>('a' + writes_++ % 26));
    if (!Fits(text)) return;
    const iovec piece = {&text[0], text.size()};
    const ssize_t taken = writer_->Write(&piece, 1);
    LOCKSTEP_CHECK(taken == static_cast<ssize_t>(bytes)) << taken << ": the sockets hold more";
    data_ += text;
  }

  void Seal(unsigned char type, absl::string_view text) {
    // Padding, to TLS, which never ends a record.
    if (type == 0 || !Fits(text)) return;
    LOCKSTEP_CHECK(SendAs(&kernel_, from_->get(), type, text) == static_cast<ssize_t>(text.size()));
    if (type == kDataType) {
      data_.append(text.data(), text.size());
      return;
    }
    // The writer does not know of it, and goes on under the key that it has.
    if (!out_of_step_) hostile_ = type != kHandshakeType || text != KeyUpdate();
    out_of_step_ = true;
  }

  void AlterNext() {
    if (!std::exchange(kernel_.faults.alters_next, true)) ++altered_;
  }

  void PutIn(absl::string_view text) {
    if (!Fits(text)) return;
    LOCKSTEP_CHECK(send(from_->get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
    put_in_ = true;
  }

  // What arrived is the beginning of what was sent, and counts for nothing if an end came with it.
  ssize_t Read(size_t bytes) {
    std::string text(bytes, '\0');
    const size_t first = bytes / 3;
    const iovec pieces[] = {{&text[0], first}, {&text[first], bytes - first}};
    const ssize_t count = reader_->Read(pieces, 2);
    LOCKSTEP_CHECK(count == 0 || count == -EAGAIN || count == -EBADMSG || (count > 0 && !to_ended_)) << count;
    LOCKSTEP_CHECK((count == -EBADMSG) == !reader_->Defect().empty()) << reader_->Defect();
    if (count <= 0) return count;
    LOCKSTEP_CHECK(data_.compare(read_bytes_, count, text, 0, count) == 0) << "not what was sent";
    read_bytes_ += count;
    return count;
  }

  // Reads to the end, and says whether that is the end that it has to be.
  void End() {
    if (kernel_.faults.alters_next) --altered_;  // there was no next one
    LOCKSTEP_CHECK(shutdown(from_->get(), SHUT_WR) == 0);
    Await(to_->get(), POLLRDHUP);
    // Never more at once than there is: with more, the end would come in the same call.
    ssize_t count = 1;
    while (count > 0 && read_bytes_ < data_.size()) count = Read(std::min<size_t>(data_.size() - read_bytes_, 4096));
    if (count > 0) count = Read(1);
    LOCKSTEP_CHECK(count <= 0) << "more than was sent";
    // The fake, as the kernel, may have said what is wrong with a header in the call that gave what was before it.
    if (count == -EAGAIN) LOCKSTEP_CHECK(put_in_);
    LOCKSTEP_CHECK(count == -EAGAIN || (to_ended_ && Read(1) == count)) << "an end that does not stay";
    if (altered_ > 0 || put_in_) return;
    if (hostile_) LOCKSTEP_CHECK(count == -EBADMSG) << "a record that is neither data nor a key update";
    if (!out_of_step_) LOCKSTEP_CHECK(count == 0 && read_bytes_ == data_.size()) << "nothing was changed";
  }

  ~Connection() {
    // No socket that waits for a minute: there are not enough ports for that.
    from_->ResetWhenClosed();
    writer_ = nullptr;
    from_ = nullptr;
  }

 private:
  // False for nothing, and for what the sockets may not hold.
  bool Fits(absl::string_view text) {
    if (text.empty() || sent_bytes_ + text.size() + kChargeBytes > kSentMax) return false;
    sent_bytes_ += text.size() + kChargeBytes;
    return true;
  }

  FakeKernelTls kernel_;
  std::shared_ptr<TcpSocket> from_, to_;
  bool from_ended_ = false, to_ended_ = false;
  std::unique_ptr<KernelTlsWriter> writer_;
  std::unique_ptr<KernelTlsReader> reader_;
  std::string data_;  // that was sealed
  size_t sent_bytes_ = 0;
  size_t read_bytes_ = 0;
  int writes_ = 0;
  int altered_ = 0;           // records
  bool put_in_ = false;       // bytes
  bool out_of_step_ = false;  // a record of another type than data was sealed behind the writer's back
  bool hostile_ = false;      // the first such is no key update
};

std::string Event(char kind, const std::string& rest) { return kind + rest; }

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string head("\0\1", 2);
  const std::string write = Event(0, std::string("\0\1", 2));
  const std::string read = Event(1, std::string("\x70\0", 2));
  const auto seal = [](int type, const std::string& text) {
    return Event(3, std::string(1, static_cast<char>(type)) + Text(text));
  };
  return {
      head + write + read + write + write + read + write + Event(1, std::string("\4\1", 2)),
      head + write + Event(2, "") + write + read,
      head + write + seal(kHandshakeType, KeyUpdate()),
      head + seal(kHandshakeType, KeyUpdate().substr(0, 3)) + seal(kHandshakeType, KeyUpdate().substr(3)) + write,
      head + seal(kHandshakeType, KeyUpdate()) + Event(1, std::string("\1\0", 2)) + write,
      head + write + seal(21, std::string("\1\0", 2)) + write + read,
      head + write + seal(kDataType, "data") + Event(4, Text(std::string("\x17\3\3\0\x20", 5))) + write,
      head + write + Event(4, Text(std::string("\x17\3\3\xff\xff", 5))) + read + read + read,
  };
}

}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lockstep::fuzz::Input input(data, size);
  lockstep::Connection connection(std::max<uint64_t>(input.Take<uint16_t>(), 256));
  while (!input.empty()) {
    const int kind = input.Take<uint8_t>() % 5;
    if (kind == 0) connection.Write(input.Take<uint16_t>() % 4096);
    if (kind == 1) (void)connection.Read(input.Take<uint16_t>() % 4096 + 1);
    if (kind == 2) connection.AlterNext();
    if (kind == 3) {
      const auto type = input.Take<uint8_t>();
      connection.Seal(type, input.TakeText());
    }
    if (kind == 4) connection.PutIn(input.TakeText());
  }
  connection.End();
  return 0;
}

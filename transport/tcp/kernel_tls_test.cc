// The streams of the kernel's TLS, over a fake of the kernel, and over the system's where it has TLS.

#include "transport/tcp/kernel_tls.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/link/byte_stream.h"
#include "transport/link/record_keys.h"
#include "transport/net/epoll.h"
#include "transport/net/socket.h"
#include "transport/secure/cipher.h"
#include "transport/tcp/fake_kernel_tls.h"
#include "transport/tcp/tcp_stream.h"
#include "transport/tcp/tcp_testing.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

constexpr char kAltered[] = "a TLS record was altered, or is not from this connection";
constexpr char kNoKeyUpdate[] = "a TLS handshake record that is no key update";
constexpr size_t kHeaderBytes = 5;

RecordSecret TestSecret(char fill = 'k') {
  std::array<char, RecordSecret::kBytes> bytes;
  bytes.fill(fill);
  return RecordSecret(bytes);
}

std::string Payload(size_t bytes, uint32_t seed = 1) {
  const std::vector<unsigned char> payload = TestPayload(bytes, seed);
  return std::string(payload.begin(), payload.end());
}

// Until it comes true. By the deadline, or the test fails.
template <typename Condition>
void Await(Condition condition) {
  (void)Drive(std::vector<Transport*>(), condition);
}

// Two connected sockets.
struct Pair {
  Pair() {
    const UniqueFd listener = *Listen(TestAddress());
    first = *Connect(*LocalAddress(listener.get()), TestDeadline());
    Await([&] {
      second = *Accept(listener.get(), nullptr);
      return second.valid();
    });
  }
  UniqueFd first, second;
};

// A writer, a wire in the test's hands, and a reader.
class KernelTlsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!kernel_->Check().ok()) GTEST_SKIP() << kernel_->Check();
    Restart();
  }

  void Restart(uint64_t bytes_per_key = kKernelTlsBytesPerKey, char readers_fill = 'k') {
    writer_ = nullptr;
    reader_ = nullptr;
    Pair out, in;
    from_writer_ = std::move(out.second);
    to_reader_ = std::move(in.second);
    writers_ended_ = readers_ended_ = false;
    writers_ = *TcpSocket::Create(std::move(out.first), events_.get(), nullptr);
    readers_ = *TcpSocket::Create(std::move(in.first), events_.get(), nullptr);
    ASSERT_EQ(kernel_->Attach(writers_->get()), 0);
    ASSERT_EQ(kernel_->Attach(readers_->get()), 0);
    writer_ = std::make_unique<KernelTlsWriter>(kernel_, writers_, &writers_ended_, TestSecret(), bytes_per_key);
    reader_ = std::make_unique<KernelTlsReader>(kernel_, readers_, &readers_ended_, TestSecret(readers_fill));
  }

  ssize_t Write(const std::string& bytes, size_t from = 0) {
    const iovec piece = {const_cast<char*>(bytes.data()) + from, bytes.size() - from};
    return writer_->Write(&piece, 1);
  }
  // What has come of the writer.
  std::string Take() {
    std::string taken(1 << 20, 0);
    const ssize_t read = recv(from_writer_.get(), &taken[0], taken.size(), MSG_DONTWAIT);
    taken.resize(read > 0 ? read : 0);
    return taken;
  }
  // So many bytes of it, at least.
  std::string Take(size_t bytes) {
    std::string taken;
    Await([&] { return (taken += Take()).size() >= bytes; });
    return taken;
  }
  // A record of so many bytes, perhaps of another content type.
  std::string Record(const std::string& bytes, int type = 23) {
    if (type == 23) {
      EXPECT_EQ(Write(bytes), bytes.size());
    } else {
      EXPECT_EQ(SendAs(kernel_, writers_->get(), static_cast<unsigned char>(type), bytes), bytes.size());
    }
    return Take(kHeaderBytes + bytes.size() + 1 + RecordCipher::kTagBytes);
  }
  void Give(absl::string_view bytes) {
    ASSERT_THAT(SendAll(to_reader_.get(), bytes.data(), bytes.size(), TestDeadline()), IsOk());
  }
  ssize_t Read(std::string* bytes) {
    const iovec piece = {&(*bytes)[0], bytes->size()};
    return reader_->Read(&piece, 1);
  }
  // The same, when something has come.
  ssize_t ReadNext(std::string* bytes) {
    ssize_t read = -EAGAIN;
    Await([&] { return (read = Read(bytes)) != -EAGAIN; });
    return read;
  }
  // How reading ends that would go on for `bytes`, a call for each piece of them.
  std::string Defect(size_t bytes, size_t piece, ssize_t result = -EBADMSG) {
    std::string target(piece, '-');
    ssize_t read = 1;
    for (size_t given = 0; read > 0 && given < bytes; given += read) read = ReadNext(&target);
    EXPECT_EQ(read, result);
    EXPECT_EQ(Read(&target), result) << "for ever";
    EXPECT_TRUE(readers_ended_);
    return reader_->Defect();
  }

  FakeKernelTls fake_;
  KernelTls* const kernel_ = GetParam() ? &fake_ : KernelTls::OfSystem();
  const UniqueFd events_ = *NewEpoll();
  UniqueFd from_writer_, to_reader_;
  bool writers_ended_ = false, readers_ended_ = false;
  std::shared_ptr<TcpSocket> writers_, readers_;
  std::unique_ptr<KernelTlsWriter> writer_;
  std::unique_ptr<KernelTlsReader> reader_;
};

INSTANTIATE_TEST_SUITE_P(Kernels, KernelTlsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Fake" : "System"; });

TEST_P(KernelTlsTest, ARecordIsOneOfTls13UnderTheFirstKey) {
  const std::string record = Record("hello");
  EXPECT_EQ(record.substr(0, kHeaderBytes), std::string("\x17\3\3\0\x16", kHeaderBytes));
  std::string plain = record.substr(kHeaderBytes, 6);
  const auto bytes = [](const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); };
  const auto cipher = *RecordCipher::Create(CipherBackend::kOpenSsl, CipherMode::kEncrypt, TestSecret().Key());
  const iovec piece = {&plain[0], plain.size()};
  ASSERT_TRUE(cipher->Open(0, absl::MakeConstSpan(bytes(record), kHeaderBytes), {piece}, bytes(record) + 11,
                           reinterpret_cast<unsigned char*>(&plain[0])));
  EXPECT_EQ(plain, "hello\x17");
}

// With a key for every ten or so of the calls, so that updates come in the middle of what is read, and at its end.
TEST_P(KernelTlsTest, BytesArriveInOrderWhateverLengthsAreWrittenAndRead) {
  Restart(/*bytes_per_key=*/50'000);
  const Deadline deadline = TestDeadline();
  std::mt19937 random(20);
  std::string written, read;
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = Payload(1 + random() % (i % 10 == 0 ? 100'000 : 3000), i);
    size_t done = 0;
    while (done < bytes.size()) {
      ASSERT_FALSE(deadline.passed());
      const ssize_t more = Write(bytes, done);
      ASSERT_TRUE(more > 0 || more == -EAGAIN) << more;
      if (more > 0) done += more;
      (void)writer_->UnreleasedBytes();
      Give(Take());
      std::string target(1 + random() % (i % 7 == 0 ? 200'000 : 3000), '-');
      const ssize_t got = Read(&target);
      ASSERT_TRUE(got > 0 || got == -EAGAIN) << reader_->Defect();
      if (got > 0) read.append(target, 0, got);
    }
    written += bytes;
  }
  Await([&] {
    (void)writer_->UnreleasedBytes();
    Give(Take());
    std::string target(4096, '-');
    const ssize_t got = Read(&target);
    EXPECT_TRUE(got > 0 || got == -EAGAIN) << reader_->Defect();
    if (got > 0) read.append(target, 0, got);
    return read.size() >= written.size() || HasFailure();
  });
  EXPECT_TRUE(read == written);
  if (GetParam()) {
    EXPECT_GT(fake_.counts().keys, 12 + 2 * (written.size() / 50'000));
  }
  to_reader_.reset();
  std::string target(10, '-');
  EXPECT_EQ(ReadNext(&target), 0);
  EXPECT_EQ(Read(&target), 0);
}

TEST_P(KernelTlsTest, AKeyUpdateMayComeInParts) {
  for (const size_t piece : {1, 2, 3, 4, 5, 6}) {
    Restart(/*bytes_per_key=*/100);
    const std::string source = Payload(120);
    ASSERT_EQ(Write(source), source.size()) << "an update behind 100 bytes";
    ASSERT_EQ(Write(source), source.size());
    std::string read;
    const size_t updates = 2, records = 2 + updates;
    Give(Take(240 + 5 * updates + records * (kHeaderBytes + 17)));
    while (read.size() < 240) {
      std::string target(piece, '-');
      const ssize_t got = ReadNext(&target);
      ASSERT_GT(got, 0) << reader_->Defect();
      read.append(target, 0, got);
    }
    EXPECT_EQ(read, source + source);
  }
}

TEST_P(KernelTlsTest, EveryAlteredByteIsFound) {
  // But for the first, which says nothing: the content type is inside.
  for (size_t at = 1; at < kHeaderBytes + 10 + 17; ++at) {
    SCOPED_TRACE(at);
    Restart();
    std::string record = Record("some bytes");
    record[at] ^= 1;
    Give(record);
    if (at == 3) {  // waits for what the length claims
      Give(std::string(300, 'x'));
    } else if (at == 4) {
      Give("x");
    }
    EXPECT_EQ(Defect(10, 10), kAltered);
  }
  Restart();
  std::string record = Record("some bytes");
  record[3] = '\x7f';
  Give(record);
  EXPECT_EQ(Defect(10, 10), kAltered) << "before it is waited for";
}

TEST_P(KernelTlsTest, WhatIsRepeatedLostOrMovedIsFound) {
  for (const auto& order : {std::vector<int>{0, 0}, {1}, {0, 2}, {1, 0}}) {
    Restart();
    std::vector<std::string> records;
    for (const char* const bytes : {"0000", "1111", "2222"}) records.push_back(Record(bytes));
    for (const int record : order) Give(records[record]);
    EXPECT_EQ(Defect(100, 4), kAltered);
  }
}

TEST_P(KernelTlsTest, ARecordOfAnotherConnectionIsNotTaken) {
  Restart(kKernelTlsBytesPerKey, /*readers_fill=*/'x');
  Give(Record("hello"));
  EXPECT_EQ(Defect(5, 5), kAltered);
}

TEST_P(KernelTlsTest, WhatCameBeforeABadRecordInACallCountsForNothing) {
  std::string records = Record("some bytes");
  records += Record("some bytes");
  records.back() ^= 1;
  Give(records);
  std::string target(20, '-');
  ssize_t read;
  while ((read = Read(&target)) > 0 && read < 20) {
  }
  EXPECT_EQ(read, -EBADMSG);
  EXPECT_EQ(reader_->Defect(), kAltered);
}

TEST_P(KernelTlsTest, ACutRecordIsTheEnd) {
  Give(Record("hello").substr(0, 20));
  to_reader_.reset();
  EXPECT_EQ(Defect(5, 5, 0), "");
}

TEST_P(KernelTlsTest, AnythingButDataAndKeyUpdatesIsRefused) {
  Give(Record(std::string("\1\0", 2), 21));
  EXPECT_EQ(Defect(5, 5), "a TLS record of content type 21, which is neither data nor a key update");
  const std::string others[] = {
      std::string("\x18\0\0\1\1", 5),    // one that asks for another in return
      std::string("\x18\0\0\1\0\0", 6),  // with something behind it
      std::string("\x18\0\0", 3),        // cut
      std::string("\x04\0\0\1\0", 5),    // a ticket
  };
  for (const std::string& other : others) {
    for (const size_t piece : {1, 5, 100}) {
      Restart();
      Give(Record(other, 22));
      Give(Record("hello"));
      EXPECT_EQ(Defect(5, piece), kNoKeyUpdate) << other.size() << " bytes, read " << piece << " at a time";
    }
  }
}

TEST_P(KernelTlsTest, AFullSocketSaysWhatIsNotSentYet) {
  Restart(/*bytes_per_key=*/100'000);
  const std::string source = Payload(10 << 20);
  EXPECT_EQ(writer_->UnreleasedBytes(), 0);
  size_t written = 0;
  for (ssize_t more; (more = Write(source, written)) != -EAGAIN; written += more) ASSERT_GT(more, 0);
  ASSERT_GT(written, 0);
  ASSERT_LT(written, source.size());
  EXPECT_EQ(writer_->UnreleasedBytes(), written) << "since it was writable";
  std::string read;
  std::string target(1 << 20, '-');
  Await([&] {
    if (const ssize_t more = written < source.size() ? Write(source, written) : 0; more > 0) written += more;
    (void)writer_->UnreleasedBytes();
    Give(Take());
    const ssize_t got = Read(&target);
    EXPECT_TRUE(got > 0 || got == -EAGAIN) << reader_->Defect();
    if (got > 0) read.append(target, 0, got);
    return read.size() >= source.size() || HasFailure();
  });
  EXPECT_TRUE(read == source);
  EXPECT_EQ(writer_->UnreleasedBytes(), 0);
}

TEST_P(KernelTlsTest, NothingIsWrittenBehindTheEnd) {
  writers_ended_ = true;
  EXPECT_EQ(Write("hello"), -EPIPE);
  EXPECT_EQ(Take(), "");
}

TEST_P(KernelTlsTest, AReaderThatGoesLeavesNothingUnread) {
  Give(Record(Payload(1000)));
  std::string target(10, '-');
  ASSERT_EQ(ReadNext(&target), 10);
  Give(Record("unread"));
  const uint64_t before = fake_.counts().opened;
  reader_ = nullptr;
  if (GetParam()) {
    EXPECT_EQ(fake_.counts().opened, before + 1);
  }
  readers_ = nullptr;
  char byte;
  ssize_t end = -1;
  Await([&] { return (end = recv(to_reader_.get(), &byte, 1, 0)) >= 0 || (errno != EAGAIN && errno != EINTR); });
  EXPECT_EQ(end, 0) << "not reset";
}

// The socket has one error: who reads or writes first is told.
TEST_P(KernelTlsTest, AWriterSaysWhyItFails) {
  const struct {
    size_t at;
    char to;
    bool reads_first;
  } cases[] = {
      {30, 'x', true},     // the tag, which reading finds
      {3, '\x7f', false},  // what is wrong with a header, its coming
      {4, '\3', false},
      {2, '\7', false},
  };
  for (const auto& altered : cases) {
    SCOPED_TRACE(altered.at);
    Restart();
    bool ended = false;
    KernelTlsWriter back(kernel_, readers_, &ended, TestSecret());
    std::string record = Record("some bytes");
    record[altered.at] = altered.to;
    Give(record);
    if (altered.reads_first) {
      EXPECT_EQ(Defect(5, 5), kAltered);
    }
    const iovec piece = {&record[0], record.size()};
    ssize_t written = 0;
    Await([&] { return (written = back.Write(&piece, 1)) <= 0; });
    EXPECT_EQ(written, -EBADMSG);
    EXPECT_EQ(back.Defect(), "what arrives on this connection is not what the peer sends");
    if (!altered.reads_first) {
      EXPECT_EQ(Defect(5, 5), kAltered);
    }
  }
}

TEST_P(KernelTlsTest, ABadHeaderIsToldOnceAndEndsTheReading) {
  std::string record = Record("some bytes");
  record[2] = '\7';
  Give(record);
  char byte;
  iovec piece = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  ssize_t read = -EAGAIN;
  Await([&] { return (read = kernel_->Receive(readers_->get(), &message)) != -EAGAIN; });
  EXPECT_EQ(read, -EINVAL);
  EXPECT_EQ(kernel_->Receive(readers_->get(), &message), -EAGAIN);
  Give(Record("some bytes"));
  EXPECT_EQ(kernel_->Receive(readers_->get(), &message), -EAGAIN);
}

TEST_P(KernelTlsTest, GoesOneWay) {
  iovec piece = {nullptr, 0};
  EXPECT_EQ(writer_->Read(&piece, 1), -EBADF);
  EXPECT_EQ(reader_->Write(&piece, 1), -EBADF);
}

// On the fake alone.
class FailingKernelTlsTest : public KernelTlsTest {};
INSTANTIATE_TEST_SUITE_P(Kernels, FailingKernelTlsTest, testing::Values(true),
                         [](const auto&) { return std::string("Fake"); });

TEST_P(FailingKernelTlsTest, NothingGoesUnderAKeyThatIsDueForAnother) {
  Restart(/*bytes_per_key=*/100);
  ASSERT_EQ(Write(Payload(200)), 200);
  fake_.faults.set_key = ENOMEM;
  EXPECT_EQ(Write("hello"), -ENOMEM);
  fake_.faults.set_key = 0;
  EXPECT_EQ(Write("hello"), -ENOMEM) << "for ever";
}

TEST_P(FailingKernelTlsTest, AReaderWithoutTheNextKeyIsAtItsEnd) {
  Restart(/*bytes_per_key=*/100);
  ASSERT_EQ(Write(Payload(200)), 200);
  Give(Take(205 + 3 * 22));
  fake_.faults.set_key = ENOMEM;
  EXPECT_EQ(Defect(200, 200, -ENOMEM), "");
}

TEST_P(FailingKernelTlsTest, WithoutAFirstKeyNothingIsSentOrTaken) {
  fake_.faults.set_key = ENOMEM;
  Restart();
  fake_.faults.set_key = 0;
  EXPECT_EQ(Write("hello"), -ENOMEM);
  EXPECT_EQ(Defect(5, 5, -ENOMEM), "");
}

TEST(KernelTlsCheck, SaysWhyAKernelIsNotUsed) {
  FakeKernelTls good, none, old, other, bad;
  EXPECT_THAT(good.Check(), IsOk());
  EXPECT_THAT(good.Check(), IsOk());
  EXPECT_EQ(good.counts().attached, 2) << "once, at both ends";
  EXPECT_GT(good.counts().keys, 4) << "of both ends, and some updates";
  none.faults.attach = ENOENT;
  EXPECT_THAT(none.Check(), StatusIs(Code::kUnavailable, "TCP_ULP tls: No such file or directory"));
  old.faults.updates_keys = false;
  EXPECT_THAT(old.Check(), StatusIs(Code::kUnavailable, "TLS records to itself, write: Device or resource busy"));
  other.faults.set_key = EINVAL;
  EXPECT_THAT(other.Check(), StatusIs(Code::kUnavailable, "TLS records to itself, write: Invalid argument"));
  bad.faults.alters_next = true;
  EXPECT_THAT(bad.Check(), StatusIs(Code::kUnavailable, HasSubstr(kAltered)));
}

}  // namespace
}  // namespace lockstep

// The kernel's TLS: its streams over a fake of the kernel, and over the system's where it has TLS; and ranks that have it, or not.

#include "transport/tcp/kernel_tls.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/fork.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "tests/transport_testing_credentials.h"
#include "transport/link/byte_stream.h"
#include "transport/link/record_stream.h"
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

// Two connected sockets.
struct Pair {
  Pair() {
    const UniqueFd listener = *Listen(TestAddress());
    first = *Connect(*LocalAddress(listener.get()), TestDeadline());
    while (!second.valid()) second = *Accept(listener.get(), nullptr);
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
  // A record of so many bytes, perhaps of another content type.
  std::string Record(const std::string& bytes, int type = 23) {
    if (type == 23) {
      EXPECT_EQ(Write(bytes), bytes.size());
    } else {
      iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
      alignas(cmsghdr) char control[CMSG_SPACE(1)] = {};
      msghdr message = {};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const said = CMSG_FIRSTHDR(&message);
      *said = {};
      said->cmsg_level = SOL_TLS;
      said->cmsg_type = 1;  // TLS_SET_RECORD_TYPE
      said->cmsg_len = CMSG_LEN(1);
      *CMSG_DATA(said) = static_cast<unsigned char>(type);
      EXPECT_EQ(kernel_->Send(writers_->get(), message), bytes.size());
    }
    std::string record;
    const size_t length = kHeaderBytes + bytes.size() + 1 + RecordCipher::kTagBytes;
    while (record.size() < length) record += Take();
    return record;
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
    ssize_t read;
    while ((read = Read(bytes)) == -EAGAIN) {
    }
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
  std::mt19937 random(20);
  std::string written, read;
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = Payload(1 + random() % (i % 10 == 0 ? 100'000 : 3000), i);
    size_t done = 0;
    while (done < bytes.size()) {
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
  while (read.size() < written.size()) {
    (void)writer_->UnreleasedBytes();
    Give(Take());
    std::string target(4096, '-');
    const ssize_t got = Read(&target);
    ASSERT_TRUE(got > 0 || got == -EAGAIN) << reader_->Defect();
    if (got > 0) read.append(target, 0, got);
  }
  EXPECT_TRUE(read == written);
  if (GetParam()) {
    EXPECT_GT(fake_.keys(), 12 + 2 * (written.size() / 50'000));
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
    std::string wire, read;
    const size_t updates = 2, records = 2 + updates;
    while (wire.size() < 240 + 5 * updates + records * (kHeaderBytes + 17)) wire += Take();
    Give(wire);
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
  while (read.size() < source.size()) {
    if (const ssize_t more = written < source.size() ? Write(source, written) : 0; more > 0) written += more;
    (void)writer_->UnreleasedBytes();
    Give(Take());
    const ssize_t got = Read(&target);
    ASSERT_TRUE(got > 0 || got == -EAGAIN) << reader_->Defect();
    if (got > 0) read.append(target, 0, got);
  }
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
  const uint64_t before = fake_.opened();
  reader_ = nullptr;
  if (GetParam()) {
    EXPECT_EQ(fake_.opened(), before + 1);
  }
  readers_ = nullptr;
  char byte;
  ssize_t end;
  while ((end = recv(to_reader_.get(), &byte, 1, 0)) < 0 && (errno == EAGAIN || errno == EINTR)) {
  }
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
    ssize_t written;
    while ((written = back.Write(&piece, 1)) > 0) {
    }
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
  ssize_t read;
  while ((read = kernel_->Receive(readers_->get(), &message)) == -EAGAIN) {
  }
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
  std::string wire;
  while (wire.size() < 205 + 3 * 22) wire += Take();
  Give(wire);
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
  EXPECT_EQ(good.attached(), 2) << "once, at both ends";
  EXPECT_GT(good.keys(), 4) << "of both ends, and some updates";
  none.faults.attach = ENOENT;
  EXPECT_THAT(none.Check(), StatusIs(Code::kUnavailable, "TCP_ULP tls: No such file or directory"));
  old.faults.updates_keys = false;
  EXPECT_THAT(old.Check(), StatusIs(Code::kUnavailable, "TLS records to itself, write: Device or resource busy"));
  other.faults.set_key = EINVAL;
  EXPECT_THAT(other.Check(), StatusIs(Code::kUnavailable, "TLS records to itself, write: Invalid argument"));
  bad.faults.alters_next = true;
  EXPECT_THAT(bad.Check(), StatusIs(Code::kUnavailable, HasSubstr(kAltered)));
}

class KernelTlsTransportTest : public TcpFixture {
 protected:
  // Before their kernels go.
  ~KernelTlsTransportTest() override { ranks_.clear(); }

  // Two ranks, each with a kernel.
  void CreateOver(
      KernelTls* first, KernelTls* second,
      const std::function<void(TcpTransportOptions*)>& change = [](TcpTransportOptions*) {}) {
    Create(2, [&](TcpTransportOptions* options) {
      options->credentials = TestCredentials(SecurityLevel::kEncrypt);
      options->kernel_tls = options->rank == Rank(0) ? first : second;
      change(options);
    });
  }
  void ExpectExchanges() {
    for (int i = 0; i < 2; ++i) {
      ExpectExchange(0, 1, /*channel=*/0);
      ExpectExchange(1, 0, /*channel=*/0);
      ExpectExchange(1, 0, /*channel=*/1);
      ExpectExchange(0, 1, /*channel=*/1);
    }
  }

  FakeKernelTls kernels_[2];
};

TEST_F(KernelTlsTransportTest, RanksThatBothHaveItUseIt) {
  CreateOver(&kernels_[0], &kernels_[1]);
  const uint64_t before[] = {kernels_[0].sealed(), kernels_[0].opened(), kernels_[1].sealed(), kernels_[1].opened()};
  ExpectExchanges();
  const std::vector<unsigned char>& data = LargePayload();
  std::vector<unsigned char> target(data.size());
  EXPECT_THAT(Exchange(0, 1, 0, data.data(), target.data(), data.size()), IsOk());
  EXPECT_TRUE(target == data);
  EXPECT_GT(kernels_[0].sealed() - before[0], data.size() / 16384);
  EXPECT_EQ(kernels_[0].sealed() - before[0], kernels_[1].opened() - before[3]);
  EXPECT_GT(kernels_[1].sealed() - before[2], 0);
  EXPECT_EQ(kernels_[1].sealed() - before[2], kernels_[0].opened() - before[1]);
}

TEST_F(KernelTlsTransportTest, RanksOfWhichOneHasItUseRecordsOfOurOwn) {
  for (const bool old : {false, true}) {
    for (const int with : {0, 1}) {
      FakeKernelTls has, lacks;
      lacks.faults.attach = old ? 0 : ENOENT;
      lacks.faults.updates_keys = !old;
      ranks_.clear();
      CreateOver(with == 0 ? &has : &lacks, with == 0 ? &lacks : &has);
      const uint64_t before = has.sealed() + lacks.sealed();
      ExpectExchanges();
      EXPECT_EQ(has.sealed() + lacks.sealed(), before);
    }
  }
}

TEST_F(KernelTlsTransportTest, ASocketThatCannotHaveItUsesRecordsOfOurOwn) {
  for (FakeKernelTls& kernel : kernels_) {
    ASSERT_THAT(kernel.Check(), IsOk());
    kernel.faults.attach = ENOTCONN;
    CreateOver(&kernels_[0], &kernels_[1]);
    const uint64_t before = kernels_[0].sealed() + kernels_[1].sealed();
    ExpectExchanges();
    EXPECT_EQ(kernels_[0].sealed() + kernels_[1].sealed(), before);
    kernel.faults.attach = 0;
    ranks_.clear();
  }
}

TEST_F(KernelTlsTransportTest, RanksOfWhichOneHasSmallBuffersUseRecordsOfOurOwn) {
  for (int small = 0; small < 4; ++small) {
    CreateOver(&kernels_[0], &kernels_[1], [&](TcpTransportOptions* options) {
      if (options->rank != Rank(small / 2)) return;
      (small % 2 == 0 ? options->tuning.send_buffer_bytes : options->tuning.receive_buffer_bytes) = 19'000;
    });
    const uint64_t before = kernels_[0].sealed() + kernels_[1].sealed();
    ExpectExchanges();
    EXPECT_EQ(kernels_[0].sealed() + kernels_[1].sealed(), before) << small;
    ranks_.clear();
  }
}

TEST_F(KernelTlsTransportTest, IsForEncryptedConnectionsOfOneSocket) {
  CreateOver(&kernels_[0], &kernels_[1], [](TcpTransportOptions* options) { options->sockets = 2; });
  ExpectExchanges();
  ranks_.clear();
  CreateOver(&kernels_[0], &kernels_[1], [](TcpTransportOptions* options) {
    options->credentials = TestCredentials(SecurityLevel::kAuthenticate);
    options->records_on_one_host = true;
  });
  ExpectExchanges();
  EXPECT_EQ(kernels_[0].attached() + kernels_[1].attached(), 0);
}

TEST_F(KernelTlsTransportTest, AnAnswerThatTakesWhatWasNotOfferedIsNone) {
  FakeListener listener;
  Create(2);
  ASSERT_THAT(rank(0)->SetPeers({rank(0)->address(), listener.address()}), IsOk());
  TestOperation send;
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), "x", 1, &send);
  DriveAll([&] {
    listener.Serve(Encoded({kTcpProtocolVersion, Verdict::kAccepted, 7, /*kernel_tls=*/true}));
    return send.done();
  });
  EXPECT_THAT(send.status, StatusIs(Code::kFailedPrecondition, HasSubstr("is no Lockstep peer")));
}

TEST_F(KernelTlsTransportTest, AnAlteredRecordIsDataLoss) {
  CreateOver(&kernels_[0], &kernels_[1]);
  ExpectExchange(0, 1);
  kernels_[0].faults.alters_next = true;
  const std::vector<unsigned char> data = TestPayload(300'000, 7);
  std::vector<unsigned char> target(data.size());
  TestOperation send, receive;
  rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
  rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), data.size(), &send);
  EXPECT_TRUE(DriveAll([&] { return receive.done(); }));
  EXPECT_THAT(receive.status, StatusIs(Code::kDataLoss,
                                       "recv from rank 0 over tcp " + rank(0)->address().ToString() + ": " + kAltered));
  rank(0)->Abort(absl::AbortedError("the test is over"));
  EXPECT_TRUE(send.done());
}

TEST_F(KernelTlsTransportTest, ARankThatCannotSetAKeyHasLostTheConnection) {
  for (int failing = 0; failing < 2; ++failing) {
    CreateOver(&kernels_[0], &kernels_[1]);
    ExpectExchange(0, 1);
    kernels_[failing].faults.set_key = ENOMEM;
    std::vector<unsigned char> target(1);
    TestOperation send, receive;
    rank(1)->Receive(Rank(0), /*channel=*/1, TestEnvelope(1), CopySink(&target), &receive);
    rank(0)->Send(Rank(1), /*channel=*/1, TestEnvelope(1), "x", 1, &send);
    const TestOperation& told = failing == 0 ? send : receive;
    EXPECT_TRUE(DriveAll([&] { return told.done(); }));
    EXPECT_THAT(told.status, StatusIs(Code::kUnavailable, HasSubstr("connection lost: Cannot allocate memory")));
    kernels_[failing].faults.set_key = 0;
    for (auto& rank : ranks_) rank->Abort(absl::AbortedError("the test is over"));
    EXPECT_TRUE(send.done() && receive.done());
    ranks_.clear();
  }
}

// The part of a record that TCP had no room for is lost with its socket: so the send is not over before. Some of these messages fill what
// there is of buffers up to their last record. On the system's kernel as well, if it has TLS.
TEST_F(KernelTlsTransportTest, WhatWasSentArrivesThoughItsRankCloses) {
  std::vector<KernelTls*> kernels = {&kernels_[0]};
  if (KernelTls::OfSystem()->Check().ok()) kernels.push_back(KernelTls::OfSystem());
  for (KernelTls* const kernel : kernels) {
    int full = 0;
    for (size_t bytes = 20'000; bytes < 400'000; bytes += 4000) {
      CreateOver(kernel, kernel, [](TcpTransportOptions* options) {
        options->tuning.send_buffer_bytes = 20'000;
        options->tuning.receive_buffer_bytes = 60'000;
      });
      ExpectExchange(0, 1);
      const std::vector<unsigned char> data = TestPayload(bytes, 1);
      std::vector<unsigned char> target(bytes);
      TestOperation send, receive;
      rank(1)->Receive(Rank(0), 0, TestEnvelope(1), CopySink(&target), &receive);
      rank(0)->Send(Rank(1), 0, TestEnvelope(1), data.data(), bytes, &send);
      for (int i = 0; i < 100; ++i) rank(0)->Progress();
      full += !send.done();
      EXPECT_TRUE(DriveAll([&] { return send.done(); }));
      ASSERT_THAT(send.status, IsOk());
      ranks_[0] = nullptr;
      EXPECT_TRUE(DriveAll([&] { return receive.done(); }));
      ASSERT_THAT(receive.status, IsOk()) << bytes;
      ASSERT_TRUE(target == data);
      ranks_.clear();
    }
    EXPECT_GT(full, 0);
  }
}

}  // namespace
}  // namespace lockstep

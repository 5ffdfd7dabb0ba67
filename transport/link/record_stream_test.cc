#include "transport/link/record_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

// What lies between two ends. Owned by the test, which outlives the streams.
struct Wire {
  std::string bytes;                // written, and not yet read
  size_t room = size_t{1} << 30;    // to write, before EAGAIN
  size_t call_bytes_max = 1 << 30;  // of a read
  int writes = 0;                   // calls
  bool closed = false;
};

class WireStream final : public ByteStream {
 public:
  explicit WireStream(Wire* wire) : wire_(wire) {}

  ssize_t Write(const iovec* pieces, int count) override {
    EXPECT_LE(count, kPiecesMax);
    ++wire_->writes;
    if (wire_->room == 0) return -EAGAIN;
    size_t written = 0;
    for (int i = 0; i < count; ++i) {
      const size_t piece = std::min(wire_->room, pieces[i].iov_len);
      wire_->bytes.append(static_cast<const char*>(pieces[i].iov_base), piece);
      wire_->room -= piece;
      written += piece;
    }
    return static_cast<ssize_t>(written);
  }

  ssize_t Read(const iovec* pieces, int count) override {
    EXPECT_EQ(count, 1);
    if (wire_->bytes.empty()) return wire_->closed ? 0 : -EAGAIN;
    const size_t read = std::min({wire_->bytes.size(), wire_->call_bytes_max, pieces->iov_len});
    std::memcpy(pieces->iov_base, wire_->bytes.data(), read);
    wire_->bytes.erase(0, read);
    return static_cast<ssize_t>(read);
  }

 private:
  Wire* const wire_;
};

RecordSecret TestSecret(char fill = 'k') {
  std::array<char, RecordSecret::kBytes> bytes;
  bytes.fill(fill);
  return RecordSecret(bytes);
}

class RecordStreamTest : public testing::TestWithParam<SecurityLevel> {
 protected:
  RecordStreamTest() { Restart(); }

  void Restart(uint64_t records_per_key = kRecordsPerKey, char readers_fill = 'k') {
    wire_ = Wire();
    writer_ =
        std::make_unique<RecordWriter>(std::make_unique<WireStream>(&wire_), GetParam(), TestSecret(), records_per_key);
    reader_ = std::make_unique<RecordReader>(std::make_unique<WireStream>(&wire_), GetParam(), TestSecret(readers_fill),
                                             records_per_key);
  }

  // As a link does: after a call that took less, it goes on with what was not taken.
  ssize_t Write(const std::string& bytes, size_t from = 0) {
    const iovec piece = {const_cast<char*>(bytes.data()) + from, bytes.size() - from};
    return writer_->Write(&piece, 1);
  }
  ssize_t Read(std::string* bytes) {
    const iovec piece = {&(*bytes)[0], bytes->size()};
    return reader_->Read(&piece, 1);
  }
  // At most so many bytes, of which `read` gets what came.
  ssize_t ReadBy(bool view, size_t bytes, std::string* read) {
    std::string target(bytes, '-');
    const unsigned char* data = reinterpret_cast<const unsigned char*>(target.data());
    const ssize_t got = view ? reader_->View(bytes, &data) : Read(&target);
    if (got > 0) read->append(reinterpret_cast<const char*>(data), got);
    return got;
  }
  static std::string Payload(size_t bytes, uint32_t seed = 1) {
    const std::vector<unsigned char> payload = TestPayload(bytes, seed);
    return std::string(payload.begin(), payload.end());
  }
  // What a read of so many bytes gives, and the reader's word on what is wrong.
  std::string Defect(size_t bytes, ssize_t result = -EBADMSG) {
    std::string target(bytes, '-');
    EXPECT_EQ(Read(&target), result);
    EXPECT_EQ(Read(&target), result) << "for ever";
    return reader_->Defect();
  }

  Wire wire_;
  std::unique_ptr<RecordWriter> writer_;
  std::unique_ptr<RecordReader> reader_;
};

INSTANTIATE_TEST_SUITE_P(Levels, RecordStreamTest,
                         testing::Values(SecurityLevel::kAuthenticate, SecurityLevel::kEncrypt),
                         [](const auto& info) { return Name(info.param); });

TEST_P(RecordStreamTest, ARecordLooksAsTheDocumentSays) {
  EXPECT_EQ(Write("hello"), 5);
  EXPECT_EQ(Write("again"), 5);
  ASSERT_EQ(wire_.bytes.size(), 2 * (kRecordOverheadBytes + 5));
  const std::string second = wire_.bytes.substr(kRecordOverheadBytes + 5);
  EXPECT_EQ(second.substr(0, 16), std::string("\5\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(second.substr(16, 5) == "again", GetParam() == SecurityLevel::kAuthenticate);
}

TEST_P(RecordStreamTest, BytesArriveInOrderWhateverLengthsAreWrittenAndRead) {
  wire_.call_bytes_max = 50'000;
  std::mt19937 random(20);
  std::string written, read;
  for (int i = 0; i < 300; ++i) {
    const std::string bytes = Payload(1 + random() % (i % 10 == 0 ? 200'000 : 3000), i);
    ASSERT_EQ(Write(bytes), bytes.size());
    written += bytes;
    const ssize_t got = ReadBy(/*view=*/i % 3 == 0, 1 + random() % (i % 7 == 0 ? 200'000 : 3000), &read);
    ASSERT_TRUE(got > 0 || got == -EAGAIN);
  }
  std::string rest(written.size() - read.size(), '-');
  EXPECT_EQ(Read(&rest), rest.size());
  EXPECT_TRUE(read + rest == written);
  EXPECT_EQ(Read(&rest), -EAGAIN);
  wire_.closed = true;
  EXPECT_EQ(Read(&rest), 0);
}

TEST_P(RecordStreamTest, WritesAndReadsManyPieces) {
  std::string source = Payload(17 * 5000), target(source.size(), '-');
  iovec from[ByteStream::kPiecesMax], to[ByteStream::kPiecesMax];
  for (int i = 0; i < ByteStream::kPiecesMax; ++i) {
    from[i] = {&source[i * 5000], 5000};
    to[i] = {&target[i * 5000], 5000};
  }
  EXPECT_EQ(writer_->Write(from, ByteStream::kPiecesMax), source.size());
  EXPECT_EQ(reader_->Read(to, ByteStream::kPiecesMax), target.size());
  EXPECT_TRUE(source == target);
}

TEST_P(RecordStreamTest, WhatIsLongerThanARecordIsCutBehindItsHeader) {
  for (const size_t bytes : {size_t{1}, size_t{4000}, kRecordPayloadBytesMax}) {
    Restart();
    ASSERT_EQ(Write(Payload(bytes)), bytes);
    EXPECT_EQ(wire_.bytes.size(), bytes + kRecordOverheadBytes);
  }
  Restart();
  std::string head = Payload(48), source = Payload(4 * kRecordCutBytes, 2);
  const iovec pieces[] = {{&head[0], 0}, {&head[0], head.size()}, {&source[0], source.size()}};
  ASSERT_EQ(writer_->Write(pieces + 1, 2), head.size() + source.size());
  std::vector<uint32_t> lengths;
  for (size_t at = 0; at < wire_.bytes.size(); at += kRecordOverheadBytes + lengths.back())
    lengths.push_back(LoadLittleEndian<uint32_t>(reinterpret_cast<const unsigned char*>(&wire_.bytes[at])));
  EXPECT_THAT(lengths, testing::ElementsAre(48, kRecordCutBytes, kRecordCutBytes, kRecordCutBytes, kRecordCutBytes));
  ASSERT_EQ(writer_->Write(pieces, 3), head.size() + source.size()) << "behind an empty piece";
}

TEST_P(RecordStreamTest, ReadsAheadWhereMessagesAreLong) {
  const std::string source = Payload(4 * kRecordCutBytes);
  ASSERT_EQ(Write("some"), 4);
  ASSERT_EQ(Write("more"), 4);
  std::string target(4, '-');
  EXPECT_EQ(Read(&target), 4);
  EXPECT_EQ(wire_.bytes.size(), kRecordOverheadBytes + 4) << "these are short";
  EXPECT_EQ(Read(&target), 4);
  ASSERT_EQ(Write(source), source.size());
  ASSERT_EQ(Write("next"), 4);
  std::string long_target(source.size(), '-');
  EXPECT_EQ(Read(&long_target), source.size());
  EXPECT_TRUE(long_target == source);
  EXPECT_EQ(wire_.bytes, "");
  EXPECT_EQ(Read(&target), 4);
  EXPECT_EQ(target, "next");
  EXPECT_EQ(Read(&target), -EAGAIN);
}

// EAGAIN below after every number of bytes: the writer goes on with the same bytes, and says what has left in whole records only.
TEST_P(RecordStreamTest, ABlockedWriteGoesOnAtAnyByte) {
  for (const size_t bytes : {size_t{5}, size_t{3000}}) {
    const std::string source = Payload(bytes);
    const size_t step = bytes > 100 ? 97 : 1;
    for (size_t room = 0; room < bytes + kRecordOverheadBytes; room += step) {
      Restart();
      wire_.room = room;
      ASSERT_EQ(Write(source), -EAGAIN) << room;
      ASSERT_EQ(Write(source), -EAGAIN) << room;
      wire_.room = 1;
      const ssize_t more = Write(source);
      wire_.room = 1 << 20;
      ASSERT_EQ(more == -EAGAIN ? Write(source) : more, bytes) << room;
      std::string target(bytes, '-');
      ASSERT_EQ(Read(&target), bytes) << room;
      ASSERT_EQ(target, source) << room;
    }
  }
}

TEST_P(RecordStreamTest, ABlockedBatchGoesOnAtAnyByte) {
  const std::string source = Payload(kRecordBatch * kRecordCutBytes);
  for (const size_t room : {size_t{1}, size_t{9973}, kRecordBytesMax - 1, kRecordBytesMax, 2 * kRecordBytesMax + 17}) {
    Restart();
    for (size_t written = 0; written < source.size();) {
      wire_.room = room;
      const ssize_t more = Write(source, written);
      ASSERT_TRUE(more == -EAGAIN || (more > 0 && more % kRecordCutBytes == 0)) << room;
      if (more > 0) written += more;
    }
    std::string target(source.size(), '-');
    ASSERT_EQ(Read(&target), source.size()) << room;
    ASSERT_TRUE(target == source) << room;
  }
}

// And no more of them, nor more pieces than it takes: WireStream looks.
TEST_P(RecordStreamTest, ABatchGoesIntoOneCallOfTheStreamBelow) {
  std::string head = Payload(48), source = Payload((2 * kRecordBatch - 1) * kRecordCutBytes, 2);
  const iovec pieces[] = {{&head[0], head.size()}, {&source[0], source.size()}};
  EXPECT_EQ(writer_->Write(pieces, 2), head.size() + source.size());
  EXPECT_EQ(wire_.writes, 2);
  std::string target(head.size() + source.size(), '-');
  EXPECT_EQ(Read(&target), target.size());
  EXPECT_TRUE(target == head + source);
}

// As a reduction does: from an address as aligned as any element needs, whole records.
TEST_P(RecordStreamTest, WhatIsViewedLiesAligned) {
  const std::string source = Payload((size_t{256} << 10) + 48);
  ASSERT_EQ(Write(source), source.size());
  std::string read;
  const unsigned char* data = nullptr;
  for (int i = 0; read.size() < source.size(); ++i) {
    const ssize_t viewed = reader_->View(source.size() - read.size(), &data);
    ASSERT_GT(viewed, 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 16, 0) << i;
    EXPECT_TRUE(read.size() + viewed == source.size() || viewed == kRecordCutBytes) << i;
    read.append(reinterpret_cast<const char*>(data), viewed);
  }
  EXPECT_TRUE(read == source);
  EXPECT_EQ(reader_->View(1, &data), -EAGAIN);
}

TEST_P(RecordStreamTest, AWriteThatFillsTheStreamBelowCountsWholeRecords) {
  const std::string source = Payload(200'000);
  wire_.room = kRecordBytesMax + 100;
  EXPECT_EQ(Write(source), kRecordCutBytes);
  EXPECT_EQ(Write(source, kRecordCutBytes), -EAGAIN);
  wire_.room = 1 << 20;
  EXPECT_EQ(Write(source, kRecordCutBytes), source.size() - kRecordCutBytes);
  std::string target(source.size(), '-');
  EXPECT_EQ(Read(&target), target.size());
  EXPECT_TRUE(target == source);
}

TEST_P(RecordStreamTest, ARecordMayArriveByteByByte) {
  const std::string source = Payload(100);
  ASSERT_EQ(Write(source), 100);
  ASSERT_EQ(Write(source), 100);
  std::string arriving;
  arriving.swap(wire_.bytes);
  std::string read;
  for (const char byte : arriving) {
    wire_.bytes.push_back(byte);
    std::string target(150, '-');
    const ssize_t got = Read(&target);
    if (got == -EAGAIN) continue;
    ASSERT_GT(got, 0);
    read.append(target, 0, got);
  }
  EXPECT_EQ(read, source + source);
}

TEST_P(RecordStreamTest, NeitherEndNeedsToBeToldOfANewKey) {
  constexpr uint64_t kPerKey = 4;
  Restart(kPerKey);
  for (int i = 0; i < 30; ++i) {
    const std::string source = Payload(100, i);
    ASSERT_EQ(Write(source), 100);
    EXPECT_EQ(LoadLittleEndian<uint32_t>(reinterpret_cast<const unsigned char*>(wire_.bytes.data()) + 4), i / kPerKey);
    std::string target(100, '-');
    ASSERT_EQ(Read(&target), 100);
    ASSERT_EQ(target, source);
  }
  // One that is due under the next key, and was sealed under the last.
  Restart(kPerKey);
  reader_ = std::make_unique<RecordReader>(std::make_unique<WireStream>(&wire_), GetParam(), TestSecret(), kPerKey - 1);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Write("x"), 1);
  std::string target(3, '-');
  EXPECT_EQ(Read(&target), 3);
  EXPECT_THAT(Defect(1), testing::StartsWith("record 3 was altered"));
}

TEST_P(RecordStreamTest, EveryFlippedBitIsFound) {
  ASSERT_EQ(Write("some bytes"), 10);
  const std::string good = wire_.bytes;
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    Restart();
    wire_.bytes = good;
    wire_.bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    wire_.closed = true;
    std::string target(10, '-');
    // The end of the stream where a record claims to be longer than what there is.
    const ssize_t read = Read(&target);
    ASSERT_TRUE(read == -EBADMSG || read == 0) << bit;
    EXPECT_THAT(reader_->Defect(),
                testing::AnyOf(testing::HasSubstr("record 0 was altered, or is not from this connection"),
                               testing::HasSubstr(" came where 0 was due"), testing::HasSubstr("cut inside record 0")));
    EXPECT_THAT(target, testing::Each(testing::AnyOf('-', '\0')));
  }
}

TEST_P(RecordStreamTest, SaysWhatIsWrong) {
  std::vector<std::string> records;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(Write(Payload(20, i)), 20);
    records.emplace_back();
    records.back().swap(wire_.bytes);
  }
  const auto defect_of = [&](const std::string& bytes, ssize_t result = -EBADMSG) {
    Restart();
    wire_.bytes = bytes;
    wire_.closed = true;
    return Defect(80, result);
  };
  const char altered[] = "record 1 was altered, or is not from this connection";
  EXPECT_EQ(defect_of(records[0] + records[2]), "record 2 came where 1 was due: lost, repeated or out of order");
  EXPECT_EQ(defect_of(records[0] + records[0]), "record 0 came where 1 was due: lost, repeated or out of order");
  EXPECT_EQ(defect_of(records[1] + records[0]), "record 1 came where 0 was due: lost, repeated or out of order");
  EXPECT_EQ(defect_of(records[0] + records[1].substr(0, 30), 0), "cut inside record 1");
  EXPECT_EQ(defect_of(records[0] + records[1].substr(0, 3), 0), "cut inside record 1");
  std::string payload = records[1], too_long = records[1], empty = records[1];
  payload[20] ^= 1;
  too_long[3] = 1;
  empty[0] = 0;
  EXPECT_EQ(defect_of(records[0] + payload), altered);
  EXPECT_EQ(defect_of(records[0] + too_long), altered) << "before it is waited for";
  EXPECT_EQ(defect_of(records[0] + empty), altered);
}

TEST_P(RecordStreamTest, ARecordOfAnotherConnectionIsNotTaken) {
  Restart(kRecordsPerKey, 'x');
  ASSERT_EQ(Write("hello"), 5);
  EXPECT_EQ(Defect(5), "record 0 was altered, or is not from this connection");
}

TEST_P(RecordStreamTest, GoesOneWay) {
  iovec piece = {nullptr, 0};
  EXPECT_EQ(writer_->Read(&piece, 1), -EBADF);
  EXPECT_EQ(reader_->Write(&piece, 1), -EBADF);
}

}  // namespace
}  // namespace lockstep

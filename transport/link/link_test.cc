#include "transport/link/link.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/link/link_table.h"
#include "transport/link/sink_writer.h"
#include "transport/loopback/loopback.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

// What a stream saw, and what it is to answer. Owned by the test, which outlives the stream.
struct Script {
  std::string bytes;  // written so far, or left to read
  size_t call_bytes_max = 1 << 30;
  size_t room = 1 << 30;      // to write
  int when_empty = -EAGAIN;   // to a read
  uint64_t unreleased = 0;    // of what was written
  std::vector<size_t> asked;  // bytes, by call
  bool closed = false;
};

class ScriptedStream final : public ByteStream {
 public:
  explicit ScriptedStream(Script* script) : script_(script) {}
  ~ScriptedStream() override { script_->closed = true; }

  ssize_t Write(const iovec* pieces, int count) override {
    std::string all;
    for (int i = 0; i < count; ++i) all.append(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
    script_->asked.push_back(all.size());
    if (script_->room == 0) return script_->when_empty;
    const size_t written = std::min({all.size(), script_->call_bytes_max, script_->room});
    script_->bytes.append(all, 0, written);
    script_->room -= written;
    return static_cast<ssize_t>(written);
  }

  ssize_t Read(const iovec* pieces, int count) override {
    size_t asked = 0;
    for (int i = 0; i < count; ++i) asked += pieces[i].iov_len;
    script_->asked.push_back(asked);
    if (script_->bytes.empty()) return script_->when_empty;
    size_t left = std::min(script_->bytes.size(), script_->call_bytes_max);
    size_t read = 0;
    for (int i = 0; i < count; ++i) {
      const size_t piece = std::min(left, pieces[i].iov_len);
      std::memcpy(pieces[i].iov_base, script_->bytes.data() + read, piece);
      read += piece;
      left -= piece;
    }
    script_->bytes.erase(0, read);
    return static_cast<ssize_t>(read);
  }

  uint64_t UnreleasedBytes() override { return script_->unreleased; }

 private:
  Script* const script_;
};

class LinkTest : public testing::Test {
 protected:
  LinkTest() : transport_(network_.CreateTransport(Rank(0))), table_(transport_.get(), 4096) {}

  Link* Open(Link::Direction direction) {
    Link* const link = table_.Get(direction, Rank(1), 0);
    link->Open(std::make_unique<ScriptedStream>(&script_));
    return link;
  }

  // Runs a link whose stream may move bytes again. Returns whether anything moved.
  bool RunReady(Link* link) {
    link->MarkReady();
    table_.Schedule(link);
    return table_.Run();
  }

  static std::string Encoded(const std::string& payload, unsigned char envelope) {
    unsigned char header[kMessageHeaderBytes];
    EncodeMessageHeader({payload.size(), TestEnvelope(envelope)}, header);
    return std::string(reinterpret_cast<char*>(header), sizeof(header)) + payload;
  }

  Script script_;
  LoopbackNetwork network_{2};
  std::unique_ptr<Transport> transport_;  // only to describe its peers
  LinkTable table_;
};

TEST_F(LinkTest, AHeaderLooksAsTheDocumentSays) {
  Envelope envelope;
  for (int i = 0; i < 32; ++i) envelope[i] = static_cast<unsigned char>(0x80 + i);
  unsigned char bytes[kMessageHeaderBytes];
  EncodeMessageHeader({0x0102030405060708, envelope}, bytes);
  const unsigned char expected[16] = {'L', 'M', 'G', '1', 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(0, std::memcmp(bytes, expected, 16));
  EXPECT_EQ(0, std::memcmp(bytes + 16, envelope.data(), 32));
}

TEST_F(LinkTest, AMessageThatFitsTakesOneWrite) {
  Link* const link = Open(Link::Direction::kSend);
  TestOperation send;
  table_.PostSend(link, TestEnvelope(1), "12345678", 8, &send);
  EXPECT_TRUE(send.done());
  EXPECT_THAT(send.status, IsOk());
  EXPECT_THAT(script_.asked, testing::ElementsAre(56));
  EXPECT_EQ(script_.bytes, Encoded("12345678", 1));
}

TEST_F(LinkTest, AMessageThatIsThereTakesOneReadAndNothingOfTheNextOne) {
  Link* const link = Open(Link::Direction::kReceive);
  script_.bytes = Encoded("12345678", 1) + Encoded("next", 2);
  char target[8];
  TestOperation receive;
  table_.PostReceive(link, TestEnvelope(1), {target, 8}, &receive);
  EXPECT_THAT(script_.asked, testing::IsEmpty()) << "posting a receive costs no call";
  EXPECT_TRUE(table_.work_left());
  EXPECT_TRUE(table_.Run());
  EXPECT_TRUE(receive.done());
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_EQ(std::string(target, 8), "12345678");
  EXPECT_THAT(script_.asked, testing::ElementsAre(56));
  EXPECT_EQ(script_.bytes, Encoded("next", 2));
}

// A link each way, with streams of their own.
class ExchangeTest : public LinkTest {
 protected:
  ExchangeTest() {
    receive_->Open(std::make_unique<ScriptedStream>(&arriving_));
    arriving_.bytes = Encoded("abcd", 1);
  }

  Transport::Exchanged Exchange(int polls) {
    return table_.Exchange(send_, receive_, TestEnvelope(1), "1234", {target_, 4}, polls);
  }

  Script arriving_;
  Link* const send_ = Open(Link::Direction::kSend);
  Link* const receive_ = table_.Get(Link::Direction::kReceive, Rank(1), 0);
  char target_[4] = {};
};

TEST_F(ExchangeTest, TakesOneCallEachWay) {
  EXPECT_EQ(Exchange(1), Transport::Exchanged::kAll);
  EXPECT_EQ(script_.bytes, Encoded("1234", 1));
  EXPECT_EQ(std::string(target_, 4), "abcd");
  EXPECT_THAT(script_.asked, testing::ElementsAre(52));
  EXPECT_THAT(arriving_.asked, testing::ElementsAre(52));
  EXPECT_EQ(table_.counters(Rank(1)).sent_bytes, 4);
  EXPECT_EQ(table_.counters(Rank(1)).received_bytes, 4);
  EXPECT_FALSE(table_.work_left());
}

TEST_F(ExchangeTest, WhatWasSentInPartIsFinishedByTheSend) {
  for (const size_t room : {0, 20, 50}) {
    script_.bytes.clear();
    script_.room = room;
    send_->MarkReady();
    EXPECT_EQ(Exchange(1), Transport::Exchanged::kNothing) << room;
    TestOperation send;
    table_.PostSend(send_, TestEnvelope(1), "1234", 4, &send);
    EXPECT_FALSE(send.done());
    script_.room = 1000;
    RunReady(send_);
    EXPECT_TRUE(send.done());
    EXPECT_EQ(script_.bytes, Encoded("1234", 1));
  }
  EXPECT_EQ(table_.counters(Rank(1)).sent_bytes, 12);
  EXPECT_EQ(table_.counters(Rank(1)).sent_messages, 3);
}

TEST_F(ExchangeTest, WhatCameInPartIsFinishedByTheReceive) {
  const std::string encoded = Encoded("abcd", 1);
  for (const size_t first : {0, 20, 48, 50}) {
    arriving_.bytes = encoded.substr(0, first);
    receive_->MarkReady();
    EXPECT_EQ(Exchange(3), Transport::Exchanged::kSent) << first;
    TestOperation receive;
    std::fill_n(target_, 4, '-');
    table_.PostReceive(receive_, TestEnvelope(1), {target_, 4}, &receive);
    table_.Run();
    EXPECT_FALSE(receive.done());
    arriving_.bytes = encoded.substr(first);
    RunReady(receive_);
    EXPECT_TRUE(receive.done());
    EXPECT_THAT(receive.status, IsOk());
    EXPECT_EQ(std::string(target_, 4), "abcd") << first;
  }
  EXPECT_EQ(table_.counters(Rank(1)).received_bytes, 16);
  EXPECT_EQ(table_.counters(Rank(1)).received_messages, 4);
}

TEST_F(ExchangeTest, AnotherMessageBreaksTheReceiveThatIsPosted) {
  arriving_.bytes = Encoded("abcd", 2);
  EXPECT_EQ(Exchange(1), Transport::Exchanged::kSent);
  EXPECT_EQ(std::string(target_, 4), std::string(4, '\0'));
  TestOperation receive;
  table_.PostReceive(receive_, TestEnvelope(1), {target_, 4}, &receive);
  table_.Run();
  EXPECT_THAT(receive.status, StatusIs(Code::kFailedPrecondition, testing::HasSubstr("another envelope")));
  EXPECT_EQ(receive.arrived, TestEnvelope(2));
}

TEST_F(ExchangeTest, TheEndOfTheStreamIsToldByTheReceive) {
  arriving_.bytes.clear();
  arriving_.when_empty = 0;
  EXPECT_EQ(Exchange(1), Transport::Exchanged::kSent);
  TestOperation receive;
  table_.PostReceive(receive_, TestEnvelope(1), {target_, 4}, &receive);
  table_.Run();
  EXPECT_THAT(receive.status, StatusIs(Code::kUnavailable, testing::HasSubstr("closed by peer")));
}

TEST_F(ExchangeTest, DoesNothingWhereSomethingIsUnderWayOrIsTooLong) {
  TestOperation receive;
  char other[4];
  table_.PostReceive(receive_, TestEnvelope(1), {other, 4}, &receive);
  EXPECT_EQ(Exchange(1), Transport::Exchanged::kNothing);
  table_.Run();
  EXPECT_THAT(receive.status, IsOk());
  std::vector<char> big(Link::kInlineBytesMax + 1);
  const Sink sink = {big.data(), big.size()};
  EXPECT_EQ(table_.Exchange(send_, receive_, TestEnvelope(1), big.data(), sink, 1), Transport::Exchanged::kNothing);
  EXPECT_THAT(script_.asked, testing::IsEmpty());
}

TEST_F(LinkTest, AShortReadIsNotFollowedByAnotherUntilTheStreamIsReady) {
  Link* const link = Open(Link::Direction::kReceive);
  const std::string encoded = Encoded("12345678", 1);
  char target[8];
  TestOperation receive;
  table_.PostReceive(link, TestEnvelope(1), {target, 8}, &receive);
  size_t given = 0;
  for (size_t bytes : {20, 30, 6}) {
    script_.bytes = encoded.substr(given, bytes);
    given += bytes;
    RunReady(link);
  }
  EXPECT_TRUE(receive.done());
  EXPECT_THAT(receive.status, IsOk());
  EXPECT_THAT(script_.asked, testing::ElementsAre(56, 36, 6));
}

TEST_F(LinkTest, AnEndingStreamIsReadToItsEnd) {
  Link* const link = Open(Link::Direction::kReceive);
  script_.bytes = Encoded("12", 1) + "half a header";
  script_.when_empty = 0;
  link->MarkEnding();
  char target[2];
  TestOperation receives[2];
  for (TestOperation& receive : receives) table_.PostReceive(link, TestEnvelope(1), {target, 2}, &receive);
  table_.Run();
  EXPECT_THAT(receives[0].status, IsOk());
  EXPECT_TRUE(receives[1].done());
  EXPECT_THAT(receives[1].status,
              StatusIs(Code::kUnavailable, "recv from rank 1 over loopback rank 1: connection closed by peer"));
  EXPECT_TRUE(script_.closed);
}

TEST_F(LinkTest, ErrnosAreTold) {
  Link* const link = Open(Link::Direction::kSend);
  script_.room = 0;
  script_.when_empty = -ECONNRESET;
  TestOperation send;
  table_.PostSend(link, TestEnvelope(1), "x", 1, &send);
  EXPECT_TRUE(send.done());
  EXPECT_THAT(send.status, StatusIs(Code::kUnavailable,
                                    "send to rank 1 over loopback rank 1: connection lost: "
                                    "Connection reset by peer"));
  EXPECT_TRUE(script_.closed);
}

TEST_F(LinkTest, BytesThatAreNoMessageAreDataLoss) {
  Link* const link = Open(Link::Direction::kReceive);
  script_.bytes = std::string(100, 'x');
  char target[8];
  TestOperation receive;
  table_.PostReceive(link, TestEnvelope(1), {target, 8}, &receive);
  table_.Run();
  EXPECT_TRUE(receive.done());
  EXPECT_THAT(receive.status, StatusIs(Code::kDataLoss, testing::HasSubstr("channel 0 is broken")));
}

TEST_F(LinkTest, OneByteAtATimeArrivesWhole) {
  Link* const link = Open(Link::Direction::kSend);
  const std::string payload(300, 'p');
  TestOperation send;
  script_.call_bytes_max = 1;
  table_.PostSend(link, TestEnvelope(1), payload.data(), payload.size(), &send);
  while (!send.done()) {
    ASSERT_TRUE(RunReady(link));
  }
  EXPECT_EQ(script_.bytes, Encoded(payload, 1));
}

// A stream that reads what it has taken from where it lies: completions wait for it, in order, and nobody spins.
TEST_F(LinkTest, ASendCompletesWhenTheStreamReleasesItsMemory) {
  Link* const link = Open(Link::Direction::kSend);
  const std::string payload(2000, 'p');
  const size_t message = kMessageHeaderBytes + payload.size();
  TestOperation sends[3];
  script_.unreleased = 1 << 20;
  script_.room = 2 * message + 100;
  for (TestOperation& send : sends) table_.PostSend(link, TestEnvelope(1), payload.data(), payload.size(), &send);
  EXPECT_EQ(script_.bytes.size(), 2 * message + 100);
  EXPECT_FALSE(sends[0].done());
  EXPECT_TRUE(link->pending());
  EXPECT_FALSE(table_.work_left());
  EXPECT_TRUE(table_.sends_blocked());

  const auto release = [&](uint64_t unreleased) {
    script_.unreleased = unreleased;
    link->MarkReleased();
    table_.Schedule(link);
    table_.Run();
    EXPECT_FALSE(table_.work_left());
  };
  release(message + 101);
  EXPECT_FALSE(sends[0].done()) << "all but one byte";
  release(message + 100);
  EXPECT_TRUE(sends[0].done());
  EXPECT_FALSE(sends[1].done());
  script_.room = 10 * message;
  script_.unreleased = 100;
  RunReady(link);
  EXPECT_TRUE(sends[1].done());
  EXPECT_FALSE(sends[2].done()) << "written, but its last 100 bytes may still be read";
  EXPECT_TRUE(table_.sends_pending());
  release(0);
  EXPECT_TRUE(sends[2].done());
  EXPECT_FALSE(link->pending());
  for (const TestOperation& send : sends) EXPECT_THAT(send.status, IsOk());
}

TEST_F(LinkTest, ABrokenLinkClosesItsStreamBeforeItGivesMemoryBack) {
  Link* const link = Open(Link::Direction::kSend);
  TestOperation sends[3];
  script_.unreleased = 1 << 20;
  for (TestOperation& send : sends) table_.PostSend(link, TestEnvelope(1), "x", 1, &send);
  script_.unreleased = 2 * (kMessageHeaderBytes + 1);
  sends[1].then = [&] { EXPECT_TRUE(script_.closed); };
  table_.BreakChannel(0, absl::AbortedError("given up"));
  EXPECT_FALSE(sends[0].done());
  table_.Run();
  EXPECT_THAT(sends[0].status, IsOk()) << "the stream was done with it";
  EXPECT_THAT(sends[1].status, StatusIs(Code::kAborted, "given up"));
  EXPECT_THAT(sends[2].status, StatusIs(Code::kAborted, "given up"));
  EXPECT_FALSE(link->pending());
}

TEST_F(LinkTest, AnAbortFromTheLastCompletionClosesTheStream) {
  Link* const link = Open(Link::Direction::kSend);
  TestOperation sends[2];
  script_.unreleased = 1 << 20;
  for (TestOperation& send : sends) table_.PostSend(link, TestEnvelope(1), "x", 1, &send);
  sends[0].then = [&] { table_.BreakChannel(0, absl::AbortedError("given up")); };
  script_.unreleased = 0;
  link->MarkReleased();
  table_.Schedule(link);
  table_.Run();
  EXPECT_THAT(sends[1].status, IsOk());
  EXPECT_TRUE(script_.closed);
  EXPECT_FALSE(link->pending());
}

// Payloads that travel in one piece with their header and payloads that do not, in parts of every length.
TEST_F(LinkTest, MessagesAroundTheLengthOfOnePieceArriveWhole) {
  for (const size_t elements : {0, 1, 255, 256, 257, 1500}) {
    for (const size_t call_bytes : {1, 47, 48, 49, 100, 1000, 5000}) {
      SCOPED_TRACE(testing::Message() << elements << " elements, " << call_bytes << " bytes a call");
      script_ = Script();
      script_.call_bytes_max = call_bytes;
      std::vector<float> data(elements), operand(elements), target(elements), expected(elements);
      for (size_t i = 0; i < elements; ++i) {
        data[i] = static_cast<float>(i);
        operand[i] = static_cast<float>(3 * i + 1);
        expected[i] = static_cast<float>(4 * i + 1);
      }
      LinkTable table(transport_.get(), 64);
      Link* const source = table.Get(Link::Direction::kSend, Rank(1), 0);
      Link* const sink = table.Get(Link::Direction::kReceive, Rank(1), 0);
      source->Open(std::make_unique<ScriptedStream>(&script_));
      sink->Open(std::make_unique<ScriptedStream>(&script_));
      TestOperation send, receive;
      table.PostSend(source, TestEnvelope(1), data.data(), elements * sizeof(float), &send);
      table.PostReceive(sink, TestEnvelope(1), {target.data(), elements * sizeof(float), operand.data(), &kAddFloats},
                        &receive);
      for (int turn = 0; turn < 10'000 && !receive.done(); ++turn) {
        table.ScheduleActive(LinkTable::Try::kAll);
        table.Run();
      }
      ASSERT_TRUE(send.done() && receive.done());
      EXPECT_THAT(receive.status, IsOk());
      EXPECT_EQ(target, expected);
    }
  }
}

TEST_F(LinkTest, AReleasedLinkOfAnAbortedChannelIsMadeAnewAndBroken) {
  Link* const link = Open(Link::Direction::kSend);
  TestOperation send, later;
  script_.room = 0;
  table_.PostSend(link, TestEnvelope(1), "x", 1, &send);
  table_.BreakChannel(0, absl::AbortedError("given up"));
  table_.Run();
  EXPECT_THAT(send.status, StatusIs(Code::kAborted, "given up"));
  table_.Release(link);
  EXPECT_EQ(table_.active_count(), 0);
  EXPECT_FALSE(table_.work_left());
  table_.PostSend(table_.Get(Link::Direction::kSend, Rank(1), 0), TestEnvelope(1), "x", 1, &later);
  EXPECT_THAT(later.status, StatusIs(Code::kAborted, "given up"));
}

TEST_F(LinkTest, ABusyLinkStopsAtItsShareOfARound) {
  Link* const link = Open(Link::Direction::kSend);
  const std::string payload(10 * LinkTable::kRoundBytes, 'p');
  TestOperation send;
  table_.PostSend(link, TestEnvelope(1), payload.data(), payload.size(), &send);
  int rounds = 1;
  for (size_t before = 0; !send.done(); ++rounds) {
    EXPECT_LE(script_.bytes.size() - before, 2 * LinkTable::kRoundBytes);
    EXPECT_TRUE(table_.work_left());
    before = script_.bytes.size();
    ASSERT_TRUE(table_.Run());
  }
  EXPECT_GE(rounds, 5);
  EXPECT_EQ(script_.bytes.size(), payload.size() + kMessageHeaderBytes);
}

TEST_F(LinkTest, SendsPostedBetweenTwoRunsShareARound) {
  Link* const link = Open(Link::Direction::kSend);
  const std::string payload(LinkTable::kRoundBytes / 4, 'p');
  TestOperation sends[20];
  for (TestOperation& send : sends) table_.PostSend(link, TestEnvelope(1), payload.data(), payload.size(), &send);
  EXPECT_TRUE(sends[0].done()) << "without a run";
  EXPECT_LE(script_.bytes.size(), 2 * LinkTable::kRoundBytes);
  EXPECT_TRUE(table_.work_left());
  while (!sends[19].done()) ASSERT_TRUE(table_.Run());
  EXPECT_EQ(script_.bytes.size(), 20 * (payload.size() + kMessageHeaderBytes));
  TestOperation later;
  table_.PostSend(link, TestEnvelope(1), "x", 1, &later);
  EXPECT_TRUE(later.done()) << "a run ends the round";
}

// A completion that answers every failure with another operation must not keep Run from returning.
TEST_F(LinkTest, CompletionsThatPostToABrokenLinkForEverDoNotHangARound) {
  Link* const link = Open(Link::Direction::kSend);
  TestOperation send;
  send.then = [&] { table_.PostSend(link, TestEnvelope(1), "x", 1, &send); };
  link->Break(absl::AbortedError("over"));
  table_.PostSend(link, TestEnvelope(1), "x", 1, &send);
  EXPECT_GT(send.completions, 1);
  EXPECT_TRUE(table_.work_left());
  EXPECT_THAT(send.status, StatusIs(Code::kAborted, "over"));
  send.then = nullptr;
  EXPECT_TRUE(table_.Run());
  EXPECT_FALSE(table_.work_left());
}

TEST_F(LinkTest, LinksOfAnAbortedChannelAreBrokenFromTheStart) {
  table_.BreakChannel(3, absl::AbortedError("given up"));
  EXPECT_TRUE(table_.Get(Link::Direction::kReceive, Rank(1), 3)->broken());
  EXPECT_TRUE(table_.Get(Link::Direction::kReceive, Rank(1), 4)->waiting());
  table_.BreakAll(absl::AbortedError("all of it"));
  EXPECT_TRUE(table_.Get(Link::Direction::kReceive, Rank(1), 4)->broken());
  EXPECT_TRUE(table_.Get(Link::Direction::kSend, Rank(1), 5)->broken());
}

struct alignas(16) Memory {
  unsigned char bytes[64];
};

TEST(SinkWriter, CopiesStraightIntoTheTarget) {
  Memory memory;
  SinkWriter writer({memory.bytes, sizeof(memory.bytes)});
  unsigned char target[1000];
  writer.Begin({target, sizeof(target)});
  EXPECT_EQ(writer.Next().iov_base, target);
  EXPECT_EQ(writer.Next().iov_len, 1000);
  writer.Commit(999);
  EXPECT_EQ(writer.Next().iov_base, target + 999);
  writer.Commit(1);
  EXPECT_EQ(writer.Next().iov_len, 0);
}

// Reduces in pieces of random lengths; the staging memory is spoilt between pieces, as other streams do.
TEST(SinkWriter, ReducesWholeElementsWhateverLengthsArrive) {
  std::mt19937 random(7);
  for (size_t count : {0, 1, 2, 100}) {
    for (bool in_place : {true, false}) {
      Memory memory;
      SinkWriter writer({memory.bytes, sizeof(memory.bytes)});
      std::vector<Wide> arriving, own, other(count), expected;
      for (size_t i = 0; i < count; ++i) {
        arriving.push_back({1.0 * i, 2.0 * i});
        own.push_back({0.5, 1.0 * i});
        expected.push_back({1.0 * i + 0.5, 3.0 * i});
      }
      std::vector<Wide>& target = in_place ? own : other;
      writer.Begin({target.data(), count * sizeof(Wide), own.data(), &kAddWide});
      const auto* source = reinterpret_cast<const unsigned char*>(arriving.data());
      for (iovec place = writer.Next(); place.iov_len > 0; place = writer.Next()) {
        ASSERT_GE(static_cast<unsigned char*>(place.iov_base), memory.bytes);
        ASSERT_LE(static_cast<unsigned char*>(place.iov_base) + place.iov_len, memory.bytes + sizeof(memory.bytes));
        const size_t left = reinterpret_cast<const unsigned char*>(arriving.data() + count) - source;
        const bool elsewhere = random() % 2 == 0;
        const size_t bytes = 1 + random() % (elsewhere ? left : place.iov_len);
        if (elsewhere) {
          writer.Put(source, bytes);
        } else {
          std::memcpy(place.iov_base, source, bytes);
          writer.Commit(bytes);
        }
        source += bytes;
        std::memset(memory.bytes, 0xee, sizeof(memory.bytes));
      }
      EXPECT_EQ(source, reinterpret_cast<const unsigned char*>(arriving.data() + count));
      EXPECT_TRUE(target == expected);
    }
  }
}

}  // namespace
}  // namespace lockstep

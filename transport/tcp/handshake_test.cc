#include "transport/tcp/handshake.h"

#include <cstring>
#include <random>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;

const unsigned char* Bytes(const std::string& text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Hello AHello() { return {"job", 0x1122334455667788, Rank(2), Rank(1), 7, 1 << 20, 0xa1b2c3d4, 1, 2}; }
// As rank 1 of 4 does.
Answer Judge(const Hello& hello) {
  return JudgeHello(hello, {Rank(1), 4, "job", 0x1122334455667788, 1 << 20}, 2, /*records=*/false);
}

TEST(Handshake, AHelloLooksAsTheDocumentSays) {
  const char expected[] =
      "LKS1\x03\x00\x00\x00\x27\x00\x00\x00"  // magic, version, reserved, 39 bytes of body
      "\x88\x77\x66\x55\x44\x33\x22\x11"      // world
      "\x02\x00\x00\x00\x01\x00\x00\x00"      // source, target
      "\x07\x00\x00\x00\x00\x00\x10\x00"      // channel, chunk size
      "\xd4\xc3\xb2\xa1"                      // instance
      "\x01\x00\x02\x00"                      // socket, of how many
      "\x03\x00\x00\x00job";                  // length of job id, no records, job id
  EXPECT_EQ(EncodeHello(AHello()), std::string(expected, sizeof(expected) - 1));
}

TEST(Handshake, AHelloSurvivesTheWire) {
  Hello hello = AHello();
  hello.job_id = std::string("with\0zero", 9);
  hello.records = true;
  hello.channel = 0xfffffffe;
  const std::string encoded = EncodeHello(hello);
  const HelloPrefix prefix = DecodeHelloPrefix(Bytes(encoded));
  EXPECT_TRUE(prefix.ours);
  EXPECT_EQ(prefix.version, kTcpProtocolVersion);
  ASSERT_EQ(prefix.body_bytes, encoded.size() - kHelloPrefixBytes);
  Hello decoded;
  ASSERT_TRUE(DecodeHelloBody(encoded.substr(kHelloPrefixBytes), &decoded));
  EXPECT_EQ(EncodeHello(decoded), encoded);
  EXPECT_EQ(decoded.channel, hello.channel);
}

TEST(Handshake, EveryTruncationAndExtensionIsRefused) {
  const std::string body = EncodeHello(AHello()).substr(kHelloPrefixBytes);
  Hello decoded;
  for (size_t bytes = 0; bytes < body.size(); ++bytes) EXPECT_FALSE(DecodeHelloBody(body.substr(0, bytes), &decoded));
  EXPECT_FALSE(DecodeHelloBody(body + "x", &decoded));
}

TEST(Handshake, ASocketThatIsNoneOfAsManyIsRefused) {
  Hello hello = AHello();
  hello.socket = hello.sockets;
  Hello decoded;
  EXPECT_FALSE(DecodeHelloBody(EncodeHello(hello).substr(kHelloPrefixBytes), &decoded));
}

TEST(Handshake, RecordsAreNoneOrOursOrTheKernels) {
  std::string body = EncodeHello(AHello()).substr(kHelloPrefixBytes);
  for (int records = 0; records < 3; ++records) {
    Hello decoded;
    body[34] = static_cast<char>(records);
    ASSERT_TRUE(DecodeHelloBody(body, &decoded));
    EXPECT_EQ(decoded.records, records > 0);
    EXPECT_EQ(decoded.kernel_tls, records == 2);
    EXPECT_EQ(EncodeHello(decoded).substr(kHelloPrefixBytes), body);
  }
  Hello decoded;
  body[34] = 3;
  EXPECT_FALSE(DecodeHelloBody(body, &decoded));
}

// Each direction of each socket has a key of its own.
TEST(Handshake, KeysOfRecordsAreBoundToWhatTheyAreFor) {
  const Hello hello = AHello();
  std::set<std::string> contexts = {RecordContext(hello, hello.source, false),
                                    RecordContext(hello, hello.target, false),
                                    RecordContext(hello, hello.source, true)};
  for (const auto change :
       {+[](Hello* h) { ++h->world_id; }, +[](Hello* h) { h->source = Rank(3); },
        +[](Hello* h) { h->target = Rank(0); }, +[](Hello* h) { ++h->channel; }, +[](Hello* h) { --h->socket; }}) {
    Hello other = hello;
    change(&other);
    contexts.insert(RecordContext(other, other.source, false));
  }
  EXPECT_EQ(contexts.size(), 8);
}

TEST(Handshake, RanksBeyondAnIntAndOverlongJobIdsAreRefused) {
  std::string body = EncodeHello(AHello()).substr(kHelloPrefixBytes);
  Hello decoded;
  body[11] = '\x80';
  EXPECT_FALSE(DecodeHelloBody(body, &decoded));
  body = EncodeHello(AHello()).substr(kHelloPrefixBytes) + std::string(kJobIdBytesMax + 1 - 3, 'j');
  body[32] = '\x01';
  body[33] = '\x04';
  EXPECT_FALSE(DecodeHelloBody(body, &decoded));
}

// Whatever bytes arrive: what is taken for a hello encodes to the same bytes again, and every verdict has words.
TEST(Handshake, RandomAndMutatedBytesAreDecodedExactlyOrRefused) {
  std::mt19937 random(20);
  const std::string body = EncodeHello(AHello()).substr(kHelloPrefixBytes);
  int taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = body;
    if (i % 2 == 0) bytes.resize(random() % 64);
    const int changes = 1 + random() % 8;
    for (int change = 0; change < changes && !bytes.empty(); ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Hello decoded;
    if (!DecodeHelloBody(bytes, &decoded)) continue;
    ++taken;
    EXPECT_EQ(EncodeHello(decoded).substr(kHelloPrefixBytes), bytes);
    const Answer answer = Judge(decoded);
    EXPECT_TRUE(answer.verdict == Verdict::kAccepted || !RejectionStatus(answer, decoded).ok());
  }
  EXPECT_GT(taken, 1000);
}

TEST(Handshake, AnAnswerSurvivesTheWire) {
  unsigned char bytes[kAnswerBytes];
  EncodeAnswer({3, Verdict::kOtherRank, 0x01020304}, bytes);
  EXPECT_EQ(0, std::memcmp(bytes, "LKSA\x03\x00\x05\x00\x04\x03\x02\x01\x00\x00\x00\x00", kAnswerBytes));
  Answer answer;
  ASSERT_TRUE(DecodeAnswer(bytes, &answer));
  EXPECT_EQ(answer.version, 3);
  EXPECT_EQ(answer.verdict, Verdict::kOtherRank);
  EXPECT_EQ(answer.detail, 0x01020304);
  EXPECT_FALSE(answer.kernel_tls);
  EncodeAnswer({3, Verdict::kAccepted, 7, /*kernel_tls=*/true}, bytes);
  EXPECT_EQ(bytes[12], 1);
  ASSERT_TRUE(DecodeAnswer(bytes, &answer));
  EXPECT_TRUE(answer.kernel_tls);
  bytes[0] ^= 1;
  EXPECT_FALSE(DecodeAnswer(bytes, &answer));
}

TEST(Handshake, JudgesAndSaysWhy) {
  struct Case {
    Verdict verdict;
    Code code;
    const char* message;
    void (*change)(Hello* hello);
  };
  EXPECT_EQ(Judge(AHello()).verdict, Verdict::kAccepted);
  const Case cases[] = {
      {Verdict::kOtherJob, Code::kFailedPrecondition, "another job than 'other'",
       [](Hello* h) { h->job_id = "other"; }},
      {Verdict::kOtherWorld, Code::kFailedPrecondition, "left from an earlier one", [](Hello* h) { h->world_id = 1; }},
      {Verdict::kOtherRank, Code::kFailedPrecondition, "peer is rank 1, not rank 3",
       [](Hello* h) { h->target = Rank(3); }},
      {Verdict::kNoSuchRank, Code::kFailedPrecondition, "world of 4 ranks and expects no connection from rank 4",
       [](Hello* h) { h->source = Rank(4); }},
      {Verdict::kNoSuchRank, Code::kFailedPrecondition, "from rank 1", [](Hello* h) { h->source = Rank(1); }},
      {Verdict::kOtherChunkSize, Code::kFailedPrecondition, "peer's chunk size is 1048576 bytes, ours 4096",
       [](Hello* h) { h->chunk_bytes = 4096; }},
      {Verdict::kOtherSockets, Code::kFailedPrecondition, "peer uses 2 sockets a connection, we 4",
       [](Hello* h) { h->sockets = 4; }},
      {Verdict::kOtherRecords, Code::kFailedPrecondition, "of ranks 2 and 1 rank 2 alone wants the messages",
       [](Hello* h) { h->records = true; }},
  };
  for (const Case& c : cases) {
    Hello hello = AHello();
    c.change(&hello);
    const Answer answer = Judge(hello);
    EXPECT_EQ(answer.verdict, c.verdict) << c.message;
    EXPECT_THAT(RejectionStatus(answer, hello), StatusIs(c.code, testing::HasSubstr(c.message)));
  }
  EXPECT_THAT(RejectionStatus({4, Verdict::kOtherVersion, 0}, AHello()),
              StatusIs(Code::kFailedPrecondition, "peer speaks protocol version 4, we 3"));
  EXPECT_THAT(RejectionStatus({2, Verdict::kDuplicate, 0}, AHello()),
              StatusIs(Code::kFailedPrecondition, testing::HasSubstr("connection from rank 2 on channel 7")));
  EXPECT_THAT(RejectionStatus({2, Verdict::kAborted, 0}, AHello()),
              StatusIs(Code::kUnavailable, testing::HasSubstr("given up channel 7")));
  EXPECT_THAT(RejectionStatus({2, Verdict::kCrossed, 0}, AHello()),
              StatusIs(Code::kUnavailable, testing::HasSubstr("did not arrive")));
  EXPECT_THAT(RejectionStatus({2, static_cast<Verdict>(999), 0}, AHello()),
              StatusIs(Code::kFailedPrecondition, testing::HasSubstr("verdict 999")));
}

}  // namespace
}  // namespace lockstep

#include "transport/ofi/wire.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/net/little_endian.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

OfiHandshake AHandshake() {
  OfiHandshake handshake;
  handshake.token = 0x123456789abcdef0;
  handshake.source = 1;
  handshake.world_size = 4;
  handshake.target = 2;
  handshake.chunk_bytes = 1 << 18;
  handshake.world_id = 0x1122334455667788;
  handshake.job_id = "job";
  handshake.provider = "tcp;ofi_rxm";
  return handshake;
}

OfiHandshake Own() {
  OfiHandshake own = AHandshake();
  own.source = 2;
  own.target = 1;
  return own;
}

TEST(OfiWire, TagsTellPiecesFromNotices) {
  const uint64_t notice = OfiNoticeTag(OfiKind::kRefused, 0xffffffff);
  EXPECT_EQ(notice & kOfiPieceTag, 0u);
  EXPECT_EQ(notice & ~kOfiNoticeIgnore, 0u) << "a receive for notices takes it";
  EXPECT_EQ(OfiKindOf(notice), OfiKind::kRefused);
  EXPECT_EQ(OfiChannelOf(notice), 0xffffffff);
  EXPECT_EQ(kOfiPieceTag >> 48, 0u) << "48 bits are all that some fabrics have";
  EXPECT_NE(kOfiPieceTag & ~kOfiNoticeIgnore, 0u) << "a receive for notices takes no piece";
}

TEST(OfiWire, NoticesAndGrantsComeBack) {
  OfiNotice notice;
  notice.token = 0x8000000000000001;
  notice.number = 0xfffffffe;
  notice.expected = 4;
  notice.envelope.front() = 5;
  notice.envelope.back() = 6;
  unsigned char bytes[kOfiNoticeBytes];
  EncodeOfiNotice(notice, bytes);
  const OfiNotice again = DecodeOfiNotice(bytes);
  EXPECT_EQ(again.token, 0x8000000000000001);
  EXPECT_EQ(again.number, 0xfffffffe);
  EXPECT_EQ(again.expected, 4u);
  EXPECT_EQ(again.envelope, notice.envelope);
  EXPECT_EQ(bytes[0], 1) << "little-endian";

  unsigned char grant_bytes[kOfiGrantBytes];
  EncodeOfiGrant({uint64_t{1} << 40, uint64_t{1} << 46, 1 << 18, 7}, grant_bytes);
  const OfiGrant grant = DecodeOfiGrant(grant_bytes);
  EXPECT_EQ(grant.bytes, uint64_t{1} << 40);
  EXPECT_EQ(grant.piece, uint64_t{1} << 46);
  EXPECT_EQ(grant.piece_bytes, 1u << 18);
  EXPECT_EQ(grant.pieces, 7u);
}

TEST(OfiWire, HellosComeBack) {
  OfiHello hello;
  hello.address = std::string("\0\1\2", 3);
  hello.flight = "flight";
  const std::string whole = EncodeOfiHello(hello);
  OfiHello again;
  ASSERT_TRUE(DecodeOfiHello(whole, &again));
  EXPECT_EQ(again.version, kOfiProtocolVersion);
  EXPECT_EQ(again.address, hello.address);
  EXPECT_EQ(again.flight, hello.flight);
  for (size_t bytes = 0; bytes < whole.size() - hello.flight.size(); ++bytes) {
    EXPECT_FALSE(DecodeOfiHello(whole.substr(0, bytes), &again)) << bytes;
  }
  std::string other = whole;
  other[0] ^= 1;
  EXPECT_FALSE(DecodeOfiHello(other, &again)) << "the magic";
  hello.address.resize(kOfiAddressBytesMax + 1);
  EXPECT_FALSE(DecodeOfiHello(EncodeOfiHello(hello), &again));
}

TEST(OfiWire, AHelloOfAnotherVersionTellsItsVersion) {
  std::string bytes;
  AppendLittleEndian(&bytes, kOfiMagic, uint32_t{1}, uint32_t{4711});
  OfiHello hello;
  ASSERT_TRUE(DecodeOfiHello(bytes + std::string(36, '\0'), &hello));
  EXPECT_EQ(hello.version, 1u);
  EXPECT_EQ(hello.old_token, 4711u);
  bytes[4] = 9;
  ASSERT_TRUE(DecodeOfiHello(bytes, &hello));
  EXPECT_EQ(hello.version, 9u);
  EXPECT_EQ(hello.address + hello.flight, "");
}

TEST(OfiWire, HandshakesComeBack) {
  const OfiHandshake handshake = AHandshake();
  OfiHandshake again;
  ASSERT_TRUE(DecodeOfiHandshake(EncodeOfiHandshake(handshake), &again));
  EXPECT_EQ(again.token, handshake.token);
  EXPECT_EQ(again.world_id, handshake.world_id);
  EXPECT_EQ(again.source, handshake.source);
  EXPECT_EQ(again.job_id, handshake.job_id);
  EXPECT_EQ(again.provider, handshake.provider);
  EXPECT_EQ(CheckOfiHandshake(again, 1, Own()).verdict, OfiVerdict::kAccepted);
}

TEST(OfiWire, WhatIsNoHandshakeIsNone) {
  const std::string whole = EncodeOfiHandshake(AHandshake());
  OfiHandshake handshake;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(DecodeOfiHandshake(whole.substr(0, bytes), &handshake)) << bytes;
  }
  EXPECT_FALSE(DecodeOfiHandshake(whole + "x", &handshake));
  // Lengths whose sum overflows 32 bits.
  std::string other = whole;
  for (int i = 32; i < 40; ++i) other[i] = '\xff';
  EXPECT_FALSE(DecodeOfiHandshake(other, &handshake));
}

TEST(OfiWire, AnswersComeBack) {
  const std::string whole = EncodeOfiAnswer({{OfiVerdict::kOtherRank, uint64_t{1} << 40}, uint64_t{1} << 63});
  OfiAnswer answer;
  ASSERT_TRUE(DecodeOfiAnswer(whole, &answer));
  EXPECT_EQ(answer.refusal.verdict, OfiVerdict::kOtherRank);
  EXPECT_EQ(answer.refusal.detail, uint64_t{1} << 40);
  EXPECT_EQ(answer.token, uint64_t{1} << 63);
  EXPECT_FALSE(DecodeOfiAnswer(whole.substr(1), &answer));
  EXPECT_FALSE(DecodeOfiAnswer(whole + "x", &answer));
}

TEST(OfiWire, HandshakesThatDoNotFitAreRefusedWithTheReason) {
  struct Case {
    void (*change)(OfiHandshake* handshake);
    uint32_t source;
    OfiVerdict verdict;
    const char* message;
  };
  for (const Case& c : {
           Case{[](OfiHandshake* g) { g->job_id = "x"; }, 1, OfiVerdict::kOtherJob, "another job than"},
           Case{[](OfiHandshake* g) { g->world_id = 1; }, 1, OfiVerdict::kOtherWorld, "another world of job"},
           Case{[](OfiHandshake* g) { g->world_size = 3; }, 1, OfiVerdict::kOtherWorldSize, "has 4 ranks, not 3"},
           Case{[](OfiHandshake* g) { g->target = 3; }, 1, OfiVerdict::kOtherRank, "it is rank 2, not 3"},
           Case{[](OfiHandshake* g) { g->source = 2; }, 2, OfiVerdict::kNoSuchRank,
                "in a world of 4 ranks and expects no"},
           Case{[](OfiHandshake* g) { g->source = 4; }, 4, OfiVerdict::kNoSuchRank,
                "in a world of 4 ranks and expects no"},
           Case{[](OfiHandshake*) {}, 3, OfiVerdict::kNoSuchRank, "in a world of 4 ranks and expects no"},
           Case{[](OfiHandshake* g) { g->chunk_bytes = 64; }, 1, OfiVerdict::kOtherChunkSize,
                "262144 bytes, this rank"},
           Case{[](OfiHandshake* g) { g->provider = "efa"; }, 1, OfiVerdict::kOtherProvider, "provider than efa"},
       }) {
    OfiHandshake handshake = AHandshake();
    c.change(&handshake);
    const OfiRefusal refusal = CheckOfiHandshake(handshake, c.source, Own());
    EXPECT_EQ(refusal.verdict, c.verdict) << c.message;
    unsigned char bytes[kOfiRefusalBytes];
    EncodeOfiRefusal(refusal, bytes);
    EXPECT_THAT(OfiRefusalStatus(DecodeOfiRefusal(bytes), handshake),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
  const OfiHandshake own = Own();
  EXPECT_THAT(OfiRefusalStatus({OfiVerdict::kOtherVersion, 7}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 7 of the protocol, this rank 2")));
  EXPECT_THAT(OfiRefusalStatus({OfiVerdict::kDuplicate, 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("claimed by two processes")));
  EXPECT_THAT(OfiRefusalStatus({OfiVerdict::kGone, 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has lost this rank")));
  EXPECT_THAT(OfiRefusalStatus({static_cast<OfiVerdict>(77), 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not know (77)")));
}

TEST(OfiName, IsReadBackFromItsText) {
  std::string name;
  for (int i = 0; i < 256; ++i) name.push_back(static_cast<char>(i));
  EXPECT_EQ(DecodeOfiName(absl::BytesToHexString(name)), name);
  EXPECT_EQ(DecodeOfiName("aFBc09"), "\xaf\xbc\x09");
  for (const char* text : {"0", "012", "0g", "G0", " 0", "0 ", "+0", "-1", "0x10"})
    EXPECT_EQ(DecodeOfiName(text), "") << text;
}

}  // namespace
}  // namespace lockstep

#include "transport/ofi/wire.h"

#include <string>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

OfiGreeting AGreeting() {
  OfiGreeting greeting;
  greeting.token = 0x12345678;
  greeting.world_size = 4;
  greeting.target = 2;
  greeting.chunk_bytes = 1 << 18;
  greeting.world_id = 0x1122334455667788;
  greeting.job_id = "job";
  greeting.provider = "tcp;ofi_rxm";
  greeting.address = std::string("\0\1\2", 3);
  return greeting;
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
  notice.token = 1;
  notice.source = 2;
  notice.number = 0xfffffffe;
  notice.expected = 4;
  notice.envelope.front() = 5;
  notice.envelope.back() = 6;
  unsigned char bytes[kOfiNoticeBytes];
  EncodeOfiNotice(notice, bytes);
  const OfiNotice again = DecodeOfiNotice(bytes);
  EXPECT_EQ(again.token, 1u);
  EXPECT_EQ(again.source, 2u);
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

TEST(OfiWire, GreetingsComeBack) {
  const OfiGreeting greeting = AGreeting();
  OfiGreeting again;
  ASSERT_TRUE(DecodeOfiGreeting(EncodeOfiGreeting(greeting), &again));
  EXPECT_EQ(again.token, greeting.token);
  EXPECT_EQ(again.world_id, greeting.world_id);
  EXPECT_EQ(again.job_id, greeting.job_id);
  EXPECT_EQ(again.provider, greeting.provider);
  EXPECT_EQ(again.address, greeting.address);
  EXPECT_EQ(JudgeOfiGreeting(again, 1, greeting, Rank(2)).verdict, OfiVerdict::kAccepted);
}

TEST(OfiWire, WhatIsNoGreetingIsNone) {
  const std::string whole = EncodeOfiGreeting(AGreeting());
  OfiGreeting greeting;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(DecodeOfiGreeting(whole.substr(0, bytes), &greeting)) << bytes;
  }
  EXPECT_FALSE(DecodeOfiGreeting(whole + "x", &greeting));
  std::string other = whole;
  other[0] ^= 1;
  EXPECT_FALSE(DecodeOfiGreeting(other, &greeting)) << "the magic";
  // Lengths whose sum overflows 32 bits.
  other = whole;
  for (int i = 32; i < 40; ++i) other[i] = '\xff';
  EXPECT_FALSE(DecodeOfiGreeting(other, &greeting));
}

TEST(OfiWire, AGreetingOfAnotherVersionTellsItsVersionAndToken) {
  std::string bytes = EncodeOfiGreeting(AGreeting());
  bytes[4] = 9;
  OfiGreeting greeting;
  ASSERT_TRUE(DecodeOfiGreeting(bytes, &greeting));
  EXPECT_EQ(greeting.version, 9u);
  EXPECT_EQ(greeting.token, AGreeting().token);
  EXPECT_EQ(greeting.job_id, "");
}

TEST(OfiWire, GreetingsThatDoNotFitAreRefusedWithTheReason) {
  struct Case {
    void (*change)(OfiGreeting* greeting);
    uint32_t source;
    OfiVerdict verdict;
    const char* message;
  };
  const OfiGreeting own = AGreeting();
  for (const Case& c : {
           Case{[](OfiGreeting* g) { g->version = 2; }, 1, OfiVerdict::kOtherVersion, "version 1 of the protocol"},
           Case{[](OfiGreeting* g) { g->job_id = "x"; }, 1, OfiVerdict::kOtherJob, "another job than"},
           Case{[](OfiGreeting* g) { g->world_id = 1; }, 1, OfiVerdict::kOtherWorld, "another world of job"},
           Case{[](OfiGreeting* g) { g->world_size = 3; }, 1, OfiVerdict::kOtherWorldSize, "has 4 ranks, not 3"},
           Case{[](OfiGreeting* g) { g->target = 3; }, 1, OfiVerdict::kOtherRank, "it is rank 2, not 3"},
           Case{[](OfiGreeting*) {}, 2, OfiVerdict::kNoSuchRank, "in a world of 4 ranks and expects no greeting"},
           Case{[](OfiGreeting*) {}, 4, OfiVerdict::kNoSuchRank, "in a world of 4 ranks and expects no greeting"},
           Case{[](OfiGreeting* g) { g->chunk_bytes = 64; }, 1, OfiVerdict::kOtherChunkSize, "262144 bytes, this rank"},
           Case{[](OfiGreeting* g) { g->provider = "efa"; }, 1, OfiVerdict::kOtherProvider, "provider than efa"},
       }) {
    OfiGreeting greeting = own;
    c.change(&greeting);
    const OfiRefusal refusal = JudgeOfiGreeting(greeting, c.source, own, Rank(2));
    EXPECT_EQ(refusal.verdict, c.verdict) << c.message;
    unsigned char bytes[kOfiRefusalBytes];
    EncodeOfiRefusal(refusal, bytes);
    EXPECT_THAT(OfiRefusalStatus(DecodeOfiRefusal(bytes), greeting),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
  EXPECT_THAT(OfiRefusalStatus({OfiVerdict::kDuplicate, 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("claimed by two processes")));
  EXPECT_THAT(OfiRefusalStatus({OfiVerdict::kGone, 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has lost this rank")));
  EXPECT_THAT(OfiRefusalStatus({static_cast<OfiVerdict>(77), 0}, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("does not know (77)")));
}

}  // namespace
}  // namespace lockstep

#include "transport/shm/handshake.h"

#include <string>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

const ShmHello kHello = {"job", 17, 0x1234, Rank(1), Rank(2), 4096};
const ShmExpectation kExpectation = {{Rank(2), 3, "job", 17, 4096}, 0x1234};

TEST(ShmHandshake, AddressesAreText) {
  const ShmAddress address = {"lockstep-0123456789abcdef", 0xfe, 0xeffffffd};
  EXPECT_EQ(address.ToString(), "lockstep-0123456789abcdef/00000000000000fe/effffffd");
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmAddress parsed, ShmAddress::Parse(address.ToString()));
  EXPECT_EQ(parsed.name, address.name);
  EXPECT_EQ(parsed.nonce, address.nonce);
  EXPECT_EQ(parsed.user_namespace, address.user_namespace);
  for (const std::string text : {"", "//", "name", "name/00000000000000fe", "name/12/1", "/00000000000000fe/1",
                                 "a/b/00000000000000fe/1", "name/00000000000000fg/1", "name/00000000000000fe/",
                                 "name/00000000000000fe/g", "name/00000000000000fe/11111111111111111"}) {
    EXPECT_THAT(ShmAddress::Parse(text), StatusIs(Code::kInvalidArgument, HasSubstr("'" + text + "'")));
  }
  EXPECT_THAT(ShmAddress::Parse(std::string(101, 'a') + "/00000000000000fe/1"), StatusIs(Code::kInvalidArgument));
}

TEST(ShmHandshake, AHelloIsReadAsItWasWritten) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmHello hello, DecodeHello(EncodeHello(kHello)));
  EXPECT_EQ(hello.job_id, "job");
  EXPECT_EQ(hello.world_id, 17);
  EXPECT_EQ(hello.nonce, 0x1234);
  EXPECT_EQ(hello.source, Rank(1));
  EXPECT_EQ(hello.target, Rank(2));
  EXPECT_EQ(hello.chunk_bytes, 4096);
}

TEST(ShmHandshake, WhatIsNoHelloIsFoundOut) {
  const std::string good = EncodeHello(kHello);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THAT(DecodeHello(good.substr(0, length)), StatusIs(Code::kInvalidArgument)) << length << " bytes";
  }
  EXPECT_THAT(DecodeHello(good + "x"), StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(DecodeHello("GET / HTTP/1.1\r\n\r\n                                  "),
              StatusIs(Code::kInvalidArgument));
  std::string other_version = good;
  other_version[4] = 9;
  EXPECT_THAT(DecodeHello(other_version), StatusIs(Code::kFailedPrecondition, HasSubstr("version 9")));
  std::string negative = good;
  negative[27] = '\x80';
  EXPECT_THAT(DecodeHello(negative), StatusIs(Code::kInvalidArgument));
  // A job id that nobody can have: its length is in the last bytes before it.
  std::string long_job = good.substr(0, 40) + std::string(kShmJobIdBytesMax + 1, 'x');
  long_job[36] = 1;
  long_job[37] = 4;
  EXPECT_THAT(DecodeHello(long_job), StatusIs(Code::kInvalidArgument));
}

TEST(ShmHandshake, JudgesWhatDoesNotFit) {
  EXPECT_THAT(JudgeHello(kHello, kExpectation), IsOk());
  struct Case {
    ShmHello hello;
    const char* message;
  };
  for (const Case& c : {Case{{"job", 17, 1, Rank(1), Rank(2), 4096}, "nonce"},
                        Case{{"other", 17, 0x1234, Rank(1), Rank(2), 4096}, "another job than 'other'"},
                        Case{{"job", 18, 0x1234, Rank(1), Rank(2), 4096}, "another world of job 'job'"},
                        Case{{"job", 17, 0x1234, Rank(1), Rank(0), 4096}, "we are rank 2, not rank 0"},
                        Case{{"job", 17, 0x1234, Rank(3), Rank(2), 4096}, "no connection from rank 3"},
                        Case{{"job", 17, 0x1234, Rank(2), Rank(2), 4096}, "no connection from rank 2"},
                        Case{{"job", 17, 0x1234, Rank(1), Rank(2), 64}, "our chunk size is 4096 bytes, not 64"}}) {
    EXPECT_THAT(JudgeHello(c.hello, kExpectation), StatusIs(Code::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST(ShmHandshake, AnswersCarryAStatus) {
  EXPECT_THAT(DecodeAnswer(EncodeAnswer(absl::OkStatus())), IsOk());
  EXPECT_THAT(DecodeAnswer(EncodeAnswer(absl::ResourceExhaustedError("no room"))),
              StatusIs(Code::kResourceExhausted, "no room"));
  EXPECT_EQ(DecodeAnswer(EncodeAnswer(absl::InternalError(std::string(9000, 'x')))).message().size(), 2048);
  const std::string good = EncodeAnswer(absl::InternalError("why"));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_THAT(DecodeAnswer(good.substr(0, length)),
                StatusIs(Code::kFailedPrecondition, HasSubstr("no Lockstep peer")));
  }
  std::string other_version = good;
  other_version[4] = 1;
  EXPECT_THAT(DecodeAnswer(other_version), StatusIs(Code::kFailedPrecondition, HasSubstr("version 1")));
  std::string no_code = good;
  no_code[8] = 17;
  EXPECT_THAT(DecodeAnswer(no_code), StatusIs(Code::kFailedPrecondition, HasSubstr("no Lockstep peer")));
}

TEST(ShmHandshake, NoticesAreReadAsTheyWereWritten) {
  const ShmNotice notice = {ShmNoticeKind::kArena, 7, {16, 8192}, uint64_t{1} << 40};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ShmNotice read, DecodeNotice(EncodeNotice(notice)));
  EXPECT_EQ(read.kind, ShmNoticeKind::kArena);
  EXPECT_EQ(read.channel, 7);
  EXPECT_EQ(read.geometry.cells, 16);
  EXPECT_EQ(read.geometry.ring_bytes, 8192);
  EXPECT_EQ(read.bytes, uint64_t{1} << 40);

  const std::string good = EncodeNotice({ShmNoticeKind::kMailbox, 7, MailboxGeometry(), 0});
  EXPECT_THAT(DecodeNotice(good), IsOk());
  EXPECT_THAT(DecodeNotice(good.substr(1)), StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(DecodeNotice(good + "x"), StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(DecodeNotice(EncodeNotice({ShmNoticeKind(0), 7, {}, 0})), StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(DecodeNotice(EncodeNotice({ShmNoticeKind(5), 7, {}, 0})), StatusIs(Code::kInvalidArgument));
  EXPECT_THAT(DecodeNotice(EncodeNotice({ShmNoticeKind::kMailbox, 7, {3, 4096}, 0})), StatusIs(Code::kInvalidArgument));
}

}  // namespace
}  // namespace lockstep

#include "transport/tcp/zero_copy_stream.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cstring>
#include <vector>

#include "absl/types/optional.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// A message as the kernel makes them for an error queue: control messages of a level, a type and what is said.
class ControlMessages {
 public:
  ControlMessages& Add(int level, int type, const sock_extended_err& said, size_t bytes = sizeof(sock_extended_err)) {
    const size_t begin = control_.size();
    control_.resize(begin + CMSG_SPACE(bytes));
    cmsghdr header = {};
    header.cmsg_len = CMSG_LEN(bytes);
    header.cmsg_level = level;
    header.cmsg_type = type;
    std::memcpy(control_.data() + begin, &header, sizeof(header));
    std::memcpy(control_.data() + begin + CMSG_LEN(0), &said, bytes);
    return *this;
  }

  absl::optional<ReleasedSends> Parse() {
    msghdr message = {};
    message.msg_control = control_.data();
    message.msg_controllen = control_.size();
    return ParseReleasedSends(&message);
  }

 private:
  std::vector<char> control_;
};

sock_extended_err Said(uint32_t first, uint32_t last, int code = 0) {
  sock_extended_err said = {};
  said.ee_origin = SO_EE_ORIGIN_ZEROCOPY;
  said.ee_code = static_cast<uint8_t>(code);
  said.ee_info = first;
  said.ee_data = last;
  return said;
}

TEST(ParseReleasedSendsTest, ReadsTheRangeOfEitherFamily) {
  const auto ipv4 = ControlMessages().Add(IPPROTO_IP, IP_RECVERR, Said(3, 7)).Parse();
  ASSERT_TRUE(ipv4.has_value());
  EXPECT_EQ(ipv4->first, 3);
  EXPECT_EQ(ipv4->last, 7);
  EXPECT_FALSE(ipv4->copied);
  const auto ipv6 =
      ControlMessages().Add(IPPROTO_IPV6, IPV6_RECVERR, Said(0xFFFFFFFF, 1, SO_EE_CODE_ZEROCOPY_COPIED)).Parse();
  ASSERT_TRUE(ipv6.has_value());
  EXPECT_EQ(ipv6->first, 0xFFFFFFFF);
  EXPECT_EQ(ipv6->last, 1);
  EXPECT_TRUE(ipv6->copied);
}

TEST(ParseReleasedSendsTest, FindsItBehindOthers) {
  const auto released =
      ControlMessages().Add(SOL_SOCKET, SO_TIMESTAMPING, {}, 3).Add(IPPROTO_IP, IP_RECVERR, Said(1, 1)).Parse();
  ASSERT_TRUE(released.has_value());
  EXPECT_EQ(released->first, 1);
}

TEST(ParseReleasedSendsTest, WhatIsAboutSomethingElseIsNone) {
  EXPECT_FALSE(ControlMessages().Parse().has_value());
  EXPECT_FALSE(ControlMessages().Add(IPPROTO_IP, IP_TTL, Said(1, 1)).Parse().has_value());
  EXPECT_FALSE(ControlMessages().Add(IPPROTO_IPV6, IP_RECVERR, Said(1, 1)).Parse().has_value());
  EXPECT_FALSE(ControlMessages().Add(IPPROTO_IP, IP_RECVERR, Said(1, 1), 8).Parse().has_value()) << "too short";
  sock_extended_err unreachable = Said(1, 1);
  unreachable.ee_origin = SO_EE_ORIGIN_ICMP;
  EXPECT_FALSE(ControlMessages().Add(IPPROTO_IP, IP_RECVERR, unreachable).Parse().has_value());
  sock_extended_err failed = Said(1, 1);
  failed.ee_errno = ENOMEM;
  EXPECT_FALSE(ControlMessages().Add(IPPROTO_IP, IP_RECVERR, failed).Parse().has_value());
}

TEST(ZeroCopySendsTest, TheOldestThatIsOutstandingTellsHowFarMemoryIsFree) {
  ZeroCopySends sends;
  EXPECT_TRUE(sends.empty());
  for (const uint64_t position : {100, 200, 300}) sends.Add(position);
  EXPECT_EQ(sends.position(), 100);
  sends.Release({0, 1, false});
  EXPECT_EQ(sends.position(), 300);
  sends.Add(400);
  sends.Release({2, 3, false});
  EXPECT_TRUE(sends.empty());
}

TEST(ZeroCopySendsTest, WhatIsReleasedEarlyWaitsForWhatIsBeforeIt) {
  ZeroCopySends sends;
  for (const uint64_t position : {0, 10, 20, 30}) sends.Add(position);
  sends.Release({1, 1, false});
  sends.Release({3, 3, false});
  EXPECT_EQ(sends.position(), 0);
  sends.Release({0, 0, false});
  EXPECT_EQ(sends.position(), 20);
  sends.Release({2, 2, false});
  EXPECT_TRUE(sends.empty());
}

TEST(ZeroCopySendsTest, NumbersThatAreNotOutstandingChangeNothing) {
  ZeroCopySends sends;
  sends.Release({0, 5, false});
  sends.Add(0);
  sends.Release({0, 0, false});
  sends.Add(10);
  sends.Release({0, 0, false});
  sends.Release({2, 100, false});
  sends.Release({0xFFFFFFF0, 0, false});
  EXPECT_FALSE(sends.empty());
  EXPECT_EQ(sends.position(), 10);
}

// All the room there is, over the number behind which they begin anew.
TEST(ZeroCopySendsTest, NumbersWrap) {
  for (const uint32_t first : {0xFFFFFFFFu, 0xFFFFFF80u, 0xFFFFFF00u}) {
    ZeroCopySends sends(first);
    for (uint32_t i = 0; i < ZeroCopySends::kOutstandingMax; ++i) {
      EXPECT_FALSE(sends.full());
      sends.Add(i);
    }
    EXPECT_TRUE(sends.full());
    sends.Release({first, first + 199, false});
    EXPECT_EQ(sends.position(), 200);
    sends.Release({first + 201, first + ZeroCopySends::kOutstandingMax - 1, false});
    EXPECT_EQ(sends.position(), 200);
    sends.Release({first + 200, first + 200, false});
    EXPECT_TRUE(sends.empty());
  }
}

}  // namespace
}  // namespace lockstep

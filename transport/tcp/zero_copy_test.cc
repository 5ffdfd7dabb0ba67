// Zero-copy sends over sockets. The kernel copies what reaches a socket of the same machine, but not before: what waits
// for the peer's window lies in the sender's memory, and that is what most of this plays with. tcp_transport_test.cc has
// everything else with zero-copy sends on.

#include "transport/tcp/tcp_stream.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/fork.h"
#include "base/fork_testing.h"
#include "base/log.h"
#include "base/log_testing.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport_testing.h"
#include "transport/link/link.h"
#include "transport/net/socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp_testing.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using Code = absl::StatusCode;
using testing::HasSubstr;

constexpr char kNoMore[] = "no more zero-copy sends to 127.0.0.1:";

// Everything there is to read, and the errno with which it ends: 0 for an orderly end, EAGAIN when none came in time.
int ReadToEnd(int socket, std::vector<unsigned char>* arrived) {
  const Deadline deadline = TestDeadline();
  for (;;) {
    pollfd readable = {socket, POLLIN, 0};
    (void)poll(&readable, 1, deadline.remaining_ms());
    unsigned char piece[4096];
    const ssize_t bytes = recv(socket, piece, sizeof(piece), MSG_DONTWAIT);
    if (bytes == 0) return 0;
    if (bytes < 0 && (errno != EAGAIN || deadline.passed())) return errno;
    if (bytes > 0) arrived->insert(arrived->end(), piece, piece + bytes);
  }
}

class ZeroCopyTest : public TcpFixture {
 protected:
  // Less than the kernel takes from us at once, far more than the peer's window.
  static constexpr size_t kBytes = size_t{1} << 20;

  ZeroCopyTest() : level_(GetLogLevel()) { SetLogLevel(LogLevel::kInfo); }
  ~ZeroCopyTest() override { SetLogLevel(level_); }

  void CreateWorld(bool zero_copy) {
    Create(2, [zero_copy](TcpTransportOptions* options) {
      options->tuning.zero_copy = zero_copy;
      options->tuning.send_buffer_bytes = 2 << 20;
    });
  }

  // Somebody who is rank 0 to rank 1, has little room, and reads only when the test does.
  UniqueFd ConnectSlowReader() {
    TestPeer reader = Say(1, "");
    // Segments over loopback are of 64 KiB: with room for less than one the kernel waits between any two.
    const int room = 128 << 10;
    EXPECT_EQ(setsockopt(reader.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
    const std::string hello = EncodeHello(AHello(0));
    EXPECT_THAT(SendAll(reader.get(), hello.data(), hello.size(), TestDeadline()), IsOk());
    const absl::StatusOr<Answer> answer = ReadAnswer(reader);
    EXPECT_THAT(answer, IsOk());
    return std::move(reader.socket);
  }

  // Lets rank 1 give the kernel all that it takes.
  void HandOver() {
    while (rank(1)->Progress()) {
    }
  }

  // A zero-copy send of rank 1 that the kernel has taken, and whose memory it has not released.
  void BeginSlowSend() {
    CreateWorld(/*zero_copy=*/true);
    reader_ = ConnectSlowReader();
    rank(1)->Send(Rank(0), 0, TestEnvelope(1), data_.data(), data_.size(), &send_);
    HandOver();
    ASSERT_FALSE(send_.done());
  }

  std::vector<unsigned char> data_ = TestPayload(kBytes, 1);
  TestOperation send_;
  UniqueFd reader_;

 private:
  const LogLevel level_;
};

TEST_F(ZeroCopyTest, ASendCompletesWhenItsMemoryIsFree) {
  for (const bool zero_copy : {false, true}) {
    SCOPED_TRACE(zero_copy);
    CreateWorld(zero_copy);
    const UniqueFd reader = ConnectSlowReader();
    TestOperation send, small;
    rank(1)->Send(Rank(0), 0, TestEnvelope(1), data_.data(), data_.size(), &send);
    rank(1)->Send(Rank(0), 0, TestEnvelope(2), "x", 1, &small);
    HandOver();
    EXPECT_EQ(send.done(), !zero_copy) << "the kernel has taken all of it";
    EXPECT_EQ(small.done(), !zero_copy) << "in their order";
    std::vector<unsigned char> arrived(2 * kMessageHeaderBytes + data_.size() + 1);
    ASSERT_THAT(ReceiveAll(reader.get(), arrived.data(), arrived.size(), TestDeadline()), IsOk());
    ASSERT_TRUE(Await(rank(1), [&] { return small.done(); }));
    EXPECT_THAT(send.status, IsOk());
    EXPECT_THAT(small.status, IsOk());
    EXPECT_TRUE(std::equal(data_.begin(), data_.end(), arrived.begin() + kMessageHeaderBytes));
  }
}

TEST_F(ZeroCopyTest, TurnsItselfOffWhereTheKernelCopies) {
  CreateWorld(/*zero_copy=*/true);
  LogLines log;
  for (int i = 0; i < 5; ++i) {
    std::vector<unsigned char> target(LargePayload().size());
    EXPECT_THAT(Exchange(0, 1, 0, LargePayload().data(), target.data(), target.size()), IsOk());
    EXPECT_TRUE(target == LargePayload());
  }
  EXPECT_THAT(log.lines(), testing::ElementsAre(HasSubstr(kNoMore + std::to_string(rank(1)->address().port()))));
}

// A sender that gave up may use its memory again: the peer must not be sent what it puts there.
TEST_F(ZeroCopyTest, AnAbortedSendsMemoryIsNotSentAnyMore) {
  BeginSlowSend();
  const std::vector<unsigned char> original = data_;
  rank(1)->AbortChannel(0, absl::AbortedError("given up"));
  EXPECT_THAT(send_.status, StatusIs(Code::kAborted, "given up"));
  std::fill(data_.begin(), data_.end(), 0);

  std::vector<unsigned char> arrived;
  EXPECT_EQ(ReadToEnd(reader_.get(), &arrived), ECONNRESET);
  ASSERT_LE(arrived.size(), kMessageHeaderBytes + kBytes);
  const size_t header = std::min(arrived.size(), kMessageHeaderBytes);
  EXPECT_TRUE(std::equal(arrived.begin() + header, arrived.end(), original.begin()));
}

TEST_F(ZeroCopyTest, WhatAPeerTookBeforeItClosedWasSent) {
  BeginSlowSend();
  std::vector<unsigned char> arrived(kMessageHeaderBytes + data_.size());
  ASSERT_THAT(ReceiveAll(reader_.get(), arrived.data(), arrived.size(), TestDeadline()), IsOk());
  reader_.reset();
  // One event tells of both: that the memory is free, and that the connection is closed.
  ASSERT_TRUE(Await(rank(1), [&] { return send_.done(); }));
  EXPECT_THAT(send_.status, IsOk());
}

TEST_F(ZeroCopyTest, CloseWaitsForTheMemory) {
  BeginSlowSend();
  EXPECT_THAT(rank(1)->Close(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded, testing::_));
  EXPECT_THAT(send_.status, StatusIs(Code::kCancelled, testing::_));
}

TEST_F(ZeroCopyTest, AForkedChildDoesNotDisturbWhatIsUnderWay) {
  BeginSlowSend();
  const int in_child = RunInForkedChild(
      [&] {
        rank(1)->Progress();
        if (!absl::IsFailedPrecondition(send_.status)) return 1;
        ranks_.clear();
        return 0;
      },
      TestDeadline());
  EXPECT_EQ(in_child, 0);
  std::vector<unsigned char> arrived(kMessageHeaderBytes + data_.size());
  ASSERT_THAT(ReceiveAll(reader_.get(), arrived.data(), arrived.size(), TestDeadline()), IsOk());
  ASSERT_TRUE(Await(rank(1), [&] { return send_.done(); }));
  EXPECT_THAT(send_.status, IsOk());
}

// A process that may lock no memory. That nothing was sent without a copy shows in the log: over loopback the first such
// send is one that the kernel copies.
TEST_F(ZeroCopyTest, WhatMayNotBeLockedIsCopied) {
  constexpr int kNotLimited = 100;
  const int in_child = RunInForkedChild(
      [&] {
        const rlimit none = {0, 0};
        if (setrlimit(RLIMIT_MEMLOCK, &none) != 0) return 1;
        // Root may lock as much as it likes; "nobody", and the root of a sandbox, may not.
        (void)!setresuid(65534, 65534, 65534);
        if (mlock(&none, sizeof(none)) == 0) return kNotLimited;
        CreateWorld(/*zero_copy=*/true);
        LogLines log;
        for (int i = 0; i < 3; ++i) {
          std::vector<unsigned char> target(kBytes);
          const std::vector<unsigned char> data = TestPayload(kBytes, i);
          if (!Exchange(0, 1, 0, data.data(), target.data(), kBytes).ok()) return 2;
          if (target != data) return 3;
        }
        for (const std::string& line : log.lines()) {
          if (line.find(kNoMore) != std::string::npos) return 4;
        }
        return 0;
      },
      TestDeadline());
  if (in_child == kNotLimited) GTEST_SKIP() << "this process may lock memory whatever its limit";
  EXPECT_EQ(in_child, 0);
}

// ---- What needs no socket.

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

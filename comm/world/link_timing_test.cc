#include "comm/world/link_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/engine/progress_engine.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "transport/loopback/loopback.h"
#include "transport/net/little_endian.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr ChannelId kChannel = 4;

Deadline Soon() { return Deadline::AfterMs(30'000); }

// What the patterns take on such a link, by the model.
LinkTimes TimesOn(const LinkCosts& link, int stream_messages, int bulk_messages, double bulk_message_bytes) {
  LinkTimes times;
  times.echo_round_ns = 2 * (link.message_ns + link.latency_ns);
  times.stream_messages = stream_messages;
  times.stream_ns = (stream_messages + 1) * link.message_ns + 2 * link.latency_ns;
  times.bulk_messages = bulk_messages;
  times.bulk_message_bytes = bulk_message_bytes;
  times.bulk_ns = bulk_messages * (link.message_ns + bulk_message_bytes * link.byte_ns);
  return times;
}

bool Positive(const LinkCosts& costs) {
  const auto positive = [](double cost) { return cost > 0 && std::isfinite(cost); };
  return positive(costs.latency_ns) && positive(costs.byte_ns) && positive(costs.message_ns);
}

TEST(LinkTiming, CostsAreThoseThatTakeTheseTimesInTheModel) {
  for (const LinkCosts& link : {kSharedMemory, kTcpOnOneHost, kTcpBetweenHosts, kLoopback}) {
    for (const int stream_messages : {2, 64}) {
      for (const int bulk_messages : {1, 8}) {
        const LinkCosts costs = CostsOf(TimesOn(link, stream_messages, bulk_messages, 131072));
        EXPECT_THAT(costs.latency_ns, DoubleNear(link.latency_ns, 1e-6 * link.latency_ns));
        EXPECT_THAT(costs.message_ns, DoubleNear(link.message_ns, 1e-6 * link.message_ns));
        EXPECT_THAT(costs.byte_ns, DoubleNear(link.byte_ns, 1e-6 * link.byte_ns));
      }
    }
  }
}

// A rank may lose its core in one pattern and not in another.
TEST(LinkTiming, CostsArePositiveWhateverTheTimes) {
  for (const double echo : {0.0, 1.0, 1e3, 1e9}) {
    for (const double stream : {0.0, 1.0, 1e3, 1e9}) {
      for (const double bulk : {0.0, 1.0, 1e3, 1e9}) {
        const LinkCosts costs = CostsOf({echo, stream, bulk, 64, 8, 131072});
        EXPECT_TRUE(Positive(costs)) << echo << " " << stream << " " << bulk;
        // What was waited for is never taken to be more than it was.
        EXPECT_LE(costs.latency_ns + costs.message_ns, std::max(echo / 2, 2.0));
      }
    }
  }
}

// Two ranks that are threads, over a loopback network.
class LinkTimingTest : public ::testing::Test {
 protected:
  explicit LinkTimingTest(LoopbackOptions options = {}) : network_(2, std::move(options)) {
    for (int rank = 0; rank < 2; ++rank) {
      transports_.push_back(network_.CreateTransport(Rank(rank)));
      engines_.push_back(std::make_unique<ProgressEngine>(transports_[rank].get(), std::chrono::nanoseconds::zero()));
    }
  }
  ~LinkTimingTest() override { engines_.clear(); }

  LinkSide SideOf(int rank, ChannelId channel, Deadline deadline) {
    LinkSide side;
    side.engine = engines_[rank].get();
    side.channel = channel;
    side.peer = Rank(1 - rank);
    side.deadline = deadline;
    return side;
  }
  absl::StatusOr<LinkCosts> Lead(Deadline deadline = Soon()) { return TimeLink(SideOf(0, kChannel, deadline)); }
  absl::Status Follow(Deadline deadline = Soon()) { return FollowLinkTiming(SideOf(1, kChannel, deadline)); }

  LoopbackNetwork network_;
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<ProgressEngine>> engines_;
};

// Twice on one channel: had a message been left over, the second time would receive it.
TEST_F(LinkTimingTest, GivesCostsAndLeavesTheChannelEmpty) {
  for (int time = 0; time < 2; ++time) {
    absl::StatusOr<LinkCosts> costs = absl::UnknownError("not timed");
    absl::Status followed;
    RunRanks(2, [&](int rank) { rank == 0 ? void(costs = Lead()) : void(followed = Follow()); });
    ASSERT_THAT(costs, IsOk());
    EXPECT_TRUE(Positive(*costs)) << costs->latency_ns << " " << costs->byte_ns << " " << costs->message_ns;
    EXPECT_THAT(followed, IsOk());
  }
  const PeerCounters leader = transports_[0]->counters(Rank(1)), follower = transports_[1]->counters(Rank(0));
  EXPECT_EQ(leader.sent_messages, follower.received_messages);
  EXPECT_EQ(follower.sent_messages, leader.received_messages);
}

TEST_F(LinkTimingTest, APeerThatDoesNotTakePartIsNamedAtTheDeadline) {
  EXPECT_THAT(Lead(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 1 did not go on")));
  EXPECT_THAT(Follow(), StatusIs(Code::kUnavailable)) << "its channel was closed";
}

// What is told instead of an error, and whether the peer could still have gone on then.
TEST_F(LinkTimingTest, AnErrorIsExplainedBeforeThePeerIsCutOff) {
  absl::Status followed = absl::UnknownError("goes on");
  LinkSide leader = SideOf(0, kChannel, Deadline::AfterMs(20));
  leader.explain = [&](const absl::Status& error) {
    EXPECT_THAT(error, StatusIs(Code::kDeadlineExceeded));
    followed = Follow(Deadline::AfterMs(20));
    return absl::AbortedError("rank 1 is asleep");
  };
  EXPECT_THAT(TimeLink(leader), StatusIs(Code::kAborted, "rank 1 is asleep"));
  EXPECT_THAT(followed, StatusIs(Code::kDeadlineExceeded)) << "its channel was open";
}

TEST_F(LinkTimingTest, AFollowerWaitsForItsLeaderNoLongerThanItsDeadline) {
  EXPECT_THAT(Follow(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded, HasSubstr("rank 0 did not go on")));
}

TEST_F(LinkTimingTest, APeerThatDiesIsAnError) {
  network_.Disconnect(Rank(1));
  EXPECT_THAT(Lead(), StatusIs(Code::kUnavailable, HasSubstr("rank 1")));
}

// Sees each message's envelope on its way.
class LinkTimingRequestTest : public LinkTimingTest {
 protected:
  LinkTimingRequestTest() : LinkTimingTest(Observed(this)) {}

  static LoopbackOptions Observed(LinkTimingRequestTest* self) {
    LoopbackOptions options;
    options.observer = [self](const LoopbackMessage& message) {
      if (message.source == Rank(0)) self->envelope_ = message.envelope;
    };
    return options;
  }

  Envelope envelope_ = {};  // of what rank 0 sent last
};

// More messages than there is room for are refused, wherever the number comes from.
TEST_F(LinkTimingRequestTest, ACountOutOfRangeIsRefused) {
  EXPECT_THAT(Lead(Deadline::AfterMs(20)), StatusIs(Code::kDeadlineExceeded));
  ASSERT_NE(envelope_, Envelope());
  ChannelId channel = kChannel;
  for (const uint32_t count : {uint32_t{257}, ~uint32_t{0}}) {
    ++channel;
    unsigned char request[sizeof(count)];
    StoreLittleEndian<uint32_t>(count, request);
    Operation operation;
    operation.complete = [](Operation*, const absl::Status&) {};
    {
      MutexLock lock(engines_[0]->mutex());
      transports_[0]->Send(Rank(1), channel, envelope_, request, sizeof(request), &operation);
    }
    EXPECT_THAT(FollowLinkTiming(SideOf(1, channel, Soon())),
                StatusIs(Code::kInternal, HasSubstr(absl::StrCat("rank 0 asks for ", count, " messages"))));
    MutexLock lock(engines_[0]->mutex());
    transports_[0]->AbortChannel(channel, absl::CancelledError("sent"));
  }
}

}  // namespace
}  // namespace lockstep

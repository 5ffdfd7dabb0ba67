#include "comm/world/link_measurement.h"

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "comm/engine/progress_engine.h"
#include "comm/schedule/schedule.h"
#include "comm/topology/link_costs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"
#include "transport/control/control.h"
#include "transport/control/control_types.h"
#include "transport/loopback/loopback.h"
#include "transport/net/socket.h"
#include "transport/store/store_memory.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::lockstep::testing::RunRanks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

Deadline Soon() { return Deadline::AfterMs(30'000); }

// One rank for each letter, which names its host; numbered in the order of their lowest ranks.
Topology On(const std::string& hosts) {
  Topology topology;
  std::map<char, int32_t> numbers;
  for (const char host : hosts) {
    const auto number = static_cast<int32_t>(numbers.size());
    topology.host_of_rank.push_back(numbers.try_emplace(host, number).first->second);
  }
  return topology;
}

// "0-1" inside a host, "0~4" between hosts.
std::vector<std::string> PairsOn(const std::string& hosts) {
  std::vector<std::string> pairs;
  for (const MeasuredPair& pair : PairsToMeasure(On(hosts))) {
    pairs.push_back(absl::StrCat(pair.leader.value(), pair.local ? "-" : "~", pair.follower.value()));
  }
  return pairs;
}

TEST(LinkMeasurement, OneOfEachHostsPairsAndOneOfEveryTwoHosts) {
  EXPECT_THAT(PairsOn("a"), IsEmpty());
  EXPECT_THAT(PairsOn("aa"), ElementsAre("0-1"));
  EXPECT_THAT(PairsOn("aaaa"), ElementsAre("0-1"));
  EXPECT_THAT(PairsOn("ab"), ElementsAre("0~1"));
  EXPECT_THAT(PairsOn("abc"), ElementsAre("0~1"));
  EXPECT_THAT(PairsOn("aabb"), ElementsAre("0-1", "2-3", "0~2"));
  EXPECT_THAT(PairsOn("abab"), ElementsAre("0-2", "1-3", "0~1"));
  EXPECT_THAT(PairsOn("abbcd"), ElementsAre("1-2", "0~1", "3~4"));
}

// However many ranks there are, few measure, and no rank does two things at once: it is in one pair of each kind.
TEST(LinkMeasurement, AFewPairsMeasureInALargeWorld) {
  std::string hosts;
  for (char host = 'A'; host < 'A' + 50; ++host) hosts += std::string(20, host);
  const std::vector<MeasuredPair> pairs = PairsToMeasure(On(hosts));
  EXPECT_EQ(pairs.size(), 8 + 4);
  std::set<std::pair<int, bool>> seen;
  bool local = true;
  for (const MeasuredPair& pair : pairs) {
    EXPECT_TRUE(seen.emplace(pair.leader.value(), pair.local).second);
    EXPECT_TRUE(seen.emplace(pair.follower.value(), pair.local).second);
    EXPECT_TRUE(local || !pair.local) << "inside hosts first";
    local = pair.local;
    EXPECT_EQ(hosts[pair.leader.value()] == hosts[pair.follower.value()], pair.local);
  }
}

TEST(LinkMeasurement, NotesKeepTwoDigits) {
  const MeasuredCosts costs = {{123.4, 0.0876, 98.7}, {20'400, 0.8149, 1'951}, 0.0555, 0.0444};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const MeasuredCosts read, DecodeMeasuredCosts(EncodeMeasuredCosts(costs)));
  EXPECT_EQ(
      Describe(read),
      "links measured: local 120 ns + 0.088 ns/B + 99 ns a message; remote 20000 ns + 0.81 ns/B + 2000 ns a message; "
      "0.056 ns/B reduced, 0.044 ns/B copied; not built in");
  EXPECT_EQ(EncodeMeasuredCosts(read), EncodeMeasuredCosts(costs));
  for (const char* text : {"", "1 2 3", "1 2 3 4 5 6 7 x", "1 2 3 4 5 6 7 -1", "1 2 3 4 5 6 7 inf", "1 2 3 4 5 6 7 nan",
                           "1 2 3 4 5 6 7 8 9"}) {
    EXPECT_THAT(DecodeMeasuredCosts(text), StatusIs(Code::kInternal, HasSubstr(text))) << text;
  }
}

TEST(LinkMeasurement, TheSlowestOfEachCounts) {
  const MeasuredCosts a = {{100, 0.2, 50}, {0, 0, 0}, 0.1, 0.3};
  const MeasuredCosts b = {{200, 0.1, 40}, {9000, 1, 2000}, 0.2, 0.1};
  EXPECT_EQ(Describe(Slowest(a, b)), Describe({{200, 0.2, 50}, {9000, 1, 2000}, 0.2, 0.3}));
  EXPECT_EQ(Describe(Slowest(b, a)), Describe(Slowest(a, b)));
}

TEST(LinkMeasurement, WhatWasNotMeasuredStaysBuiltIn) {
  Network network = MakeNetwork(kSharedMemory, kTcpBetweenHosts, 4);
  Apply({{100, 0.2, 50}, {}, 0.1, 0.3}, &network);
  EXPECT_EQ(network.local.latency_ns, 100);
  EXPECT_EQ(network.local.byte_ns, 0.2);
  EXPECT_EQ(network.local.message_ns, 50);
  EXPECT_EQ(network.remote.latency_ns, kTcpBetweenHosts.latency_ns);
  EXPECT_EQ(network.reduced_byte_ns, 0.1);
  EXPECT_EQ(network.copied_byte_ns, 0.3);
  EXPECT_EQ(network.ranks_per_host, 4);
  EXPECT_EQ(
      Describe({{100, 0.2, 50}, {}, 0.1, 0.3}),
      "links measured: local 100 ns + 0.2 ns/B + 50 ns a message; 0.1 ns/B reduced, 0.3 ns/B copied; not built in");
  Apply({{}, {9000, 1, 2000}, 0, 0}, &network);
  EXPECT_EQ(network.local.latency_ns, 100);
  EXPECT_EQ(network.remote.latency_ns, 9000);
  EXPECT_EQ(network.reduced_byte_ns, 0.1);
}

// Ranks that are threads, with a control channel and a loopback network.
class MeasureLinksTest : public ::testing::Test {
 protected:
  static constexpr ChannelId kChannel = 0;

  void Start(int size) {
    network_ = std::make_unique<LoopbackNetwork>(size);
    ranks_.resize(size);
    RunRanks(size, [&](int rank) {
      Member& member = ranks_[rank];
      member.transport = network_->CreateTransport(Rank(rank));
      member.engine = std::make_unique<ProgressEngine>(member.transport.get(), std::chrono::nanoseconds::zero());
      ControlOptions options;
      options.rank = Rank(rank);
      options.size = size;
      options.job_id = "job";
      options.coordinator_bind_address = *SocketAddress::Parse("127.0.0.1:0");
      options.on_failure = [](const Failure&) {};
      options.progress = [] { return std::vector<std::pair<ChannelId, Progress>>(); };
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(std::unique_ptr<ControlChannel> control,
                                    ControlChannel::Create(std::move(options), &store_, Soon()));
      member.control = std::move(control);
      lockstep::Member self;
      self.rank = Rank(rank);
      self.host = "h";
      ASSERT_THAT(member.control->Join(self, {}, Soon()), IsOk());
    });
  }

  absl::StatusOr<MeasuredCosts> Measure(int rank, const std::string& hosts, Deadline deadline = Soon()) {
    return MeasureLinks(ranks_[rank].engine.get(), ranks_[rank].control.get(), kChannel, On(hosts), deadline);
  }

  ~MeasureLinksTest() override {
    for (Member& member : ranks_) {
      member.engine.reset();
      if (member.control != nullptr) member.control->Leave();
    }
  }

 private:
  struct Member {
    std::unique_ptr<Transport> transport;
    std::unique_ptr<ProgressEngine> engine;
    std::unique_ptr<ControlChannel> control;
  };

  MemoryStore store_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::vector<Member> ranks_;
};

TEST_F(MeasureLinksTest, ARankThatDoesNotTakePartIsTheSameErrorOnAllOthers) {
  Start(4);
  std::vector<absl::Status> errors(4, absl::DeadlineExceededError("did not take part"));
  RunRanks(4, [&](int rank) {
    // The ranks that lead give up first: theirs is the error that says most.
    if (rank != 1) errors[rank] = Measure(rank, "aabb", rank == 0 ? Deadline::AfterMs(100) : Soon()).status();
  });
  EXPECT_THAT(errors[0],
              StatusIs(Code::kDeadlineExceeded, AllOf(HasSubstr("measure the link between ranks 0 and 1 of one host"),
                                                      HasSubstr("rank 1 did not go on in time"))));
  EXPECT_EQ(errors[2], errors[0]);
  EXPECT_EQ(errors[3], errors[0]);
}

// Ranks 2 and 3 do not measure: they sleep until the others are done, or until their own deadline.
TEST_F(MeasureLinksTest, ARankThatOnlyWaitsSaysForWhatAtItsDeadline) {
  Start(4);
  EXPECT_THAT(Measure(2, "aaaa", Deadline::AfterMs(20)),
              StatusIs(Code::kDeadlineExceeded, HasSubstr("wait for the ranks that measure links")));
}

}  // namespace
}  // namespace lockstep

#include "comm/memory_prices.h"

#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "comm/link_costs.h"
#include "comm/meeting_costs.h"
#include "comm/schedule.h"
#include "comm/schedule_testing.h"
#include "comm/simulator.h"
#include "comm/stage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr Network kOneHost = MakeNetwork(kSharedMemory, kTcpBetweenHosts, /*ranks_per_host=*/128);

// What can be given in one line, what cannot, and what divides by nothing.
constexpr int64_t kSizes[] = {0, 8, 24, 25, 1000, 100'003, 3 << 20};

TEST(MemoryPrices, EqualTheSimulation) {
  int possible = 0;
  for (Collective collective : AllCollectives()) {
    for (Algorithm algorithm : AlgorithmsFor(collective)) {
      if (!IsByMemory(algorithm)) continue;
      for (int size : {2, 3, 4, 5, 7, 8, 16, 17, 33, 64, 100, 128}) {
        const std::vector<Schedule> schedules = BuildAll(collective, algorithm, size);
        for (int64_t bytes : kSizes) {
          const double price = MemoryPriceNs(collective, algorithm, size, bytes, kOneHost);
          const absl::StatusOr<Simulation> simulation = Simulate(schedules, bytes, kOneHost);
          SCOPED_TRACE(Name(algorithm) + " " + Name(collective) + ", " + std::to_string(size) + " ranks, " +
                       std::to_string(bytes) + " bytes");
          if (price == kImpossible) {
            EXPECT_THAT(simulation, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 24 can be given")));
            continue;
          }
          ++possible;
          LOCKSTEP_ASSERT_OK(simulation);
          EXPECT_NEAR(simulation->ns, price, 1e-9 * price);
        }
      }
    }
  }
  EXPECT_GT(possible, 12 * 8 * static_cast<int>(std::size(kSizes)));
}

// By hand: two meetings, or one, and what every rank does.
TEST(MemoryPrices, AreMeetingsAndBytes) {
  const auto ns = [](Collective collective, Algorithm algorithm, int64_t bytes) {
    return MemoryPriceNs(collective, algorithm, /*size=*/4, bytes, kOneHost);
  };
  const double meeting = MeetingNs(4), fold = 3 * kReducedByteNs, copy = kCopiedByteNs, write = copy / 2;
  EXPECT_DOUBLE_EQ(meeting, 3 * kLine.message_ns + kLine.latency_ns);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kOnePass, 4000), 2 * meeting + 1000 * (fold + 3 * write));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduce, Algorithm::kOnePass, 4000), 2 * meeting + 1000 * fold);
  EXPECT_DOUBLE_EQ(ns(Collective::kReduceScatter, Algorithm::kOnePass, 4000), 2 * meeting + 1000 * fold);
  EXPECT_DOUBLE_EQ(ns(Collective::kBroadcast, Algorithm::kOnePass, 4000), 2 * meeting + 4000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllGather, Algorithm::kOnePass, 4000), 2 * meeting + 4000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllToAll, Algorithm::kOnePass, 4000), 2 * meeting + 4000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kGather, Algorithm::kOnePass, 4000), 2 * meeting + 1000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kScatter, Algorithm::kOnePass, 4000), 2 * meeting + 1000 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kOneLine, 24), meeting + 24 * fold);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllGather, Algorithm::kOneLine, 96), meeting + 96 * copy);
  EXPECT_DOUBLE_EQ(ns(Collective::kBarrier, Algorithm::kOneLine, 0), meeting);
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kStaged, 4000), meeting + 4000 * (copy + fold));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllReduce, Algorithm::kStagedTwoShot, 4000),
                   2 * meeting + 1000 * (3 * copy + fold + write + 3 * copy));
  EXPECT_DOUBLE_EQ(ns(Collective::kReduceScatter, Algorithm::kStaged, 4000), meeting + 1000 * (3 * copy + fold));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllGather, Algorithm::kStaged, 4000), meeting + 1000 * (copy + 4 * copy));
  EXPECT_DOUBLE_EQ(ns(Collective::kAllToAll, Algorithm::kStaged, 4000), meeting + 1000 * (3 * copy + 4 * copy));
}

// A tick for each piece of a block, and one less than there are phases.
TEST(MemoryPrices, AStageTakesAMeetingForEachPiece) {
  const double piece = static_cast<double>(StagePieceBytes(4));
  const auto meetings = [&](double bytes) {
    const double work = bytes / 4 * (3 * kReducedByteNs + 6.5 * kCopiedByteNs);
    const double ns = MemoryPriceNs(Collective::kAllReduce, Algorithm::kStagedTwoShot, /*size=*/4,
                                    static_cast<int64_t>(bytes), kOneHost);
    return (ns - work) / MeetingNs(4);
  };
  EXPECT_NEAR(meetings(4 * piece), 2, 1e-6);
  EXPECT_NEAR(meetings(4 * piece + 4), 3, 1e-6);
  EXPECT_NEAR(meetings(400 * piece), 101, 1e-6);
}

TEST(MemoryPrices, AreForOneHostAndForWhatALineHolds) {
  const auto ns = [](Collective collective, Algorithm algorithm, int64_t bytes, int ranks_per_host) {
    const Network network = MakeNetwork(kSharedMemory, kTcpBetweenHosts, ranks_per_host);
    return MemoryPriceNs(collective, algorithm, /*size=*/8, bytes, network);
  };
  EXPECT_LT(ns(Collective::kAllReduce, Algorithm::kOnePass, 1 << 20, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllReduce, Algorithm::kOnePass, 1 << 20, 7), kImpossible);
  EXPECT_EQ(ns(Collective::kBarrier, Algorithm::kOneLine, 0, 4), kImpossible);
  EXPECT_LT(ns(Collective::kAllReduce, Algorithm::kOneLine, kShareBytesMax, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllReduce, Algorithm::kOneLine, kShareBytesMax + 1, 8), kImpossible);
  EXPECT_LT(ns(Collective::kAllGather, Algorithm::kOneLine, 8 * kShareBytesMax, 8), kImpossible);
  EXPECT_EQ(ns(Collective::kAllGather, Algorithm::kOneLine, 8 * kShareBytesMax + 1, 8), kImpossible);
}

}  // namespace
}  // namespace lockstep

#include "comm/host/transport_communicator.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "comm/work.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"
#include "tests/ranks.h"
#include "transport/loopback/loopback.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

CommunicatorFactory Factory(const std::string& name, const LoopbackOptions& network,
                            const TransportCommunicatorOptions& options) {
  return {name, [network, options](int size) -> absl::StatusOr<TestCommunicators> {
            if (size < 2) return absl::UnavailableError("a transport needs two ranks");
            auto world = std::make_shared<LoopbackWorld>(size, network, options);
            TestCommunicators communicators{world, {}};
            for (int rank = 0; rank < size; ++rank) communicators.ranks.push_back(world->communicator(rank));
            return communicators;
          }};
}

CommunicatorFactory Plain() { return Factory("Plain", {}, {}); }

// Every header and element is cut, whatever can be late is, and a vector has many chunks.
CommunicatorFactory Crumbs() {
  LoopbackOptions network;
  network.seed = 4;
  network.buffer_bytes = 8 << 10;
  network.piece_bytes_max = 4093;
  network.delay_max = 6;
  TransportCommunicatorOptions options;
  options.chunk_bytes = 4096;
  return Factory("Crumbs", network, options);
}

CommunicatorFactory Checked() {
  LoopbackOptions network;
  network.seed = 2;
  TransportCommunicatorOptions options;
  options.checked = true;
  CommunicatorFactory factory = Factory("Checked", network, options);
  factory.checked = true;
  return factory;
}

// Who comes last to a short all-reduce most often finds the other's message there whole: it does not read the clock, and
// who waits does.
TEST(TransportCommunicatorTest, AnExchangeOfTwoRanksIsOverAtOnceForWhoComesLast) {
  for (const size_t count : {1, 64, 257}) {
    LoopbackWorld world(2);
    for (int round = 0; round < 50; ++round) {
      std::vector<float> values[2] = {std::vector<float>(count, 1), std::vector<float>(count, 2)};
      const auto all_reduce = [&](int rank) {
        return MakeRequest(Collective::kAllReduce, DType::kF32, count, values[rank].data(), values[rank].data());
      };
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(Work first, world.communicator(0)->Start(all_reduce(0)));
      ASSERT_THAT(world.communicator(1)->Run(all_reduce(1)), IsOk());
      ASSERT_THAT(first.Wait(Deadline::AfterMs(30'000)), IsOk());
      for (const auto& result : values) ASSERT_THAT(result, Each(3)) << "round " << round;
    }
    EXPECT_THAT(world.communicator(0)->FlightRecords(), Not(HasSubstr("done at once")));
    const std::string last = world.communicator(1)->FlightRecords();
    if (count == 257) {
      EXPECT_THAT(last, Not(HasSubstr("done at once"))) << "too long a message";
    } else {
      EXPECT_THAT(last, HasSubstr(absl::StrCat("done at once, sent ", 4 * count, " B, received ", 4 * count, " B")));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Loopback, CommunicatorConformance, ::testing::Values(Plain(), Crumbs(), Checked()),
                         CommunicatorFactoryName);

}  // namespace
}  // namespace lockstep

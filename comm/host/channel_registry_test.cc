#include "comm/host/channel_registry.h"

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/control/control_types.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class TestMember : public ChannelRegistry::Member {
 public:
  void OnFailure(const absl::Status& status) override { failures.push_back(status); }
  Progress progress() const override { return {7, 6}; }
  std::string CalledAs(uint64_t sequence) const override { return "barrier #" + std::to_string(sequence); }

  std::vector<absl::Status> failures;
};

TEST(ChannelRegistry, TakesAFailureToItsChannelAlone) {
  ChannelRegistry registry;
  TestMember world, part;
  registry.Add(ChannelRegistry::kWorldChannel, &world);
  registry.Add(65'536, &part);
  registry.OnFailure({65'536, absl::AbortedError("enough")});
  EXPECT_THAT(world.failures, IsEmpty());
  EXPECT_THAT(part.failures, ::testing::ElementsAre(absl::AbortedError("enough")));
  registry.Remove(65'536);
  registry.OnFailure({kAllChannels, absl::AbortedError("rank 2 died")});
  EXPECT_THAT(world.failures, ::testing::ElementsAre(absl::AbortedError("rank 2 died")));
  EXPECT_THAT(part.failures, SizeIs(1)) << "it is gone";
}

TEST(ChannelRegistry, TellsALateComerWhatItMissed) {
  ChannelRegistry registry;
  TestMember early, other, later;
  registry.OnFailure({65'536, absl::AbortedError("enough")});
  registry.Add(65'536, &early);
  EXPECT_THAT(early.failures, ::testing::ElementsAre(absl::AbortedError("enough")));
  registry.Add(65'538, &other);
  EXPECT_THAT(other.failures, IsEmpty());
  registry.OnFailure({kAllChannels, absl::AbortedError("rank 2 died")});
  registry.Add(65'540, &later);
  EXPECT_THAT(later.failures, ::testing::ElementsAre(absl::AbortedError("rank 2 died")));
}

TEST(ChannelRegistry, AnswersForItsMembers) {
  ChannelRegistry registry;
  TestMember member;
  EXPECT_THAT(registry.progress(), IsEmpty());
  registry.Add(4, &member);
  ASSERT_THAT(registry.progress(), SizeIs(1));
  EXPECT_EQ(registry.progress()[0].first, 4);
  EXPECT_EQ(registry.progress()[0].second.started, 7);
  EXPECT_EQ(registry.CalledAs(4, 3), "barrier #3");
  EXPECT_EQ(registry.CalledAs(6, 3), "");
}

TEST(ChannelRegistry, GivesChannelsThatNobodyElseHas) {
  ChannelRegistry registry;
  std::set<ChannelId> channels = {0, 1, kAllChannels};
  for (uint32_t number = 0; number < ChannelRegistry::kNumbersMax; ++number) {
    ASSERT_EQ(registry.TakeNumber(), number);
    for (const int leader : {0, 1, ChannelRegistry::kLeadersMax - 1}) {
      const ChannelId channel = ChannelRegistry::ChannelOf(Rank(leader), number);
      ASSERT_EQ(channel % 2, 0);
      ASSERT_TRUE(channels.insert(channel).second);
      ASSERT_TRUE(channels.insert(ChannelRegistry::MessagesOf(channel)).second);
    }
  }
  EXPECT_EQ(registry.TakeNumber(), ChannelRegistry::kNumbersMax);
  EXPECT_EQ(registry.TakeNumber(), ChannelRegistry::kNumbersMax);
}

}  // namespace
}  // namespace lockstep

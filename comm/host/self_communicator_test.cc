#include "comm/host/self_communicator.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/communicator_conformance.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::StatusOr<TestCommunicators> Create(int size) {
  if (size != 1) return absl::UnavailableError("a world of one only");
  auto communicator = std::make_shared<SelfCommunicator>(16);
  return TestCommunicators{communicator, {communicator.get()}};
}

INSTANTIATE_TEST_SUITE_P(Self, CommunicatorConformance, ::testing::Values(CommunicatorFactory{"Self", &Create}),
                         CommunicatorFactoryName);

TEST(SelfCommunicator, NotesAreThereForTheOneWhoLeftThem) {
  SelfCommunicator communicator(16);
  EXPECT_THAT(communicator.AwaitMessages(7, 0, Deadline::Now()), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(communicator.AwaitMessages(7, 1, Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  communicator.PostMessage(7, "text");
  EXPECT_THAT(communicator.AwaitMessages(7, 1, Deadline::Now()), IsOkAndHolds(ElementsAre(Pair(Rank(0), "text"))));
  EXPECT_THAT(communicator.AwaitMessages(8, 1, Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (uint64_t topic = 100; topic < 200; ++topic) communicator.PostMessage(topic, "more");
  EXPECT_THAT(communicator.AwaitMessages(7, 1, Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded))
      << "the newest 64 topics are kept";
  EXPECT_THAT(communicator.AwaitMessages(199, 1, Deadline::Now()), IsOkAndHolds(ElementsAre(Pair(Rank(0), "more"))));
}

TEST(SelfCommunicator, AbortEndsIt) {
  SelfCommunicator communicator(16);
  communicator.Abort("enough");
  communicator.Abort("again");
  EXPECT_THAT(communicator.Run(CollectiveRequest()),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 aborted the communicator: enough")));
}

}  // namespace
}  // namespace lockstep

#include "examples/fashion_mnist/world.h"

#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/processes.h"

namespace fashion_mnist {
namespace {

using ::lockstep::Deadline;
using ::lockstep::IsOk;
using ::lockstep::IsOkAndHolds;
using ::lockstep::ProcessGroup;
using ::lockstep::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

// As a launcher would set it; the store's URL is the first argument.
absl::StatusOr<std::unique_ptr<World>> JoinAs(const lockstep::RankProcess& self) {
  setenv("LOCKSTEP_RANK", absl::StrCat(self.rank()).c_str(), 1);
  setenv("LOCKSTEP_WORLD_SIZE", absl::StrCat(self.size()).c_str(), 1);
  setenv("LOCKSTEP_STORE", self.arguments()[0].c_str(), 1);
  return World::Join(/*alone=*/false, "tcp");
}

LOCKSTEP_RANK_FUNCTION(SumAndMean) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinAs(self));
  EXPECT_EQ(world->rank(), self.rank());
  EXPECT_EQ(world->size(), self.size());
  EXPECT_THAT(world->Sum(int64_t{1} << (40 + self.rank())), IsOkAndHolds(int64_t{7} << 40));
  EXPECT_THAT(world->Mean(self.rank()), IsOkAndHolds(1.0));
  return absl::OkStatus();
}

LOCKSTEP_RANK_FUNCTION(CompareEqual) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinAs(self));
  return world->CheckEqual(0xfedcba9876543210);
}

LOCKSTEP_RANK_FUNCTION(CompareDifferent) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<World> world, JoinAs(self));
  return world->CheckEqual(self.rank() == 0 ? 1 : uint64_t{1} << 63);
}

class WorldTest : public testing::Test {
 protected:
  ~WorldTest() override { unlink(store_.c_str()); }

  std::vector<absl::Status> Run(const std::string& function) {
    ProcessGroup::Options options;
    options.size = 3;
    options.arguments = {absl::StrCat("file://", store_)};
    auto group = ProcessGroup::Start(function, options);
    if (!group.ok()) return {group.status()};
    return (*group)->WaitAll(Deadline::AfterMs(30000));
  }

  const std::string store_ = absl::StrCat(testing::TempDir(), "/world_test.", getpid());
};

TEST_F(WorldTest, SumsAndAveragesOverAllRanks) { EXPECT_THAT(Run("SumAndMean"), Each(IsOk())); }

TEST_F(WorldTest, EqualValuesAreEqual) { EXPECT_THAT(Run("CompareEqual"), Each(IsOk())); }

TEST_F(WorldTest, EveryRankLearnsWhoseValueDiffers) {
  EXPECT_THAT(Run("CompareDifferent"),
              Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("the parameters of rank 1, 2 differ from those of rank 0"))));
}

TEST_F(WorldTest, AloneNeedsNoEnvironment) {
  auto world = World::Join(/*alone=*/true, "tcp");
  ASSERT_THAT(world.status(), IsOk());
  EXPECT_EQ((*world)->size(), 1);
  EXPECT_THAT((*world)->Sum(5), IsOkAndHolds(5));
  EXPECT_THAT((*world)->Mean(2.5), IsOkAndHolds(2.5));
  EXPECT_THAT((*world)->CheckEqual(9), IsOk());
}

}  // namespace
}  // namespace fashion_mnist

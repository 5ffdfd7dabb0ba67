#include "bench/exercise.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(absl::string_view text) {
  std::vector<std::string> names;
  const absl::StatusOr<std::vector<Exercise>> exercises = ParseExercises(text);
  EXPECT_THAT(exercises, IsOk());
  for (const Exercise& exercise : *exercises) names.push_back(Name(exercise));
  return names;
}

TEST(ParseExercises, AllAreTheCollectivesTheirVFormsAndMessages) {
  EXPECT_THAT(Names("all"), ElementsAre("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "barrier",
                                        "gather", "scatter", "all_to_all", "all_gather_v", "reduce_scatter_v",
                                        "gather_v", "scatter_v", "all_to_all_v", "send_receive"));
}

TEST(ParseExercises, KeepsTheOrderOfTheNames) {
  EXPECT_THAT(Names("send_receive,reduce,all_gather_v"), ElementsAre("send_receive", "reduce", "all_gather_v"));
}

TEST(ParseExercises, ListsTheKnownNamesForAWrongOne) {
  for (const char* text : {"", "allreduce", "all_reduce,", "all,reduce", "all_reduce_v"}) {
    EXPECT_THAT(ParseExercises(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                               AllOf(HasSubstr("all_reduce"), HasSubstr("reduce_scatter_v"))))
        << text;
  }
}

TEST(BlockCounts, AddUp) {
  EXPECT_THAT(BlockCounts(12, 3, false), ElementsAre(4, 4, 4));
  EXPECT_THAT(BlockCounts(12, 3, true), ElementsAre(2, 4, 6));
  EXPECT_THAT(BlockCounts(15, 3, true), ElementsAre(2, 4, 9));
  EXPECT_THAT(BlockCounts(2, 3, true), ElementsAre(0, 0, 2));
  EXPECT_THAT(BlockCounts(7, 1, true), ElementsAre(7));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

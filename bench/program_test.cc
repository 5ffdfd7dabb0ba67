#include "bench/program.h"

#include <algorithm>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(ParseCollectives, KeepsTheOrderOfTheNames) {
  EXPECT_THAT(ParseCollectives("all"), IsOkAndHolds(SizeIs(kCollectiveCount)));
  EXPECT_THAT(ParseCollectives("reduce,all_reduce"),
              IsOkAndHolds(ElementsAre(Collective::kReduce, Collective::kAllReduce)));
}

TEST(ParseCollectives, ListsTheKnownNamesForAWrongOne) {
  for (const char* text : {"", "allreduce", "all_reduce,", "all,reduce"}) {
    EXPECT_THAT(ParseCollectives(text), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 AllOf(HasSubstr("all_reduce"), HasSubstr("reduce_scatter"))))
        << text;
  }
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

// Meshes and byte objects, over loopback.

#include "comm/mesh.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/rank.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "comm/byte_objects.h"
#include "comm/communicator.h"
#include "comm/schedule/schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ranks.h"

namespace lockstep {
namespace {

using ::lockstep::testing::LoopbackWorld;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST(Mesh, HasACommunicatorForEachLine) {
  LoopbackWorld world(12);
  world.Run([](Communicator& self) {
    const std::vector<MeshDimension> dimensions = {{"dp", 2}, {"pp", 3}, {"tp", 2}};
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto lines, SplitIntoMesh(&self, dimensions));
    const int rank = self.rank().value();
    const int coordinates[] = {rank / 6, rank / 2 % 3, rank % 2}, strides[] = {6, 2, 1};
    ASSERT_EQ(lines.size(), 3);
    for (int d = 0; d < 3; ++d) {
      Communicator* const line = lines[d].get();
      EXPECT_EQ(line->size(), dimensions[d].size);
      EXPECT_EQ(line->rank(), Rank(coordinates[d]));
      std::vector<int32_t> ranks(line->size());
      CollectiveRequest request = MakeRequest(Collective::kAllGather, DType::kI32, ranks.size(), &rank, ranks.data());
      ASSERT_THAT(line->Run(request), IsOk());
      const int first = rank - coordinates[d] * strides[d];
      for (int i = 0; i < line->size(); ++i) EXPECT_EQ(ranks[i], first + i * strides[d]);
    }
  });
}

TEST(Mesh, RefusesWhatIsNoGridOfTheRanks) {
  LoopbackWorld world(4);
  world.Run([](Communicator& self) {
    const auto create = [&](const std::vector<MeshDimension>& dimensions) {
      return SplitIntoMesh(&self, dimensions).status();
    };
    EXPECT_THAT(create({{"dp", 2}, {"tp", 3}}), StatusIs(Code::kInvalidArgument, HasSubstr("dp=2 x tp=3")));
    EXPECT_THAT(create({{"dp", 4}, {"dp", 1}}), StatusIs(Code::kInvalidArgument, HasSubstr("'dp'")));
    EXPECT_THAT(create({{"dp", 0}}), StatusIs(Code::kInvalidArgument, HasSubstr("size 0")));
    EXPECT_THAT(create({{"", 4}}), StatusIs(Code::kInvalidArgument, HasSubstr("no name")));
    EXPECT_THAT(create({}), StatusIs(Code::kInvalidArgument));
    const absl::Status differ = self.rank() == Rank(3) ? create({{"dp", 4}}) : create({{"dp", 2}, {"tp", 2}});
    EXPECT_THAT(differ, StatusIs(Code::kFailedPrecondition, HasSubstr("rank 3 gives dp=4")));
    EXPECT_THAT(create({{"dp", 4}}), IsOk()) << "the communicator stays usable";
  });
}

TEST(ByteObjects, TravelWithTheirSizes) {
  for (const int size : {2, 5}) {
    LoopbackWorld world(size);
    world.Run([](Communicator& self) {
      for (int root = 0; root < self.size(); ++root) {
        const std::string mine(self.rank().value() * 1000, static_cast<char>('a' + self.rank().value()));
        std::string bytes = self.rank() == Rank(root) ? mine + "!" : "something else";
        EXPECT_THAT(BroadcastBytes(&self, &bytes, Rank(root)), IsOk());
        EXPECT_EQ(bytes, std::string(root * 1000, static_cast<char>('a' + root)) + "!");
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> gathered, GatherBytes(&self, mine, Rank(root)));
        LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, AllGatherBytes(&self, mine));
        if (self.rank() != Rank(root)) {
          EXPECT_THAT(gathered, IsEmpty());
        } else {
          EXPECT_EQ(gathered, all);
        }
        ASSERT_EQ(all.size(), self.size());
        for (int r = 0; r < self.size(); ++r) EXPECT_EQ(all[r], std::string(r * 1000, static_cast<char>('a' + r)));
      }
    });
  }
}

}  // namespace
}  // namespace lockstep

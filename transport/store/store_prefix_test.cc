#include "transport/store/store_prefix.h"

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"
#include "transport/store/store.h"
#include "transport/store/store_memory.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class PrefixWorld : public StoreWorld {
 public:
  absl::StatusOr<Store*> NewClient() override {
    clients_.push_back(std::make_unique<PrefixStore>(&store_, "job/7"));
    return clients_.back().get();
  }

 private:
  MemoryStore store_;
  std::vector<std::unique_ptr<PrefixStore>> clients_;
};

INSTANTIATE_TEST_SUITE_P(Prefix, StoreConformance,
                         testing::Values(StoreWorldFactory([] { return std::make_unique<PrefixWorld>(); })));

const Deadline kNow = Deadline::Now();

TEST(PrefixStore, UsersOfDifferentPrefixesDoNotMeet) {
  MemoryStore store;
  PrefixStore a(&store, "a");
  PrefixStore b(&store, "b");
  ASSERT_THAT(a.Set("key", "of a", kNow), IsOk());
  EXPECT_THAT(b.Get("key", kNow), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(b.Add("key", 1, kNow), IsOkAndHolds(1));
  EXPECT_THAT(b.Delete("key", kNow), IsOk());
  EXPECT_THAT(a.Get("key", kNow), IsOkAndHolds("of a"));
}

TEST(PrefixStore, NoChoiceOfKeyReachesAnotherPrefix) {
  MemoryStore store;
  PrefixStore a(&store, "a");
  PrefixStore a_b(&store, "a/b");
  PrefixStore a_escaped(&store, "a%2Fb");
  PrefixStore empty(&store, "");
  ASSERT_THAT(a.Set("b/c", "1", kNow), IsOk());
  EXPECT_THAT(a_b.Get("c", kNow), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_THAT(a_b.Set("c", "2", kNow), IsOk());
  EXPECT_THAT(a_escaped.Get("c", kNow), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(empty.Get("a/b/c", kNow), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(a.Get("b/c", kNow), IsOkAndHolds("1"));
}

TEST(PrefixStore, NestsAndNamesTheWholeKey) {
  MemoryStore store;
  PrefixStore outer(&store, "job");
  PrefixStore inner(&outer, "world");
  ASSERT_THAT(inner.Set("rank0", "x", kNow), IsOk());
  EXPECT_THAT(store.Get("job/world/rank0", kNow), IsOkAndHolds("x"));
  EXPECT_THAT(inner.Wait("rank1", kNow), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'job/world/rank1'")));
  EXPECT_EQ(inner.Describe(), "store memory, keys job/..., keys world/...");
}

}  // namespace
}  // namespace lockstep

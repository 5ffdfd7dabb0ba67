#include "transport/store/store_memory.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/store_conformance.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What the operations mean is tested through every store, by tests/store_conformance.h.

TEST(StoreMap, MoreKeysAndValuesThanItMayHoldAreResourceExhausted) {
  StoreMap map(10);
  ASSERT_THAT(map.Set("key", "1234567"), IsOk());
  const auto full = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 10 bytes and has 10"));
  EXPECT_THAT(map.Set("key", "12345678"), full);
  EXPECT_THAT(map.Set("", "1"), full);
  EXPECT_THAT(map.Perform({StoreOp::kCompareAndSet, "n", "", "1"}), full);
  EXPECT_EQ(*map.Find("key"), "1234567");
  // Replacing and deleting count what they free.
  EXPECT_THAT(map.Set("key", "7654321"), IsOk());
  EXPECT_THAT(map.Set("key", "1"), IsOk());
  EXPECT_THAT(map.Perform({StoreOp::kCompareAndSet, "n", "", "12345"}),
              IsOkAndHolds(testing::Optional(std::string("12345"))));
  map.Delete("key");
  map.Delete("key");
  EXPECT_THAT(map.Set("123", "4"), IsOk());
  EXPECT_THAT(map.Set("", "1"), full);
}

TEST(DescribeStoreKey, EscapesAndCutsShort) {
  EXPECT_EQ(DescribeStoreKey("rank0"), "key 'rank0'");
  EXPECT_EQ(DescribeStoreKey(std::string("a\0\n", 3)), "key 'a\\x00\\n'");
  EXPECT_THAT(DescribeStoreKey(std::string(500, 'k')), AllOf(HasSubstr("kkk...'"), HasSubstr("(500 bytes)")));
  EXPECT_LT(DescribeStoreKey(std::string(500, 'k')).size(), 110);
}

// The clients of a memory store are one object.
StoreWorld MemoryWorld() {
  return {[store = std::make_shared<MemoryStore>()] { return store; }};
}

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformance, testing::Values(StoreWorldFactory(MemoryWorld)));

}  // namespace
}  // namespace lockstep

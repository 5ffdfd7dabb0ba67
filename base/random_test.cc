#include "base/random.h"

#include <cstdint>
#include <set>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(RandomNumber, IsAnotherOneEachTimeAndNotZero) {
  std::set<uint64_t> numbers = {0};
  for (int i = 0; i < 1000; ++i) {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const uint64_t number, RandomNumber());
    EXPECT_TRUE(numbers.insert(number).second) << number;
  }
}

}  // namespace
}  // namespace lockstep

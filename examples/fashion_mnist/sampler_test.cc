#include "examples/fashion_mnist/sampler.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace fashion_mnist {
namespace {

TEST(Sampler, OrderIsAPermutationOfItsSeedAndEpoch) {
  for (size_t count : {0, 1, 2, 1000}) {
    std::vector<uint32_t> order = SampleOrder(count, 1, 0);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order.size(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(order[i], i);
  }
  EXPECT_EQ(SampleOrder(1000, 1, 0), SampleOrder(1000, 1, 0));
  EXPECT_NE(SampleOrder(1000, 1, 0), SampleOrder(1000, 1, 1));
  EXPECT_NE(SampleOrder(1000, 1, 0), SampleOrder(1000, 2, 0));
  EXPECT_NE(SampleOrder(1000, 1, 0), SampleOrder(1000, uint64_t{1} << 32 | 1, 0));
}

TEST(Sampler, PartsCoverEverythingOnceAndAreEven) {
  for (size_t count : {0, 1, 7, 10000}) {
    for (int size : {1, 2, 3, 7, 16}) {
      size_t end = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Range part = PartOf(count, rank, size);
        EXPECT_EQ(part.begin, end);
        EXPECT_GE(part.size(), count / size);
        EXPECT_LE(part.size(), count / size + 1);
        end = part.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

}  // namespace
}  // namespace fashion_mnist

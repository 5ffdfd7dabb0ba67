// The prototypes compute sums: a limit that is fast because it is wrong would be none. Ranks are threads here, for
// which the mapping is as shared as for forked processes.

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "base/thread.h"
#include "bench/limits/add.h"
#include "bench/limits/bounce.h"
#include "bench/limits/direct.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

constexpr size_t kCounts[] = {1, 2, 15, 16, 17, 1000, 40'000, 300'001};
constexpr size_t kCountMax = 300'001;
constexpr float kUntouched = -1;

// Sums of these are exact.
float Element(int rank, size_t index) { return static_cast<float>(index % 251 + 3 * rank); }

float Sum(int ranks, size_t index) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += Element(rank, index);
  return sum;
}

size_t CountWrong(const float* vector, size_t count, int ranks) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += vector[i] != Sum(ranks, i) ? 1 : 0;
  return wrong;
}

TEST(Add, AddsToOneAndToBoth) {
  // Lengths around those of vector registers.
  for (size_t count = 0; count < 70; ++count) {
    std::vector<float> a(count + 1), b(count + 1, 2);
    std::iota(a.begin(), a.end(), 0.0F);
    AddTo(a.data(), b.data(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(a[i], static_cast<float>(i + 2));
    AddToBoth(a.data(), b.data(), count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(a[i], static_cast<float>(i + 4));
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + count, b.begin()));
    EXPECT_EQ(a[count], static_cast<float>(count));
    EXPECT_EQ(b[count], 2);
  }
}

TEST(DirectAllReduce, SumsExactlyForSeveralRanksAndSizes) {
  for (const int ranks : {1, 2, 3, 4}) {
    absl::StatusOr<DirectAllReduce> direct = DirectAllReduce::Create(ranks, (kCountMax + 1) * sizeof(float));
    ASSERT_THAT(direct, IsOk());
    std::vector<Thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back("rank", [&direct, rank, ranks] {
        float* const vector = direct->vector(rank);
        for (const size_t count : kCounts) {
          for (size_t i = 0; i < count; ++i) vector[i] = Element(rank, i);
          vector[count] = kUntouched;
          EXPECT_THAT(direct->Run(rank, count), IsOk());
          EXPECT_EQ(CountWrong(vector, count, ranks), 0) << count << " elements, rank " << rank << " of " << ranks;
          EXPECT_EQ(vector[count], kUntouched);
        }
      });
    }
  }
}

TEST(BounceAllReduce, SumsExactlyForSeveralSizes) {
  absl::StatusOr<BounceAllReduce> bounce = BounceAllReduce::Create();
  ASSERT_THAT(bounce, IsOk());
  std::vector<Thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back("rank", [&bounce, rank] {
      std::vector<float> vector(kCountMax + 1);
      // Twice, so that calls begin at either slot.
      for (int repeat = 0; repeat < 2; ++repeat) {
        for (const size_t count : kCounts) {
          for (size_t i = 0; i < count; ++i) vector[i] = Element(rank, i);
          vector[count] = kUntouched;
          EXPECT_THAT(bounce->Run(rank, vector.data(), count), IsOk());
          EXPECT_EQ(CountWrong(vector.data(), count, 2), 0) << count << " elements, rank " << rank;
          EXPECT_EQ(vector[count], kUntouched);
        }
      }
    });
  }
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

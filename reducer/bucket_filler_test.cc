#include "reducer/bucket_filler.h"

#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LaunchQueueTest : public ::testing::Test {
 protected:
  void Begin(size_t count, size_t slots, size_t end) {
    plan_.slots.resize(slots);
    buckets_.clear();
    for (size_t b = 0; b < count; ++b) {
      buckets_.push_back(std::make_unique<Bucket>(plan_, b, nullptr, nullptr, nullptr));
      buckets_.back()->Reset();
    }
    launched_.clear();
    queue_.Begin(buckets_, end);
  }

  void Run() {
    queue_.Run([this](Bucket& bucket) {
      launched_.push_back(bucket.index());
      return bucket.index() != refused_;
    });
  }

  // Whether that filled it, and then as a reducer does.
  void FillOne(size_t bucket) {
    if (!buckets_[bucket]->FillOne()) return;
    buckets_[bucket]->SetFull();
    Run();
  }

  BucketPlan::Bucket plan_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  LaunchQueue queue_;
  std::vector<size_t> launched_;
  size_t refused_ = SIZE_MAX;
};

TEST_F(LaunchQueueTest, LaunchesInOrderWhateverTheOrderOfFilling) {
  Begin(3, 2, 3);
  FillOne(0);
  for (const size_t bucket : {2, 2, 1, 1}) FillOne(bucket);
  EXPECT_THAT(launched_, IsEmpty());
  FillOne(0);
  EXPECT_THAT(launched_, ElementsAre(0, 1, 2));
}

TEST_F(LaunchQueueTest, HoldsBucketsBackUntilAllMayBeLaunched) {
  Begin(3, 1, 2);
  for (const size_t bucket : {0, 1, 2}) FillOne(bucket);
  EXPECT_THAT(launched_, ElementsAre(0, 1));
  queue_.Open();
  Run();
  EXPECT_THAT(launched_, ElementsAre(0, 1, 2));
}

TEST_F(LaunchQueueTest, LaunchesNothingAfterARefusal) {
  refused_ = 1;
  Begin(3, 1, 3);
  for (const size_t bucket : {0, 1, 2}) FillOne(bucket);
  EXPECT_THAT(launched_, ElementsAre(0, 1));
}

// ThreadSanitizer looks at launched_, which one thread at a time may change.
TEST_F(LaunchQueueTest, LaunchesEachBucketOnceHoweverManyThreadsFillThem) {
  constexpr size_t kBuckets = 50;
  constexpr size_t kThreads = 4;
  for (int step = 0; step < 100; ++step) {
    Begin(kBuckets, kThreads, kBuckets);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t] {
        for (size_t b = 0; b < kBuckets; ++b) FillOne((b + 13 * t) % kBuckets);
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(launched_.size(), kBuckets);
    for (size_t b = 0; b < kBuckets; ++b) ASSERT_EQ(launched_[b], b);
  }
}

}  // namespace
}  // namespace lockstep

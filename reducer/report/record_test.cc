#include "reducer/report/record.h"

#include <chrono>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

StepTime At(int milliseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds); }

BucketPlan Plan(const std::vector<size_t>& parameters) {
  BucketPlan plan;
  for (const size_t count : parameters) {
    plan.buckets.emplace_back();
    plan.buckets.back().slots.resize(count);
  }
  return plan;
}

TEST(BucketRecord, TakesTheTimeItself) {
  BucketRecord bucket;
  const StepTime before = StepClock::now();
  bucket.Began(Stage::kCollective);
  bucket.Ended(Stage::kCollective);
  const StepTime after = StepClock::now();
  EXPECT_LE(before, bucket.at(Stage::kCollective).begin);
  EXPECT_LE(bucket.at(Stage::kCollective).begin, bucket.at(Stage::kCollective).end);
  EXPECT_LE(bucket.at(Stage::kCollective).end, after);
}

TEST(BucketRecord, AStageOfSeveralPiecesLastsFromTheFirstToTheLast) {
  BucketRecord bucket;
  bucket.Began(Stage::kCollective, At(1));
  bucket.Ended(Stage::kCollective, At(2));
  bucket.Began(Stage::kCollective, At(5));
  bucket.Ended(Stage::kCollective, At(6));
  EXPECT_EQ(bucket.at(Stage::kCollective).begin, At(1));
  EXPECT_EQ(bucket.at(Stage::kCollective).end, At(6));
}

TEST(BucketRecord, IsDoneWhenItsLastStageIs) {
  BucketRecord bucket;
  EXPECT_FALSE(IsRecorded(bucket.done()));
  bucket.Began(Stage::kCopyIn, At(1));
  bucket.Ended(Stage::kCopyIn, At(2));
  EXPECT_FALSE(IsRecorded(bucket.done())) << "it is only copied in";
  for (const Stage stage : {Stage::kCollective, Stage::kCopyOut, Stage::kOptimizer}) {
    const int begin = 10 * static_cast<int>(stage);
    bucket.Began(stage, At(begin));
    bucket.Ended(stage, At(begin + 1));
    EXPECT_EQ(bucket.done(), At(begin + 1));
  }
}

TEST(StepRecord, EveryStepStartsAnew) {
  StepRecord record;
  record.Begin(6, Plan({2}), At(0), At(1));
  EXPECT_EQ(record.forward_begin, At(0));
  record.ready_order = {1, 0};
  record.buckets[0].ready = At(3);
  record.buckets[0].launched = At(4);
  record.buckets[0].Began(Stage::kCollective, At(5));
  record.buckets[0].Ended(Stage::kCollective, At(6));
  record.buckets[0].bytes = 8;
  record.end_called = At(7);
  record.end = At(8);
  record.Finish(At(9));
  EXPECT_EQ(record.end, At(8));
  record.unused_parameter_bytes = 16;

  record.Begin(7, Plan({2, 3, 1}), StepTime(), At(9));
  EXPECT_EQ(record.step, 7);
  EXPECT_FALSE(IsRecorded(record.forward_begin));
  EXPECT_EQ(record.backward_begin, At(9));
  EXPECT_FALSE(IsRecorded(record.end_called));
  EXPECT_FALSE(IsRecorded(record.end));
  EXPECT_THAT(record.ready_order, IsEmpty());
  EXPECT_EQ(record.unused_parameter_bytes, 0);
  ASSERT_THAT(record.buckets, SizeIs(3));
  EXPECT_EQ(record.buckets[1].parameters, 3);
  EXPECT_FALSE(IsRecorded(record.buckets[0].ready));
  EXPECT_FALSE(IsRecorded(record.buckets[0].launched));
  EXPECT_FALSE(IsRecorded(record.buckets[0].done()));
  EXPECT_EQ(record.buckets[0].bytes, 0);
  record.Finish(At(10));
  EXPECT_EQ(record.end, At(10));
}

TEST(StepRecord, BucketsAreRecordedByTheirOwnThreadsMeanwhile) {
  // What ThreadSanitizer would object to, if the stages of a bucket shared memory with anything.
  constexpr size_t kBuckets = 4;
  constexpr int kPieces = 1000;
  StepRecord record;
  record.Begin(1, Plan(std::vector<size_t>(kBuckets, 1)), StepTime(), At(0));
  std::vector<std::thread> threads;
  for (size_t b = 0; b < kBuckets; ++b) {
    threads.emplace_back([&bucket = record.buckets[b]] {
      for (int piece = 0; piece < kPieces; ++piece) {
        bucket.Began(Stage::kCollective, At(1 + piece));
        bucket.bytes += 2;
        bucket.Ended(Stage::kCollective, At(2 + piece));
      }
    });
  }
  for (int i = 0; i < kPieces; ++i) {
    record.ready_order.push_back(i);
    record.buckets[i % kBuckets].ready = StepClock::now();
    record.buckets[i % kBuckets].launched = StepClock::now();
  }
  record.end_called = StepClock::now();
  for (std::thread& thread : threads) thread.join();
  for (const BucketRecord& bucket : record.buckets) {
    EXPECT_EQ(bucket.bytes, 2 * kPieces);
    EXPECT_EQ(bucket.at(Stage::kCollective).begin, At(1));
    EXPECT_EQ(bucket.at(Stage::kCollective).end, At(1 + kPieces));
  }
  EXPECT_THAT(record.ready_order, SizeIs(kPieces));
}

TEST(ClockAnchor, GivesAbsoluteTimes) {
  ClockAnchor anchor;
  anchor.steady = At(100);
  anchor.system = std::chrono::system_clock::time_point() + std::chrono::seconds(2);
  EXPECT_EQ(anchor.UnixNanoseconds(At(100)), 2000000000);
  EXPECT_EQ(anchor.UnixNanoseconds(At(99)), 1999000000);
  EXPECT_EQ(anchor.UnixNanoseconds(At(101)), 2001000000);
  EXPECT_EQ(anchor.UnixNanoseconds(StepTime()), 0);
}

}  // namespace
}  // namespace lockstep

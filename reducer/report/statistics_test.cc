#include "reducer/report/statistics.h"

#include <chrono>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reducer/report/step_record.h"

namespace lockstep {
namespace {

StepTime At(int milliseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds); }

BucketRecord Bucket(int launched, int wire_begin, int wire_end, int64_t bytes) {
  BucketRecord bucket;
  bucket.launched = At(launched);
  bucket.at(Stage::kCollective) = {At(wire_begin), At(wire_end)};
  bucket.bytes = bytes;
  return bucket;
}

StepRecord Backward(int begin, int end_called, std::vector<BucketRecord> buckets) {
  StepRecord record;
  record.step = 1;
  record.backward_begin = At(begin);
  record.end_called = At(end_called);
  record.buckets = std::move(buckets);
  return record;
}

TEST(Statistics, AreZeroForAnEmptyRecord) {
  const ReducerStatistics statistics = Statistics(StepRecord());
  EXPECT_EQ(statistics.steps, 0);
  EXPECT_EQ(statistics.backward_ms, 0);
  EXPECT_EQ(statistics.communication_ms, 0);
  EXPECT_EQ(statistics.exposed_ms, 0);
  EXPECT_EQ(statistics.bytes_reduced, 0);
  EXPECT_EQ(statistics.buckets, 0);
  EXPECT_EQ(statistics.buckets_launched_in_backward, 0);
}

TEST(Statistics, TellHiddenFromExposedCommunication) {
  const StepRecord record = Backward(0, 100,
                                     {Bucket(5, 10, 30, 1000),      // in backward
                                      Bucket(89, 90, 105, 200),     // across its end
                                      Bucket(101, 110, 140, 30)});  // after it
  const ReducerStatistics statistics = Statistics(record);
  EXPECT_EQ(statistics.steps, 1);
  EXPECT_DOUBLE_EQ(statistics.backward_ms, 100);
  EXPECT_DOUBLE_EQ(statistics.communication_ms, 20 + 15 + 30);
  EXPECT_DOUBLE_EQ(statistics.exposed_ms, 5 + 30);
  EXPECT_DOUBLE_EQ(statistics.hidden_ms(), 30);
  EXPECT_EQ(statistics.bytes_reduced, 1230);
  EXPECT_EQ(statistics.buckets, 3);
  EXPECT_EQ(statistics.buckets_launched_in_backward, 2);
}

TEST(Statistics, ABucketThatEndsWithBackwardIsHidden) {
  const StepRecord record = Backward(0, 4, {Bucket(1, 1, 4, 8)});
  EXPECT_EQ(Statistics(record).exposed_ms, 0);
  EXPECT_DOUBLE_EQ(Statistics(record).hidden_ms(), 3);
}

TEST(Statistics, ABucketThatIsLaunchedByTheEndIsNotLaunchedInBackward) {
  const StepRecord record = Backward(0, 4, {Bucket(4, 5, 8, 8)});
  EXPECT_EQ(Statistics(record).buckets, 1);
  EXPECT_EQ(Statistics(record).buckets_launched_in_backward, 0);
  EXPECT_EQ(Statistics(record).hidden_ms(), 0);
}

TEST(Statistics, TimeInWhichSeveralBucketsAreOnTheWireCountsOnce) {
  const StepRecord record = Backward(0, 25,
                                     {Bucket(1, 20, 30, 1),    // begins last
                                      Bucket(1, 0, 10, 1),     //
                                      Bucket(1, 2, 5, 1),      // inside
                                      Bucket(1, 10, 12, 1)});  // joined on
  EXPECT_DOUBLE_EQ(Statistics(record).communication_ms, 12 + 10);
  EXPECT_DOUBLE_EQ(Statistics(record).exposed_ms, 5);
}

TEST(Statistics, ABucketWithoutACollectiveIsNoCommunication) {
  BucketRecord begun;
  begun.launched = At(1);
  begun.at(Stage::kCollective).begin = At(2);  // and it failed
  const StepRecord record = Backward(0, 5, {begun, BucketRecord()});
  EXPECT_EQ(Statistics(record).communication_ms, 0);
  EXPECT_EQ(Statistics(record).buckets, 1);
  EXPECT_EQ(Statistics(record, 0).wire_begin_ms, 2);
  EXPECT_EQ(Statistics(record, 0).wire_end_ms, BucketStatistics::kNotRecorded);
  EXPECT_EQ(Statistics(record, 0).communication_ms, 0);
}

TEST(Statistics, OfABucketCountFromTheBeginningOfBackward) {
  BucketRecord bucket = Bucket(12, 15, 30, 64);
  bucket.ready = At(11);
  bucket.at(Stage::kCopyOut) = {At(31), At(33)};
  const StepRecord record = Backward(10, 28, {BucketRecord(), bucket});
  const BucketStatistics statistics = Statistics(record, 1);
  EXPECT_DOUBLE_EQ(statistics.ready_ms, 1);
  EXPECT_DOUBLE_EQ(statistics.launched_ms, 2);
  EXPECT_DOUBLE_EQ(statistics.wire_begin_ms, 5);
  EXPECT_DOUBLE_EQ(statistics.wire_end_ms, 20);
  EXPECT_DOUBLE_EQ(statistics.done_ms, 23);
  EXPECT_DOUBLE_EQ(statistics.communication_ms, 15);
  EXPECT_DOUBLE_EQ(statistics.exposed_ms, 2);
  EXPECT_DOUBLE_EQ(statistics.hidden_ms(), 13);
  EXPECT_EQ(statistics.bytes, 64);
  const BucketStatistics none = Statistics(record, 0);
  EXPECT_EQ(none.ready_ms, BucketStatistics::kNotRecorded);
  EXPECT_EQ(none.launched_ms, BucketStatistics::kNotRecorded);
  EXPECT_EQ(none.wire_begin_ms, BucketStatistics::kNotRecorded);
  EXPECT_EQ(none.done_ms, BucketStatistics::kNotRecorded);
  EXPECT_EQ(none.communication_ms, 0);
}

}  // namespace
}  // namespace lockstep

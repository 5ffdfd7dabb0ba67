#include "reducer/report/step_recorder.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

StepTime At(int milliseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds); }

TEST(StepRecorder, RecordsEveryEventOfAStep) {
  StepRecorder recorder(/*buckets=*/2, /*parameters=*/3);
  recorder.ForwardBegan(At(0));
  recorder.BackwardBegan(7, At(10));
  recorder.Marked(2, 0, At(11));
  recorder.Marked(1, 0, At(12));
  recorder.Ready(0, At(12));
  recorder.Launched(0, At(13));
  recorder.Began(Stage::kCopyIn, 0, At(14));
  recorder.Ended(Stage::kCopyIn, 0, At(15));
  recorder.Began(Stage::kCollective, 0, At(16));
  recorder.Sent(0, 100);
  recorder.Ended(Stage::kCollective, 0, At(17));
  recorder.Began(Stage::kCopyOut, 0, At(18));
  recorder.Ended(Stage::kCopyOut, 0, At(19));
  recorder.Began(Stage::kOptimizer, 0, At(20));
  recorder.Ended(Stage::kOptimizer, 0, At(21));
  recorder.EndCalled(At(22));
  recorder.EndReturned(At(23));
  recorder.Unused(4);
  recorder.Finished();

  const StepRecord& record = recorder.last();
  EXPECT_EQ(record.step, 7);
  EXPECT_EQ(record.forward_begin, At(0));
  EXPECT_EQ(record.backward_begin, At(10));
  EXPECT_EQ(record.end_called, At(22));
  EXPECT_EQ(record.end, At(23));
  EXPECT_THAT(record.ready_order, ElementsAre(2, 1));
  EXPECT_EQ(record.unused_parameter_bytes, 4);
  ASSERT_THAT(record.buckets, SizeIs(2));
  const BucketRecord& bucket = record.buckets[0];
  EXPECT_EQ(bucket.first_marked, At(11));
  EXPECT_EQ(bucket.ready, At(12));
  EXPECT_EQ(bucket.launched, At(13));
  EXPECT_EQ(bucket.at(Stage::kCopyIn).begin, At(14));
  EXPECT_EQ(bucket.at(Stage::kCopyIn).end, At(15));
  EXPECT_EQ(bucket.at(Stage::kCollective).begin, At(16));
  EXPECT_EQ(bucket.at(Stage::kCollective).end, At(17));
  EXPECT_EQ(bucket.at(Stage::kCopyOut).begin, At(18));
  EXPECT_EQ(bucket.at(Stage::kCopyOut).end, At(19));
  EXPECT_EQ(bucket.at(Stage::kOptimizer).begin, At(20));
  EXPECT_EQ(bucket.at(Stage::kOptimizer).end, At(21));
  EXPECT_EQ(bucket.bytes, 100);
  EXPECT_EQ(bucket.done(), At(21));
  EXPECT_FALSE(IsRecorded(record.buckets[1].first_marked));
  EXPECT_FALSE(IsRecorded(record.buckets[1].done()));
}

TEST(StepRecorder, TakesTheTimeItself) {
  StepRecorder recorder(1, 2);
  const StepTime before = StepClock::now();
  recorder.ForwardBegan();
  recorder.BackwardBegan(1);
  recorder.Marked(0, 0);
  recorder.Marked(1, 0);
  recorder.Ready(0);
  recorder.Launched(0);
  recorder.Began(Stage::kCollective, 0);
  recorder.Ended(Stage::kCollective, 0);
  recorder.EndCalled();
  recorder.EndReturned();
  recorder.Finished();
  const StepTime after = StepClock::now();
  const StepRecord& record = recorder.last();
  const BucketRecord& bucket = record.buckets[0];
  const StepTime times[] = {before,
                            record.forward_begin,
                            record.backward_begin,
                            bucket.first_marked,
                            bucket.ready,
                            bucket.launched,
                            bucket.at(Stage::kCollective).begin,
                            bucket.at(Stage::kCollective).end,
                            record.end_called,
                            record.end,
                            after};
  EXPECT_TRUE(std::is_sorted(std::begin(times), std::end(times)));
  EXPECT_THAT(record.ready_order, ElementsAre(0, 1));
}

TEST(StepRecorder, AStageOfSeveralPiecesLastsFromTheFirstToTheLast) {
  StepRecorder recorder(1, 1);
  recorder.BackwardBegan(1, At(0));
  recorder.Began(Stage::kCollective, 0, At(1));
  recorder.Sent(0, 10);
  recorder.Ended(Stage::kCollective, 0, At(2));
  recorder.Began(Stage::kCollective, 0, At(5));
  recorder.Sent(0, 32);
  recorder.Ended(Stage::kCollective, 0, At(6));
  recorder.Finished();
  EXPECT_EQ(recorder.last().buckets[0].at(Stage::kCollective).begin, At(1));
  EXPECT_EQ(recorder.last().buckets[0].at(Stage::kCollective).end, At(6));
  EXPECT_EQ(recorder.last().buckets[0].bytes, 42);
}

TEST(StepRecorder, ABucketThatIsOnlyCopiedInIsNotDone) {
  StepRecorder recorder(1, 1);
  recorder.BackwardBegan(1, At(0));
  recorder.Began(Stage::kCopyIn, 0, At(1));
  recorder.Ended(Stage::kCopyIn, 0, At(2));
  recorder.Finished();
  EXPECT_FALSE(IsRecorded(recorder.last().buckets[0].done()));
}

TEST(StepRecorder, KeepsTheLastOnesInOrder) {
  StepRecorder recorder(1, 1);
  EXPECT_EQ(recorder.kept(), 0);
  EXPECT_EQ(recorder.last().step, 0);
  for (uint64_t step = 1; step <= 2 * StepRecorder::kKept + 3; ++step) {
    recorder.BackwardBegan(step, At(static_cast<int>(step)));
    recorder.Finished();
    EXPECT_EQ(recorder.kept(), std::min<size_t>(step, StepRecorder::kKept));
    for (size_t back = 0; back < recorder.kept(); ++back) EXPECT_EQ(recorder.record(back).step, step - back);
  }
}

TEST(StepRecorder, EveryStepStartsAnew) {
  StepRecorder recorder(1, 2);
  for (uint64_t step = 1; step <= 3 * StepRecorder::kKept; ++step) {
    if (step % 2 == 1) recorder.ForwardBegan(At(1));
    recorder.BackwardBegan(step, At(2));
    if (step % 2 == 1) {
      recorder.Marked(1, 0, At(3));
      recorder.Ready(0, At(3));
      recorder.Launched(0, At(4));
      recorder.Began(Stage::kCollective, 0, At(5));
      recorder.Sent(0, 8);
      recorder.Ended(Stage::kCollective, 0, At(6));
      recorder.EndCalled(At(7));
      recorder.EndReturned(At(8));
      recorder.Unused(16);
    }
    recorder.Finished(At(9));
    const StepRecord& record = recorder.last();
    if (step % 2 == 1) {
      EXPECT_EQ(record.end, At(8));
      continue;
    }
    EXPECT_FALSE(IsRecorded(record.forward_begin));
    EXPECT_FALSE(IsRecorded(record.end_called));
    EXPECT_EQ(record.end, At(9));
    EXPECT_THAT(record.ready_order, IsEmpty());
    EXPECT_EQ(record.unused_parameter_bytes, 0);
    EXPECT_FALSE(IsRecorded(record.buckets[0].first_marked));
    EXPECT_FALSE(IsRecorded(record.buckets[0].ready));
    EXPECT_FALSE(IsRecorded(record.buckets[0].launched));
    EXPECT_FALSE(IsRecorded(record.buckets[0].done()));
    EXPECT_EQ(record.buckets[0].bytes, 0);
  }
}

TEST(StepRecorder, TheForwardOfTheNextStepMayBeginBeforeThisOneIsFinished) {
  StepRecorder recorder(1, 1);
  recorder.ForwardBegan(At(0));
  recorder.BackwardBegan(1, At(1));
  recorder.EndCalled(At(2));
  recorder.EndReturned(At(2));
  recorder.ForwardBegan(At(3));
  recorder.Finished();
  recorder.BackwardBegan(2, At(4));
  recorder.Finished();
  EXPECT_EQ(recorder.record(1).forward_begin, At(0));
  EXPECT_EQ(recorder.record(0).forward_begin, At(3));
}

TEST(StepRecorder, AStepThatIsNotFinishedLeavesNoRecord) {
  StepRecorder recorder(1, 1);
  recorder.BackwardBegan(1, At(0));
  recorder.Sent(0, 5);
  recorder.BackwardBegan(2, At(1));
  recorder.Finished();
  EXPECT_EQ(recorder.kept(), 1);
  EXPECT_EQ(recorder.last().step, 2);
  EXPECT_EQ(recorder.last().buckets[0].bytes, 0);
}

TEST(StepRecorder, BucketsAreRecordedByTheirOwnThreadsMeanwhile) {
  // What ThreadSanitizer would object to, if the stages of a bucket shared memory with anything.
  constexpr size_t kBuckets = 4;
  constexpr int kPieces = 1000;
  StepRecorder recorder(kBuckets, kPieces);
  recorder.BackwardBegan(1, At(0));
  std::vector<std::thread> threads;
  for (size_t b = 0; b < kBuckets; ++b) {
    threads.emplace_back([&recorder, b] {
      for (int piece = 0; piece < kPieces; ++piece) {
        recorder.Began(Stage::kCollective, b, At(1 + piece));
        recorder.Sent(b, 2);
        recorder.Ended(Stage::kCollective, b, At(2 + piece));
      }
    });
  }
  for (int i = 0; i < kPieces; ++i) {
    recorder.Marked(i, i % kBuckets);
    recorder.Ready(i % kBuckets);
    recorder.Launched(i % kBuckets);
    recorder.ForwardBegan();
  }
  recorder.EndCalled();
  for (std::thread& thread : threads) thread.join();
  recorder.Finished();
  for (const BucketRecord& bucket : recorder.last().buckets) {
    EXPECT_EQ(bucket.bytes, 2 * kPieces);
    EXPECT_EQ(bucket.at(Stage::kCollective).begin, At(1));
    EXPECT_EQ(bucket.at(Stage::kCollective).end, At(1 + kPieces));
  }
  EXPECT_THAT(recorder.last().ready_order, SizeIs(kPieces));
}

TEST(StepRecorder, ANewPlanHoldsFromTheNextStepOn) {
  StepRecorder recorder(1, 1);
  recorder.BackwardBegan(1, At(0));
  recorder.Replan(3);
  recorder.Launched(0, At(1));
  recorder.Finished();
  recorder.BackwardBegan(2, At(2));
  recorder.Launched(2, At(3));
  recorder.Finished();
  EXPECT_THAT(recorder.record(1).buckets, SizeIs(1));
  EXPECT_THAT(recorder.record(0).buckets, SizeIs(3));
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

#include "reducer/report/summary.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepTime At(int microseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::microseconds(microseconds); }

BucketRecord Bucket(int ready, int launched, int wire_begin, int wire_end, int done, int64_t bytes) {
  BucketRecord bucket;
  bucket.ready = At(ready);
  bucket.launched = At(launched);
  bucket.at(Stage::kCollective) = {At(wire_begin), At(wire_end)};
  bucket.at(Stage::kCopyOut) = {At(wire_end), At(done)};
  bucket.bytes = bytes;
  return bucket;
}

BucketPlan Plan(const std::vector<size_t>& parameters) {
  BucketPlan plan;
  for (const size_t count : parameters) {
    plan.buckets.emplace_back();
    plan.buckets.back().slots.resize(count);
  }
  return plan;
}

TEST(Summary, ShowsWhatWasWhen) {
  StepRecord record;
  record.step = 12;
  record.backward_begin = At(0);
  record.end_called = At(8000);
  record.buckets = {Bucket(1000, 1250, 2000, 4000, 4500, 1 << 20),  //
                    Bucket(7900, 8000, 8000, 8000, 8030, 64),       // shorter than the clock
                    Bucket(7000, 8001, 8100, 11900, 12000, 25 << 20)};
  EXPECT_EQ(Summary(record, Plan({3, 1, 120}), Rank(1), 4),
            "step 12, rank 1 of 4: backward 8.00 ms, communication 5.80 ms (2.00 hidden, 3.80 exposed)\n"
            "1 of 3 buckets launched in backward, 27263040 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n"
            "     0      3      1048576     1.00     1.25     2.00 -    4.00     4.50  |----####--------........|\n"
            "     1      1           64     7.90     8.00     8.00 -    8.00     8.03  |----------------#.......|\n"
            "     2    120     26214400     7.00     8.00     8.10 -   11.90    12.00  |----------------########|\n");
}

TEST(Summary, ShowsWhatIsMissing) {
  StepRecord record;
  record.step = 1;
  record.backward_begin = At(0);
  record.end_called = At(2000);
  record.buckets.resize(2);
  record.buckets[0].ready = At(500);
  record.buckets[0].launched = At(600);
  record.buckets[0].at(Stage::kCollective).begin = At(700);
  EXPECT_EQ(Summary(record, Plan({1, 1}), Rank(0), 1),
            "step 1, rank 0 of 1: backward 2.00 ms, communication 0.00 ms (0.00 hidden, 0.00 exposed)\n"
            "1 of 2 buckets launched in backward, 0 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n"
            "     0      1            0     0.50     0.60     0.70 -       -        -  |------------------------|\n"
            "     1      1            0        -        -        - -       -        -  |------------------------|\n");
}

TEST(Summary, HoldsNothingButTheTotalsBeforeTheFirstStep) {
  EXPECT_EQ(Summary(StepRecord(), BucketPlan(), Rank(0), 2),
            "step 0, rank 0 of 2: backward 0.00 ms, communication 0.00 ms (0.00 hidden, 0.00 exposed)\n"
            "0 of 0 buckets launched in backward, 0 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n");
}

TEST(Summary, FitsOnAScreenHoweverManyBucketsThereAre) {
  StepRecord record;
  record.backward_begin = At(0);
  record.end_called = At(1000);
  for (int b = 0; b < 21; ++b) record.buckets.push_back(Bucket(b, b, b, b + 1, b + 1, 1000 + b));
  const BucketPlan plan = Plan(std::vector<size_t>(21, 1));
  const std::string text = Summary(record, plan, Rank(0), 1);
  EXPECT_THAT(text, HasSubstr("\n   ... 1 more\n"));
  for (int b = 0; b < 21; ++b) {
    const std::string bytes = absl::StrCat(" ", 1000 + b, " ");
    if (b == 10) {
      EXPECT_THAT(text, Not(HasSubstr(bytes)));
    } else {
      EXPECT_THAT(text, HasSubstr(bytes));
    }
  }
  record.buckets.pop_back();
  EXPECT_THAT(Summary(record, plan, Rank(0), 1), Not(HasSubstr("more")));
}

}  // namespace
}  // namespace lockstep

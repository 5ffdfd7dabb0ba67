#include "reducer/report/reports.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/report/record.h"

namespace lockstep {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

StepTime At(double milliseconds) {
  return StepTime() + std::chrono::hours(1) + std::chrono::microseconds(static_cast<int>(1000 * milliseconds));
}

// ---- The record.

BucketPlan Plan(const std::vector<size_t>& parameters) {
  BucketPlan plan;
  for (const size_t count : parameters) {
    plan.buckets.emplace_back();
    plan.buckets.back().slots.resize(count);
  }
  return plan;
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

TEST(ClockAnchor, GivesAbsoluteTimes) {
  ClockAnchor anchor;
  anchor.steady = At(100);
  anchor.system = std::chrono::system_clock::time_point() + std::chrono::seconds(2);
  EXPECT_EQ(anchor.UnixNanoseconds(At(100)), 2000000000);
  EXPECT_EQ(anchor.UnixNanoseconds(At(99)), 1999000000);
  EXPECT_EQ(anchor.UnixNanoseconds(At(101)), 2001000000);
  EXPECT_EQ(anchor.UnixNanoseconds(StepTime()), 0);
}

// ---- Statistics and summary.

// `done`, `ready`: not recorded without.
BucketRecord Bucket(double launched, double wire_begin, double wire_end, int64_t bytes, double done = -1,
                    double ready = -1) {
  BucketRecord bucket;
  bucket.parameters = 1;
  bucket.launched = At(launched);
  bucket.at(Stage::kCollective) = {At(wire_begin), At(wire_end)};
  bucket.bytes = bytes;
  if (done >= 0) bucket.at(Stage::kCopyOut) = {At(wire_end), At(done)};
  if (ready >= 0) bucket.ready = At(ready);
  return bucket;
}

StepRecord Backward(double begin, double end_called, std::vector<BucketRecord> buckets) {
  StepRecord record;
  record.step = 1;
  record.backward_begin = At(begin);
  record.end_called = At(end_called);
  record.buckets = std::move(buckets);
  return record;
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

TEST(Statistics, ABucketThatEndsWithBackwardIsHiddenAndOneThatTheEndLaunchesIsNotLaunchedInIt) {
  const StepRecord record = Backward(0, 4, {Bucket(1, 1, 4, 8), Bucket(4, 5, 8, 8)});
  EXPECT_DOUBLE_EQ(Statistics(record).exposed_ms, 3);
  EXPECT_DOUBLE_EQ(Statistics(record).hidden_ms(), 3);
  EXPECT_EQ(Statistics(record).buckets_launched_in_backward, 1);
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
  const BucketRecord bucket = Bucket(12, 15, 30, 64, /*done=*/33, /*ready=*/11);
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

ReducerRecord Of(StepRecord last, int rank, int world_size) {
  ReducerRecord record;
  record.rank = Rank(rank);
  record.world_size = world_size;
  record.last = std::move(last);
  return record;
}

TEST(Summary, ShowsWhatWasWhen) {
  StepRecord record = Backward(0, 8,
                               {Bucket(1.25, 2, 4, 1 << 20, 4.5, 1),  //
                                Bucket(8, 8, 8, 64, 8.03, 7.9),       // shorter than the clock
                                Bucket(8.001, 8.1, 11.9, 25 << 20, 12, 7)});
  record.step = 12;
  record.buckets[0].parameters = 3;
  record.buckets[2].parameters = 120;
  EXPECT_EQ(Summary(Of(record, 1, 4)),
            "step 12, rank 1 of 4: backward 8.00 ms, communication 5.80 ms (2.00 hidden, 3.80 exposed)\n"
            "1 of 3 buckets launched in backward, 27263040 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n"
            "     0      3      1048576     1.00     1.25     2.00 -    4.00     4.50  |----####--------........|\n"
            "     1      1           64     7.90     8.00     8.00 -    8.00     8.03  |----------------#.......|\n"
            "     2    120     26214400     7.00     8.00     8.10 -   11.90    12.00  |----------------########|\n");
}

TEST(Summary, ShowsWhatIsMissing) {
  StepRecord record = Backward(0, 2, std::vector<BucketRecord>(2));
  for (BucketRecord& bucket : record.buckets) bucket.parameters = 1;
  record.buckets[0].ready = At(0.5);
  record.buckets[0].launched = At(0.6);
  record.buckets[0].Began(Stage::kCollective, At(0.7));
  EXPECT_EQ(Summary(Of(record, 0, 1)),
            "step 1, rank 0 of 1: backward 2.00 ms, communication 0.00 ms (0.00 hidden, 0.00 exposed)\n"
            "1 of 2 buckets launched in backward, 0 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n"
            "     0      1            0     0.50     0.60     0.70 -       -        -  |------------------------|\n"
            "     1      1            0        -        -        - -       -        -  |------------------------|\n");
}

TEST(Summary, HoldsNothingButTheTotalsBeforeTheFirstStep) {
  EXPECT_EQ(Statistics(StepRecord()).steps, 0);
  EXPECT_EQ(Summary(Of(StepRecord(), 0, 2)),
            "step 0, rank 0 of 2: backward 0.00 ms, communication 0.00 ms (0.00 hidden, 0.00 exposed)\n"
            "0 of 0 buckets launched in backward, 0 bytes reduced; times in ms since backward began\n"
            "\n"
            "bucket params        bytes    ready   launch       on the wire     done  |- backward, # on wire   |\n");
}

TEST(Summary, FitsOnAScreenHoweverManyBucketsThereAre) {
  StepRecord record = Backward(0, 1, {});
  for (int b = 0; b < 21; ++b) record.buckets.push_back(Bucket(b, b, b + 1, 1000 + b));
  const std::string text = Summary(Of(record, 0, 1));
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
  EXPECT_THAT(Summary(Of(record, 0, 1)), Not(HasSubstr("more")));
}

// ---- Logging data

constexpr int64_t kMillisecond = 1000000;

int64_t Unix(int milliseconds) { return 1000 * kMillisecond + milliseconds * kMillisecond; }

// A forward of `forward` ms from 0 on, a backward of 100 ms.
StepRecord Step(uint64_t step, int forward) {
  StepRecord record = Backward(forward, forward + 100,
                               {Bucket(forward + 20, forward + 20, forward + 50, 0, forward + 60),
                                Bucket(forward + 60, forward + 60, forward + 110, 0, forward + 125)});
  record.step = step;
  record.forward_begin = At(0);
  record.end = At(forward + 130);
  record.ready_order = {2, 0, 1};
  record.unused_parameter_bytes = 12;
  return record;
}

class LoggingDataTest : public ::testing::Test {
 protected:
  LoggingDataTest() {
    table_[0] = {"a", DType::kF32, DeviceId(), {10, 10}, {}, false};
    table_[1] = {"b", DType::kF16, DeviceId(), {7}, {}, false};
    table_[2] = {"c", DType::kF32, DeviceId(), {3}, {}, false};
    table_[3] = {"d", DType::kF64, DeviceId(), {1000}, {}, true};
    record_.parameters = table_;
    record_.anchor.steady = At(0);
    record_.anchor.system = std::chrono::system_clock::time_point() + std::chrono::seconds(1);
  }

  void Sample(StepRecord last) {
    record_.last = std::move(last);
    record_.Sample();
  }

  json Data() const {
    json data = json::parse(LoggingData(record_), nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(data.is_discarded());
    return data;
  }

  // Those of the steps from `first` to `last` that are sampled.
  std::vector<int64_t> Sampled(uint64_t first, uint64_t last) {
    std::vector<int64_t> sampled;
    for (uint64_t step = first; step <= last; ++step) {
      Sample(Step(step, 1));
      if (Data()["iteration"] == step) sampled.push_back(static_cast<int64_t>(step));
    }
    return sampled;
  }

  std::vector<Parameter> table_ = std::vector<Parameter>(4);
  ReducerRecord record_;
};

TEST_F(LoggingDataTest, TellsTheTableAndThePlan) {
  record_.rank = Rank(1);
  record_.world_size = 4;
  record_.first_plan = PlanBuckets(table_, {{0}});
  const json data = Data();
  EXPECT_EQ(data["rank"], 1);
  EXPECT_EQ(data["world_size"], 4);
  EXPECT_EQ(data["num_parameter_tensors"], 3);
  EXPECT_EQ(data["total_parameter_size_bytes"], 400 + 14 + 12);
  EXPECT_EQ(data["dtypes"], json({"f16", "f32"}));
  EXPECT_EQ(data["is_multi_device_module"], false);
  EXPECT_EQ(data["bucket_sizes"], json({12, 14, 400}));
  EXPECT_EQ(data["has_rebuilt_buckets"], false);
  EXPECT_EQ(data["iteration"], 0);
  EXPECT_FALSE(data.contains("can_set_static_graph"));
}

TEST_F(LoggingDataTest, TellsTheRebuiltBuckets) {
  record_.first_plan = PlanBuckets(table_, {{0}});
  record_.rebuilt_plan = PlanBuckets(table_, {{1000}});
  const json data = Data();
  EXPECT_EQ(data["has_rebuilt_buckets"], true);
  EXPECT_EQ(data["bucket_sizes"], json({12, 14, 400}));
  EXPECT_EQ(data["rebuilt_bucket_sizes"], json({14, 412}));
  EXPECT_EQ(data["rebuilt_per_bucket_param_indices"], json::parse("[[1], [2, 0]]"));
}

TEST_F(LoggingDataTest, TellsTheOptionsAndWhatBecameKnown) {
  record_.comm_hook = "bf16";
  record_.bucket_cap_bytes = 1 << 20;
  record_.error = "not utf-8: \xff";
  record_.can_set_static_graph = false;
  const json data = Data();
  EXPECT_EQ(data["backend_name"], "lockstep");
  EXPECT_EQ(data["bucket_cap_bytes"], 1 << 20);
  EXPECT_EQ(data["comm_hook"], "bf16");
  EXPECT_THAT(data["error"].get<std::string>(), HasSubstr("not utf-8"));
  EXPECT_EQ(data["can_set_static_graph"], false);
}

TEST_F(LoggingDataTest, TellsEachFlagUnderItsName) {
  const std::pair<bool ReducerRecord::*, const char*> flags[] = {
      {&ReducerRecord::broadcast_buffers, "broadcast_buffers"},
      {&ReducerRecord::find_unused_parameters, "find_unused_parameters"},
      {&ReducerRecord::gradient_as_bucket_view, "gradient_as_bucket_view"},
      {&ReducerRecord::static_graph, "static_graph"},
      {&ReducerRecord::join_uneven_inputs, "join_uneven_inputs"},
  };
  for (const auto& [set, name] : flags) {
    record_.*set = true;
    const json data = Data();
    for (const auto& [other, other_name] : flags)
      EXPECT_EQ(data[other_name], other == set) << name << ", " << other_name;
    record_.*set = false;
  }
}

TEST_F(LoggingDataTest, TellsTheTimesOfAStep) {
  Sample(Step(1, 40));
  const json data = Data();
  EXPECT_EQ(data["iteration"], 1);
  EXPECT_EQ(data["num_buckets_reduced"], 2);
  EXPECT_EQ(data["unused_parameter_size"], 12);
  EXPECT_EQ(data["prev_iteration_grad_ready_order_indices"], json({2, 0, 1}));
  EXPECT_EQ(data["forward_compute_time"], 40 * kMillisecond);
  EXPECT_EQ(data["backward_compute_time"], 100 * kMillisecond);
  EXPECT_EQ(data["backward_comm_time"], 105 * kMillisecond);
  EXPECT_EQ(data["avg_backward_comm_time"], 105 * kMillisecond);
  EXPECT_EQ(data["backward_compute_comm_overlap_time"], 80 * kMillisecond);
  EXPECT_EQ(data["forward_compute_time_start"], Unix(0));
  EXPECT_EQ(data["backward_compute_time_start"], Unix(40));
  EXPECT_EQ(data["backward_comm_time_start"], Unix(60));
  EXPECT_EQ(data["backward_compute_time_end"], Unix(140));
  EXPECT_EQ(data["backward_comm_time_end"], Unix(165));
}

TEST_F(LoggingDataTest, AveragesOverWhatIsKnown) {
  Sample(Step(1, 10));
  StepRecord no_forward = Step(2, 99);
  no_forward.forward_begin = StepTime();
  Sample(no_forward);
  EXPECT_EQ(Data()["forward_compute_time"], 0);
  EXPECT_EQ(Data()["forward_compute_time_start"], 0);
  EXPECT_EQ(Data()["avg_forward_compute_time"], 10 * kMillisecond);
  StepRecord longer = Step(3, 30);
  longer.end_called = At(30 + 150);
  Sample(longer);
  EXPECT_EQ(Data()["avg_forward_compute_time"], 20 * kMillisecond);
  EXPECT_EQ(Data()["avg_backward_compute_time"], (100 + 100 + 150) * kMillisecond / 3);
  EXPECT_EQ(Data()["avg_backward_comm_time"], 105 * kMillisecond);
  EXPECT_EQ(Data()["avg_backward_compute_comm_overlap_time"], (80 + 80 + 105) * kMillisecond / 3);
}

TEST_F(LoggingDataTest, SamplesTheFirstTenAndThenEveryHundredth) {
  EXPECT_THAT(Sampled(1, 320), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 200, 300));
}

TEST_F(LoggingDataTest, TakesAnotherRate) {
  LOCKSTEP_EXPECT_OK(record_.SetSampleRate(7));
  EXPECT_THAT(record_.SetSampleRate(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rate of 0")));
  EXPECT_THAT(Sampled(8, 22), ElementsAre(8, 9, 10, 14, 21));
}

TEST_F(LoggingDataTest, CountsAStepOnce) {
  Sample(StepRecord());
  EXPECT_EQ(Data()["iteration"], 0);
  Sample(Step(1, 10));
  Sample(Step(1, 10));
  Sample(Step(2, 40));
  EXPECT_EQ(Data()["avg_forward_compute_time"], 25 * kMillisecond);
}

// As a whole, as over a fast network, when the first layers take long; and none if the backward ends before the first
// launch.
TEST_F(LoggingDataTest, CommunicationIsHiddenAsFarAsTheBackwardLasts) {
  uint64_t step = 0;
  for (const int end_called : {200, 135, 134, 100, 11}) {
    StepRecord record = Step(++step, 10);  // from 30 ms to 135 ms
    record.end_called = At(end_called);
    Sample(record);
    const json data = Data();
    EXPECT_EQ(data["backward_comm_time"], 105 * kMillisecond);
    EXPECT_EQ(data["backward_compute_comm_overlap_time"], std::max(0, std::min(end_called, 135) - 30) * kMillisecond);
    EXPECT_LE(data["avg_backward_compute_comm_overlap_time"], data["avg_backward_comm_time"]);
  }
}

TEST_F(LoggingDataTest, BucketsThatAreNotReducedAreNoCommunication) {
  StepRecord record = Step(1, 10);
  for (BucketRecord& bucket : record.buckets) bucket = BucketRecord();
  Sample(record);
  EXPECT_EQ(Data()["num_buckets_reduced"], 0);
  EXPECT_EQ(Data()["backward_comm_time"], 0);
  EXPECT_EQ(Data()["backward_comm_time_start"], 0);
  EXPECT_EQ(Data()["backward_comm_time_end"], 0);
}

// A name that is forgotten would be missed by nobody: the list of DDP's that are kept here.
TEST_F(LoggingDataTest, HasEveryNameThatIsKept) {
  record_.can_set_static_graph = true;
  const std::set<std::string> names = absl::StrSplit(
      "world_size rank backend_name num_parameter_tensors total_parameter_size_bytes dtypes is_multi_device_module "
      "bucket_sizes bucket_cap_bytes broadcast_buffers find_unused_parameters gradient_as_bucket_view static_graph "
      "comm_hook has_rebuilt_buckets rebuilt_bucket_sizes rebuilt_per_bucket_param_indices join_uneven_inputs "
      "can_set_static_graph error iteration num_buckets_reduced unused_parameter_size "
      "prev_iteration_grad_ready_order_indices forward_compute_time backward_compute_time backward_comm_time "
      "backward_compute_comm_overlap_time avg_forward_compute_time avg_backward_compute_time avg_backward_comm_time "
      "avg_backward_compute_comm_overlap_time forward_compute_time_start backward_compute_time_start "
      "backward_comm_time_start backward_compute_time_end backward_comm_time_end",
      ' ');
  const json data = Data();
  for (const std::string& name : names) EXPECT_TRUE(data.contains(name)) << name;
  EXPECT_EQ(data.size(), names.size());
}

}  // namespace
}  // namespace lockstep

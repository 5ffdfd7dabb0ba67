#include "reducer/report/logging_data.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "base/types/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMillisecond = 1000000;

StepTime At(int milliseconds) { return StepTime() + std::chrono::hours(1) + std::chrono::milliseconds(milliseconds); }

ClockAnchor Anchor() {
  ClockAnchor anchor;
  anchor.steady = At(0);
  anchor.system = std::chrono::system_clock::time_point() + std::chrono::seconds(1);
  return anchor;
}

int64_t Unix(int milliseconds) { return 1000 * kMillisecond + milliseconds * kMillisecond; }

BucketRecord Reduced(int launched, int wire_end, int copied_out) {
  BucketRecord bucket;
  bucket.launched = At(launched);
  bucket.at(Stage::kCollective) = {At(launched), At(wire_end)};
  bucket.at(Stage::kCopyOut) = {At(wire_end), At(copied_out)};
  return bucket;
}

// A forward of `forward` ms from 0 on, a backward of 100 ms.
StepRecord Record(uint64_t step, int forward) {
  StepRecord record;
  record.step = step;
  record.forward_begin = At(0);
  record.backward_begin = At(forward);
  record.end_called = At(forward + 100);
  record.end = At(forward + 130);
  record.buckets = {Reduced(forward + 20, forward + 50, forward + 60),
                    Reduced(forward + 60, forward + 110, forward + 125)};
  record.ready_order = {2, 0, 1};
  record.unused_parameter_bytes = 12;
  return record;
}

std::vector<Parameter> Table() {
  std::vector<Parameter> table(4);
  table[0] = {"a", DType::kF32, DeviceId(), {10, 10}, {}, false};
  table[1] = {"b", DType::kF16, DeviceId(), {7}, {}, false};
  table[2] = {"c", DType::kF32, DeviceId(), {3}, {}, false};
  table[3] = {"d", DType::kF64, DeviceId(), {1000}, {}, true};
  return table;
}

TEST(LoggingData, TellsTheTableAndThePlan) {
  const std::vector<Parameter> table = Table();
  const BucketPlan plan = PlanBuckets(table, {{0}});
  const LoggingData data = ConstructionData(Rank(1), 4, table, plan);
  EXPECT_EQ(data.rank, 1);
  EXPECT_EQ(data.world_size, 4);
  EXPECT_EQ(data.num_parameter_tensors, 3);
  EXPECT_EQ(data.total_parameter_size_bytes, 400 + 14 + 12);
  EXPECT_THAT(data.dtypes, ElementsAre("f16", "f32"));
  EXPECT_FALSE(data.is_multi_device_module);
  EXPECT_THAT(data.bucket_sizes, ElementsAre(12, 14, 400));
  EXPECT_FALSE(data.has_rebuilt_buckets);
  EXPECT_EQ(data.iteration, 0);
}

TEST(LoggingData, TellsWhetherParametersAreOnSeveralDevices) {
  std::vector<Parameter> table = Table();
  table[2].device = DeviceId{DeviceKind::kCuda, 1};
  EXPECT_TRUE(ConstructionData(Rank(0), 1, table, PlanBuckets(table, {{0}})).is_multi_device_module);
  table[2].ignored = true;
  EXPECT_FALSE(ConstructionData(Rank(0), 1, table, PlanBuckets(table, {{0}})).is_multi_device_module);
}

TEST(LoggingData, TellsTheRebuiltBuckets) {
  const std::vector<Parameter> table = Table();
  LoggingData data = ConstructionData(Rank(0), 1, table, PlanBuckets(table, {{0}}));
  SetRebuiltBuckets(PlanBuckets(table, {{1000}}), &data);
  EXPECT_TRUE(data.has_rebuilt_buckets);
  EXPECT_THAT(data.bucket_sizes, ElementsAre(12, 14, 400));
  EXPECT_THAT(data.rebuilt_bucket_sizes, ElementsAre(14, 412));
  EXPECT_THAT(data.rebuilt_per_bucket_param_indices, ElementsAre(ElementsAre(1), ElementsAre(2, 0)));
}

TEST(RuntimeSampler, PublishesTheTimesOfAStep) {
  LoggingData data;
  RuntimeSampler sampler;
  sampler.Publish(Record(1, 40), Anchor(), &data);
  EXPECT_EQ(data.iteration, 1);
  EXPECT_EQ(data.num_buckets_reduced, 2);
  EXPECT_EQ(data.unused_parameter_size, 12);
  EXPECT_THAT(data.prev_iteration_grad_ready_order_indices, ElementsAre(2, 0, 1));
  EXPECT_EQ(data.forward_compute_time, 40 * kMillisecond);
  EXPECT_EQ(data.backward_compute_time, 100 * kMillisecond);
  EXPECT_EQ(data.backward_comm_time, 105 * kMillisecond);
  EXPECT_EQ(data.backward_compute_comm_overlap_time, 80 * kMillisecond);
  EXPECT_EQ(data.forward_compute_time_start, Unix(0));
  EXPECT_EQ(data.backward_compute_time_start, Unix(40));
  EXPECT_EQ(data.backward_comm_time_start, Unix(60));
  EXPECT_EQ(data.backward_compute_time_end, Unix(140));
  EXPECT_EQ(data.backward_comm_time_end, Unix(165));
}

TEST(RuntimeSampler, AveragesOverWhatIsKnown) {
  LoggingData data;
  RuntimeSampler sampler;
  sampler.Publish(Record(1, 10), Anchor(), &data);
  StepRecord no_forward = Record(2, 99);
  no_forward.forward_begin = StepTime();
  sampler.Publish(no_forward, Anchor(), &data);
  EXPECT_EQ(data.forward_compute_time, 0);
  EXPECT_EQ(data.forward_compute_time_start, 0);
  EXPECT_EQ(data.avg_forward_compute_time, 10 * kMillisecond);
  StepRecord longer = Record(3, 30);
  longer.end_called = At(30 + 150);
  sampler.Publish(longer, Anchor(), &data);
  EXPECT_EQ(data.avg_forward_compute_time, 20 * kMillisecond);
  EXPECT_EQ(data.avg_backward_compute_time, (100 + 100 + 150) * kMillisecond / 3);
  EXPECT_EQ(data.avg_backward_comm_time, 105 * kMillisecond);
  EXPECT_EQ(data.avg_backward_compute_comm_overlap_time, (80 + 80 + 105) * kMillisecond / 3);
}

TEST(RuntimeSampler, PublishesTheFirstTenAndThenEveryHundredth) {
  LoggingData data;
  RuntimeSampler sampler;
  std::vector<int64_t> published;
  for (uint64_t step = 1; step <= 320; ++step) {
    sampler.Publish(Record(step, 1), Anchor(), &data);
    if (data.iteration == static_cast<int64_t>(step)) published.push_back(data.iteration);
  }
  EXPECT_THAT(published, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 100, 200, 300));
}

TEST(RuntimeSampler, TakesAnotherRate) {
  LoggingData data;
  RuntimeSampler sampler;
  LOCKSTEP_EXPECT_OK(sampler.SetSampleRate(7));
  EXPECT_THAT(sampler.SetSampleRate(0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rate of 0")));
  std::vector<int64_t> published;
  for (uint64_t step = 8; step <= 22; ++step) {
    sampler.Publish(Record(step, 1), Anchor(), &data);
    if (data.iteration == static_cast<int64_t>(step)) published.push_back(data.iteration);
  }
  EXPECT_THAT(published, ElementsAre(8, 9, 10, 14, 21));
}

TEST(RuntimeSampler, CountsAStepOnce) {
  LoggingData data;
  RuntimeSampler sampler;
  sampler.Publish(StepRecord(), Anchor(), &data);
  EXPECT_EQ(data.iteration, 0);
  sampler.Publish(Record(1, 10), Anchor(), &data);
  sampler.Publish(Record(1, 10), Anchor(), &data);
  sampler.Publish(Record(2, 40), Anchor(), &data);
  EXPECT_EQ(data.avg_forward_compute_time, 25 * kMillisecond);
}

TEST(RuntimeSampler, ABackwardWithoutOverlapHasNone) {
  StepRecord record = Record(1, 10);
  record.end_called = At(11);  // before the first launch
  LoggingData data;
  RuntimeSampler sampler;
  sampler.Publish(record, Anchor(), &data);
  EXPECT_EQ(data.backward_compute_comm_overlap_time, 0);
  EXPECT_EQ(data.avg_backward_compute_comm_overlap_time, 0);
  EXPECT_EQ(data.backward_comm_time, 105 * kMillisecond);
}

// As over a fast network, when the first layers take long.
TEST(RuntimeSampler, CommunicationThatEndsBeforeTheBackwardIsHiddenAsAWhole) {
  LoggingData data;
  RuntimeSampler sampler;
  for (const int end_called : {200, 135, 134, 100}) {
    StepRecord record = Record(data.iteration + 1, 10);  // from 30 ms to 135 ms
    record.end_called = At(end_called);
    sampler.Publish(record, Anchor(), &data);
    EXPECT_EQ(data.backward_comm_time, 105 * kMillisecond);
    EXPECT_EQ(data.backward_compute_comm_overlap_time, (std::min(end_called, 135) - 30) * kMillisecond);
    EXPECT_LE(data.avg_backward_compute_comm_overlap_time, data.avg_backward_comm_time);
  }
}

TEST(RuntimeSampler, BucketsThatAreNotReducedAreNoCommunication) {
  StepRecord record = Record(1, 10);
  for (BucketRecord& bucket : record.buckets) bucket = BucketRecord();
  LoggingData data;
  RuntimeSampler sampler;
  sampler.Publish(record, Anchor(), &data);
  EXPECT_EQ(data.num_buckets_reduced, 0);
  EXPECT_EQ(data.backward_comm_time, 0);
  EXPECT_EQ(data.backward_comm_time_start, 0);
  EXPECT_EQ(data.backward_comm_time_end, 0);
}

TEST(LoggingData, BecomesJsonWithTheSameNames) {
  const std::vector<Parameter> table = Table();
  LoggingData data = ConstructionData(Rank(2), 3, table, PlanBuckets(table, {{0}}));
  data.backend_name = "transport";
  data.comm_hook = "bf16";
  data.bucket_cap_bytes = 1 << 20;
  data.error = "not utf-8: \xff";
  SetRebuiltBuckets(PlanBuckets(table, {{1000}}), &data);
  RuntimeSampler().Publish(Record(1, 40), Anchor(), &data);

  auto json = nlohmann::json::parse(ToJson(data), nullptr, /*allow_exceptions=*/false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["world_size"], 3);
  EXPECT_EQ(json["rank"], 2);
  EXPECT_EQ(json["dtypes"], nlohmann::json({"f16", "f32"}));
  EXPECT_EQ(json["bucket_sizes"], nlohmann::json({12, 14, 400}));
  EXPECT_EQ(json["gradient_as_bucket_view"], false);
  EXPECT_EQ(json["comm_hook"], "bf16");
  EXPECT_EQ(json["rebuilt_per_bucket_param_indices"], nlohmann::json::parse("[[1], [2, 0]]"));
  EXPECT_EQ(json["prev_iteration_grad_ready_order_indices"], nlohmann::json({2, 0, 1}));
  EXPECT_EQ(json["avg_backward_comm_time"], 105 * kMillisecond);
  EXPECT_EQ(json["backward_comm_time_end"], Unix(165));
  EXPECT_THAT(json["error"].get<std::string>(), HasSubstr("not utf-8"));
  EXPECT_FALSE(json.contains("can_set_static_graph"));
  data.can_set_static_graph = false;
  json = nlohmann::json::parse(ToJson(data), nullptr, false);
  EXPECT_EQ(json["can_set_static_graph"], false);
}

// A field that is forgotten in ToJson would be missed by nobody: the list of DDP's names that are kept here.
TEST(LoggingData, HasEveryNameThatIsKept) {
  LoggingData data;
  data.can_set_static_graph = true;
  const auto json = nlohmann::json::parse(ToJson(data), nullptr, false);
  const char* const names[] = {"world_size",
                               "rank",
                               "backend_name",
                               "num_parameter_tensors",
                               "total_parameter_size_bytes",
                               "dtypes",
                               "is_multi_device_module",
                               "bucket_sizes",
                               "bucket_cap_bytes",
                               "broadcast_buffers",
                               "find_unused_parameters",
                               "gradient_as_bucket_view",
                               "static_graph",
                               "comm_hook",
                               "has_rebuilt_buckets",
                               "rebuilt_bucket_sizes",
                               "rebuilt_per_bucket_param_indices",
                               "join_uneven_inputs",
                               "can_set_static_graph",
                               "error",
                               "iteration",
                               "num_buckets_reduced",
                               "unused_parameter_size",
                               "prev_iteration_grad_ready_order_indices",
                               "forward_compute_time",
                               "backward_compute_time",
                               "backward_comm_time",
                               "backward_compute_comm_overlap_time",
                               "avg_forward_compute_time",
                               "avg_backward_compute_time",
                               "avg_backward_comm_time",
                               "avg_backward_compute_comm_overlap_time",
                               "forward_compute_time_start",
                               "backward_compute_time_start",
                               "backward_comm_time_start",
                               "backward_compute_time_end",
                               "backward_comm_time_end"};
  for (const char* name : names) EXPECT_TRUE(json.contains(name)) << name;
  EXPECT_EQ(json.size(), std::size(names));
}

}  // namespace
}  // namespace lockstep

// What bench:overlap is made of: plans and ideals in numbers; work on a host stream everywhere, and on a GPU where there is one.

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/device_work.h"
#include "bench/overlap/overhead.h"
#include "bench/overlap/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reducer/plan/bucket_plan.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

TEST(PlanCompute, GivesForwardAThirdAndBackwardItsSharesByMultiplications) {
  ModelTable model;
  model.parameters = {{"embedding", {10, 2}, 0}, {"weight", {2, 2}, 3}, {"bias", {2}, 1}};
  const ComputePlan plan = PlanCompute(model, 6);
  EXPECT_THAT(plan.forward_seconds, DoubleEq(2));
  EXPECT_THAT(plan.backward_seconds, ElementsAre(DoubleEq(0), DoubleEq(3), DoubleEq(1)));
  EXPECT_THAT(plan.total_seconds(), DoubleEq(6));
}

TEST(IdealStepSeconds, IsComputationWhereNothingIsSent) {
  EXPECT_THAT(IdealStepSeconds(5, {}), DoubleEq(5));
  EXPECT_THAT(IdealStepSeconds(5, {{3, 0, 0}, {5, 0, 0}}), DoubleEq(5));
}

TEST(IdealStepSeconds, EndsWithTheLastBucketsTail) {
  // Forward ends at 2, gradients at 3, 4 and 5; only the last bucket sticks out.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 0}, {4, 1, 0}, {5, 1, 0}}), DoubleEq(6));
}

TEST(IdealStepSeconds, StartsABucketWhenTheOneBeforeIsThrough) {
  // The first is on the wire from 3 to 7, the second to 8, the third to 10.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 4, 0}, {4, 1, 0}, {5, 2, 0}}), DoubleEq(10));
}

TEST(IdealStepSeconds, WaitsForTheGradientsOfEarlierBuckets) {
  // The second bucket was ready before the first.
  EXPECT_THAT(IdealStepSeconds(5, {{4, 1, 0}, {3, 1, 0}}), DoubleEq(6));
}

TEST(IdealStepSeconds, HoldsComputationUpByTheProcessorTimeOfWhatOverlaps) {
  // From 3 to 4 half of the core is left, so the last gradient comes at 5.5, and its bucket has the core to itself.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 0.5}, {5, 1, 0.5}}), DoubleEq(6.5));
}

TEST(IdealStepSeconds, IsTheSumWhereCommunicationTakesTheWholeCore) {
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 1}, {5, 1, 1}}), DoubleEq(7));
  // As much where it is carried out on several cores.
  EXPECT_THAT(IdealStepSeconds(5, {{3, 1, 2}, {5, 1, 2}}), DoubleEq(7));
}

TEST(IdealStepSeconds, LetsComputationThatNoBucketWaitsForRunToItsEnd) {
  EXPECT_THAT(IdealStepSeconds(9, {{3, 1, 0}}), DoubleEq(9));
  EXPECT_THAT(IdealStepSeconds(9, {{3, 1, 1}}), DoubleEq(10));
}

// Two parameters, of which the first one's gradient costs nothing.
ComputePlan SmallPlan() {
  ComputePlan plan;
  plan.forward_seconds = 0.001;
  plan.backward_seconds = {0, 0.002};
  return plan;
}

TEST(ComputeKind, IsReadAsItIsNamed) {
  for (const ComputeKind kind : {ComputeKind::kBusy, ComputeKind::kAway, ComputeKind::kStream, ComputeKind::kMatmul}) {
    EXPECT_THAT(ParseComputeKind(Name(kind)), IsOkAndHolds(kind));
  }
  EXPECT_THAT(ParseComputeKind("idle"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("busy, away, stream, matmul")));
}

TEST(BusyComputation, WritesAGradientWhenItIsComputed) {
  std::vector<float> first(3);
  std::vector<float> second(5);
  const std::unique_ptr<Computation> computation =
      MakeBusyComputation(SmallPlan(), 1000, {absl::MakeSpan(first), absl::MakeSpan(second)}, 2);
  // What the constructor tried out does not count.
  first = {0, 0, 0};
  second = {0, 0, 0, 0, 0};
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  EXPECT_THAT(second, Each(2));
  EXPECT_THAT(first, Each(0));
  computation->Backward(0);
  EXPECT_THAT(first, Each(2));
}

TEST(BusyComputation, CanBeCalibrated) { EXPECT_GT(CalibrateArithmetic(), 0); }

TEST(AwayComputation, IsDoneNoEarlierThanThePlanSays) {
  const std::unique_ptr<Computation> computation = MakeAwayComputation(SmallPlan(), {});
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1));
  computation->Backward(1);
  computation->Backward(0);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
}

// The first of the two is not waited for, and takes its time all the same.
TEST(AwayComputation, AwaitsThoseThatItIsTold) {
  const std::unique_ptr<Computation> computation = MakeAwayComputation(SmallPlan(), {true, false});
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  computation->Backward(0);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3));
}

// Times are lower bounds only.
ComputePlan SlowPlan() {
  ComputePlan plan;
  plan.forward_seconds = 0.004;
  plan.backward_seconds = {0, 0.008};
  return plan;
}

void TakesItsTimeOn(Device& device) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Event> computed, device.CreateEvent());
  // Whatever is done once is done now.
  ASSERT_THAT(Occupy(*stream, std::chrono::nanoseconds(1)), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());

  const std::unique_ptr<Computation> computation =
      MakeStreamComputation(SlowPlan(), stream.get(), ClockWork(stream.get()));
  const Clock::time_point begin = Clock::now();
  computation->Begin();
  computation->Forward();
  computation->Backward(1);
  ASSERT_THAT(stream->Record(computed.get()), IsOk());
  computation->Backward(0);
  ASSERT_THAT(computed->Synchronize(Soon()), IsOk());
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(12));
  EXPECT_THAT(computation->Finish(), IsOk());
}

TEST(StreamComputation, TakesItsTimeOnTheHost) { TakesItsTimeOn(*HostDevice()); }

TEST(StreamComputation, TakesItsTimeOnAGpu) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_THAT(device, IsOk());
  TakesItsTimeOn(**device);
}

TEST(StreamComputation, TellsWhyTheStreamFailed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, HostDevice()->CreateStream("compute"));
  ASSERT_THAT(stream->Enqueue([] { return absl::DataLossError("lost"); }), IsOk());
  const std::unique_ptr<Computation> computation =
      MakeStreamComputation(SlowPlan(), stream.get(), ClockWork(stream.get()));
  computation->Begin();
  computation->Forward();
  EXPECT_THAT(computation->Finish(), StatusIs(absl::StatusCode::kDataLoss));
}

struct Sizes {
  uint32_t rows;
  uint32_t columns;
  uint32_t depth;
};

// Less than a tile, tiles exactly, and one more or less than tiles; an element more than the depth of a tile.
constexpr Sizes kSizes[] = {{1, 1, 1},    {1, 65, 3},   {63, 64, 16},   {64, 64, 17},   {65, 63, 15},
                            {64, 128, 1}, {130, 2, 33}, {128, 192, 64}, {200, 137, 100}};

std::vector<float> RandomMatrix(size_t elements, std::mt19937& random) {
  std::vector<float> matrix(elements);
  for (float& value : matrix) value = std::uniform_real_distribution<float>(-1, 1)(random);
  return matrix;
}

// In f64, and the sum of the products' sizes, which bounds how far roundings in f32 may lead away.
struct Expected {
  double value = 0;
  double size = 0;
};
Expected Element(const std::vector<float>& left, const std::vector<float>& right, const Sizes& sizes, size_t row,
                 size_t column) {
  Expected expected;
  for (size_t d = 0; d < sizes.depth; ++d) {
    const double product = double{left[row * sizes.depth + d]} * right[d * sizes.columns + column];
    expected.value += product;
    expected.size += std::abs(product);
  }
  return expected;
}

void IsTheProductOn(Device& device, const Sizes& sizes) {
  SCOPED_TRACE(testing::Message() << sizes.rows << " x " << sizes.depth << " x " << sizes.columns);
  constexpr size_t kBeyond = 100;  // elements behind the product, which stay as they are
  constexpr float kUntouched = 777;
  std::mt19937 random(1);
  const std::vector<float> left = RandomMatrix(size_t{sizes.rows} * sizes.depth, random);
  const std::vector<float> right = RandomMatrix(size_t{sizes.depth} * sizes.columns, random);
  std::vector<float> product(size_t{sizes.rows} * sizes.columns + kBeyond, kUntouched);

  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory,
                                device.Allocate((left.size() + right.size() + product.size()) * sizeof(float)));
  auto* const left_there = static_cast<float*>(memory);
  float* const right_there = left_there + left.size();
  float* const product_there = right_there + right.size();
  ASSERT_THAT(stream->Copy(left_there, left.data(), left.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Copy(right_there, right.data(), right.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Copy(product_there, product.data(), product.size() * sizeof(float)), IsOk());
  ASSERT_THAT(Matmul(*stream, {left_there, right_there, product_there, sizes.rows, sizes.columns, sizes.depth}),
              IsOk());
  ASSERT_THAT(stream->Copy(product.data(), product_there, product.size() * sizeof(float)), IsOk());
  ASSERT_THAT(stream->Synchronize(Soon()), IsOk());
  device.Free(memory);

  for (size_t row = 0; row < sizes.rows; ++row) {
    for (size_t column = 0; column < sizes.columns; ++column) {
      const Expected expected = Element(left, right, sizes, row, column);
      // Each of `depth` products and sums rounds by half a unit of the last place at most (Higham, Accuracy and Stability of
      // Numerical Algorithms, section 3.1).
      ASSERT_NEAR(product[row * sizes.columns + column], expected.value, expected.size * (sizes.depth + 1) * 6e-8)
          << "row " << row << ", column " << column;
    }
  }
  for (size_t i = product.size() - kBeyond; i < product.size(); ++i) ASSERT_EQ(product[i], kUntouched) << i;
}

TEST(Matmul, IsTheProductOnTheHost) {
  for (const Sizes& sizes : kSizes) IsTheProductOn(*HostDevice(), sizes);
}

TEST(Matmul, IsTheProductOnAGpu) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_THAT(device, IsOk());
  for (const Sizes& sizes : kSizes) IsTheProductOn(**device, sizes);
}

TEST(MatmulCost, HasAPartThatIsAlwaysTheSame) {
  const MatmulCost cost = MatmulCost::From(100, 0.003, 500, 0.011);
  EXPECT_NEAR(cost.seconds_per_depth, 2e-5, 1e-12);
  EXPECT_NEAR(cost.launch_seconds, 1e-3, 1e-12);
  EXPECT_NEAR(cost.SecondsOf(200), 0.005, 1e-12);
}

TEST(MatmulCost, StaysSaneWhereMeasurementsDisturbEachOther) {
  // As long as the deeper one, or longer.
  for (const double seconds : {0.01, 0.5}) {
    const MatmulCost cost = MatmulCost::From(100, seconds, 500, 0.01);
    EXPECT_NEAR(cost.launch_seconds, 0.005, 1e-12) << seconds;
    EXPECT_NEAR(cost.SecondsOf(500), 0.01, 1e-12) << seconds;
  }
  // Shorter than its depth allows.
  const MatmulCost cost = MatmulCost::From(100, 0.0001, 500, 0.01);
  EXPECT_NEAR(cost.launch_seconds, 0, 1e-12);
  EXPECT_NEAR(cost.SecondsOf(500), 0.01, 1e-12);
}

TEST(MatmulCost, FindsTheDepthThatComesNearest) {
  MatmulCost cost;
  cost.launch_seconds = 1e-3;
  cost.seconds_per_depth = 1e-5;
  EXPECT_EQ(cost.DepthFor(0.002, 4096), 100);
  EXPECT_EQ(cost.DepthFor(0.002004, 4096), 100);
  EXPECT_EQ(cost.DepthFor(0.002006, 4096), 101);
  EXPECT_EQ(cost.DepthFor(10, 4096), 4096) << "the deepest";
  EXPECT_EQ(cost.DepthFor(0.001, 4096), 0) << "a launch alone";
  EXPECT_EQ(cost.DepthFor(-1, 4096), 0) << "time that others took too much of";
}

void MultipliesOn(Device& device) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<MatmulWork> work, MatmulWork::Create(&device, stream.get()));
  EXPECT_GT(work->cost().seconds_per_depth, 0);
  EXPECT_GE(work->cost().launch_seconds, 0);
  // Longer than one product, and shorter than any.
  EXPECT_THAT(work->Enqueue(work->cost().SecondsOf(5000)), IsOk());
  EXPECT_THAT(work->Enqueue(work->cost().launch_seconds / 2), IsOk());
  EXPECT_THAT(stream->Synchronize(Soon()), IsOk());
}

TEST(MatmulWork, MultipliesOnTheHost) { MultipliesOn(*HostDevice()); }

TEST(MatmulWork, MultipliesOnAGpu) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  ASSERT_THAT(device, IsOk());
  MultipliesOn(**device);
}

TEST(MatmulWork, TellsWhyTheStreamFailed) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, HostDevice()->CreateStream("compute"));
  ASSERT_THAT(stream->Enqueue([] { return absl::DataLossError("lost"); }), IsOk());
  EXPECT_THAT(MatmulWork::Create(HostDevice(), stream.get()), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(MeasureReducerOverhead, CutsAsManyBucketsFromParametersOfNoSize) {
  BucketPlan plan;
  for (const size_t parameters : {1, 1, 2, 1}) {
    BucketPlan::Bucket bucket;
    bucket.slots.resize(parameters);
    plan.buckets.push_back(bucket);
    plan.locations.resize(plan.locations.size() + parameters);
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ReducerOverhead overhead, MeasureReducerOverhead(plan, 1));
  EXPECT_EQ(overhead.buckets, 4);
  EXPECT_GE(overhead.step_seconds, overhead.mark_ready_seconds);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

TEST(ProcessMemory, CountsWhatWasTouched) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer keeps memory that was given back";
  constexpr size_t kBytes = 64 << 20;
  ASSERT_THAT(ResetPeakMemory(), IsOk());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory before, MeasureProcessMemory());
  EXPECT_GT(before.resident_bytes, 0);
  EXPECT_LT(before.peak_resident_bytes, before.resident_bytes + (16 << 20)) << "the peak was not reset";
  {
    std::vector<char> memory(kBytes);
    // A compiler may leave out writes that nobody reads, but not these.
    for (size_t i = 0; i < kBytes; i += 4096) *static_cast<volatile char*>(&memory[i]) = 1;
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory with, MeasureProcessMemory());
    EXPECT_GE(with.resident_bytes, before.resident_bytes + static_cast<int64_t>(kBytes * 9 / 10));
    EXPECT_GE(with.proportional_bytes, before.proportional_bytes + static_cast<int64_t>(kBytes * 9 / 10));
  }
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const ProcessMemory after, MeasureProcessMemory());
  EXPECT_GE(after.peak_resident_bytes, before.resident_bytes + static_cast<int64_t>(kBytes * 9 / 10));
}

OverlapReport TwoRounds() {
  OverlapReport found;
  found.buckets = {{1024, 4, {{0.011, 0.002, 0.001}, {0.009, 0.002, 0.001}}},
                   {4096, 6, {{0.020, 0.004, 0.003}, {0.020, 0.004, 0.003}}}};
  found.rounds = {{0.020, 0.006, 0.030, 0.024, 0.020}, {0.020, 0.006, 0.029, 0.020, 0.020}};
  found.overhead = {2, 0.000005, 0.000011};
  found.memory = {4 << 20, 8 << 20, 2 << 20};
  return found;
}

TEST(Show, PrintsTheTables) {
  const std::string path = ::testing::TempDir() + "/report";
  FILE* const output = std::fopen(path.c_str(), "w");
  Report report(output);
  Show(TwoRounds(), &report);
  std::fclose(output);
  std::ifstream printed(path);
  EXPECT_EQ(
      std::string(std::istreambuf_iterator<char>(printed), {}),
      "#\n"
      "# bucket          size  parameters         ready  all-reduce alone  of it, processor time\n"
      "#                  (B)                      (ms)              (ms)                   (ms)\n"
      "       0          1024           4        10.000             2.000                  1.000\n"
      "       1          4096           6        20.000             4.000                  3.000\n"
      "#\n"
      "# of a step               median (ms)          quartiles\n"
      "compute only                   20.000    20.000 - 20.000\n"
      "communication only              6.000      6.000 - 6.000\n"
      "without overlap                29.500    29.250 - 29.750\n"
      "with overlap                   22.000    21.000 - 23.000\n"
      "exposed communication           2.000      1.000 - 3.000\n"
      "ideal                          20.000    20.000 - 20.000\n"
      "#\n"
      "# round by round               median          quartiles\n"
      "with overlap / ideal            1.100      1.050 - 1.150\n"
      "without / with overlap          1.350      1.300 - 1.400\n"
      "#\n"
      "# the reducer itself, with nothing to move: 0.500 us a parameter in mark_ready, 1.100 us with begin and end; a "
      "step 11.0 us, 0.05 % of one with overlap\n"
      "# memory of a rank for gradients and reducer: 2.0 MiB (0.50 copies of the gradients) when shared pages are "
      "divided by those who share them; 8.0 MiB (2.00 copies of the gradients) resident at most, with what it sees of "
      "other ranks'\n");
}

TEST(Show, KeepsEveryRoundInMilliseconds) {
  Report report(nullptr);
  Show(TwoRounds(), &report);
  const Json rows = report.json()["rows"];
  ASSERT_EQ(rows.size(), 12);
  EXPECT_EQ(rows[1]["bytes"], 4096);
  EXPECT_EQ(rows[1]["parameters"], 6);
  EXPECT_THAT(rows[1]["ready_ms"].get<double>(), DoubleEq(20));
  EXPECT_EQ(rows[4]["name"], "without overlap");
  ASSERT_EQ(rows[4]["rounds_ms"].size(), 2);
  EXPECT_THAT(rows[4]["rounds_ms"][0].get<double>(), DoubleEq(30));
  EXPECT_EQ(rows[5]["name"], "with overlap");
  EXPECT_THAT(rows[5]["rounds_ms"][0].get<double>(), DoubleEq(24));
  EXPECT_THAT(rows[10]["step_us"].get<double>(), DoubleEq(11));
  EXPECT_EQ(rows[11]["proportional_bytes"], 2 << 20);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

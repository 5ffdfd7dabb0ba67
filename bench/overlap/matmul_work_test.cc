// Costs in numbers; work on a host stream everywhere, and on a GPU where there is one. No time is expected.

#include "bench/overlap/matmul_work.h"

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_device.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/host_device.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

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
  EXPECT_THAT(stream->Synchronize(Deadline::After(std::chrono::seconds(20))), IsOk());
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

}  // namespace
}  // namespace bench
}  // namespace lockstep

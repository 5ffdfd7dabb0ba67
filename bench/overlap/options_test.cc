#include "bench/overlap/options.h"

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "base/device.h"
#include "base/status_matchers.h"
#include "bench/overlap/computation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using ::testing::HasSubstr;

auto Refusal(const std::string& message) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)); }

TEST(OverlapOptions, AreGoodByDefault) { EXPECT_THAT(CheckOptions(OverlapOptions()), IsOk()); }

TEST(OverlapOptions, NeedRanksThatHaveSomethingToAverage) {
  OverlapOptions options;
  options.ranks = 1;
  EXPECT_THAT(CheckOptions(options), Refusal("1 ranks have nothing to average"));
}

TEST(OverlapOptions, NeedAKnownModel) {
  OverlapOptions options;
  options.model = "vgg";
  EXPECT_THAT(CheckOptions(options), Refusal("no model 'vgg'"));
}

TEST(OverlapOptions, ComputeForAFiniteTime) {
  OverlapOptions options;
  for (const double ms : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    options.compute_ms = ms;
    EXPECT_THAT(CheckOptions(options), Refusal("a step cannot compute for")) << ms;
  }
}

TEST(OverlapOptions, HaveALinkOnlyWhereSomethingGoesOverIt) {
  OverlapOptions options;
  options.link = "1gbit";
  EXPECT_THAT(CheckOptions(options), IsOk());
  options.transport = "shm";
  EXPECT_THAT(CheckOptions(options), Refusal("shared memory and libfabric have no link"));
}

TEST(OverlapOptions, ThrottleByARate) {
  OverlapOptions options;
  options.throttle = true;
  EXPECT_THAT(CheckOptions(options), Refusal("--throttle goes with --link"));
  options.link = "fast";
  EXPECT_THAT(CheckOptions(options), Refusal("fast"));
  for (const char* link : {"1gbit", "none"}) {
    options.link = link;
    EXPECT_THAT(CheckOptions(options), IsOk()) << link;
  }
  EXPECT_THAT(LinkBytesPerSecond("1gbit"), IsOkAndHolds(125e6));
  EXPECT_THAT(LinkBytesPerSecond("none"), IsOkAndHolds(0));
}

TEST(OverlapOptions, SleepOnlyWhereComputationIsElsewhere) {
  OverlapOptions options;
  options.wake_per_bucket = true;
  EXPECT_THAT(CheckOptions(options), Refusal("who computes does not sleep"));
  options.compute = ComputeKind::kAway;
  EXPECT_THAT(CheckOptions(options), IsOk());
}

TEST(OverlapOptions, HaveGradientsOnAGpuComputedByAStream) {
  OverlapOptions options;
  options.device = DeviceKind::kCuda;
  EXPECT_THAT(CheckOptions(options), Refusal("--device cuda goes with --compute matmul or stream"));
  for (const ComputeKind kind : {ComputeKind::kStream, ComputeKind::kMatmul}) {
    options.compute = kind;
    EXPECT_THAT(CheckOptions(options), IsOk()) << Name(kind);
  }
}

TEST(OverlapOptions, MeasureSomething) {
  OverlapOptions options;
  options.rounds = 0;
  EXPECT_THAT(CheckOptions(options), Refusal("a round at least"));
  options = OverlapOptions();
  options.steps = -1;
  EXPECT_THAT(CheckOptions(options), Refusal("a step or a millisecond"));
}

TEST(ParseDeviceKind, ReadsWhatNameWrites) {
  for (const DeviceKind kind : {DeviceKind::kHost, DeviceKind::kCuda}) {
    EXPECT_THAT(ParseDeviceKind(lockstep::Name(kind)), IsOkAndHolds(kind));
  }
  EXPECT_THAT(ParseDeviceKind("tpu"), Refusal("host, cuda"));
}

TEST(ParseAverage, ReadsWhatNameWrites) {
  for (const Average average : {Average::kBefore, Average::kAfter, Average::kInCollective}) {
    EXPECT_THAT(ParseAverage(bench::Name(average)), IsOkAndHolds(average));
  }
  EXPECT_THAT(ParseAverage("none"), Refusal("before, after, in_collective"));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

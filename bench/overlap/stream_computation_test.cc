// On a host stream everywhere, and on a GPU where there is one. Times are lower bounds only.

#include "bench/overlap/stream_computation.h"

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/cuda_device.h"
#include "base/deadline.h"
#include "base/device.h"
#include "base/host_device.h"
#include "base/status_matchers.h"
#include "bench/overlap/occupy.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

Deadline Soon() { return Deadline::After(std::chrono::seconds(20)); }

// Two parameters, of which the first one's gradient costs nothing.
ComputePlan SmallPlan() {
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
      MakeStreamComputation(SmallPlan(), stream.get(), ClockWork(stream.get()));
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
      MakeStreamComputation(SmallPlan(), stream.get(), ClockWork(stream.get()));
  computation->Begin();
  computation->Forward();
  EXPECT_THAT(computation->Finish(), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

// A kernel that writes where there is no memory takes the device from this process. Alone in its binary: nothing of
// CUDA works after it.

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/cuda/cuda_api.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/cuda/cuda_graph_testing.h"
#include "base/device/cuda/cuda_guard.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

Deadline Soon() { return Deadline::AfterMs(20000); }

TEST(CudaLostDeviceTest, WaitsEndWithCudasErrorAndNothingHangs) {
  const absl::StatusOr<Device*> device = CudaDevice(0);
  if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
  LOCKSTEP_ASSERT_OK(device);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto stream, (*device)->CreateStream("lost"));
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto event, (*device)->CreateEvent());
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(void* const memory, (*device)->Allocate(1));
  const auto captured = std::make_shared<int>(0);
  {
    const CudaGuard guard(TheCudaApi(), 0);
    LOCKSTEP_ASSERT_OK(guard.status());
    int* const nowhere = reinterpret_cast<int*>(16);
    ASSERT_EQ(internal::LaunchWriteInt(nowhere, 1, stream->native()), kCudaSuccess);
  }
  // Whether CUDA takes these depends on how far the kernel has got.
  const bool recorded = stream->Record(event.get()).ok();
  const bool enqueued = stream->Enqueue([captured] { return absl::OkStatus(); }).ok();

  const auto is_lost = StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(stream->Synchronize(Soon()), is_lost);
  EXPECT_THAT(stream->status(), is_lost);
  EXPECT_THAT(event->Synchronize(Soon()), is_lost) << "recorded: " << recorded;
  EXPECT_TRUE(event->Query());
  EXPECT_THAT((*device)->Allocate(1), is_lost);
  EXPECT_THAT((*device)->CreateStream("after"), is_lost);
  stream.reset();
  event.reset();
  (*device)->Free(memory);
  EXPECT_EQ(captured.use_count(), 1) << "enqueued: " << enqueued;
}

}  // namespace
}  // namespace lockstep

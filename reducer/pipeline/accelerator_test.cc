#include "reducer/pipeline/accelerator.h"

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "comm/host/self_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fake_device.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class OtherDevice : public FakeDevice {
 public:
  DeviceId id() const override { return {static_cast<DeviceKind>(77), 3}; }
};

class OtherCommunicator : public SelfCommunicator {
 public:
  OtherCommunicator() : SelfCommunicator(/*flight_records=*/16) {}
  Device* accelerator() const override { return &device_; }

 private:
  mutable OtherDevice device_;
};

TEST(FindAccelerator, RefusesADeviceThatThereAreNoKernelsFor) {
  const OtherCommunicator communicator;
  EXPECT_THAT(FindAccelerator(communicator, communicator.device()),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("no kernels for gradients on unknown device:3")));
  EXPECT_THAT(FindAccelerator(communicator, {DeviceKind::kCuda, 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made for unknown device:3")));
  EXPECT_THAT(FindAccelerator(communicator, DeviceId()), IsOk());
}

}  // namespace
}  // namespace lockstep

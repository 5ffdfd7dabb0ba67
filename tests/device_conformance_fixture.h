// What the parts of tests/device_conformance.h stand on: a device from a factory.

#ifndef TESTS_DEVICE_CONFORMANCE_FIXTURE_H_
#define TESTS_DEVICE_CONFORMANCE_FIXTURE_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"

namespace lockstep {

// The device is borrowed: it outlives the tests.
using DeviceFactory = std::function<absl::StatusOr<Device*>()>;

class DeviceConformance : public testing::TestWithParam<DeviceFactory> {
 public:
  // A hang becomes a failure.
  static Deadline Soon() { return Deadline::AfterMs(20000); }

 protected:
  void SetUp() override {
    absl::StatusOr<Device*> device = GetParam()();
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
    LOCKSTEP_ASSERT_OK(device);
    device_ = *device;
  }

  std::unique_ptr<Stream> NewStream() {
    absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream("conformance");
    EXPECT_THAT(stream, IsOk());
    return *std::move(stream);
  }

  std::unique_ptr<Event> NewEvent() {
    absl::StatusOr<std::unique_ptr<Event>> event = device_->CreateEvent();
    EXPECT_THAT(event, IsOk());
    return *std::move(event);
  }

  // The gate must outlive the stream's work.
  static void EnqueueGate(Stream* stream, Gate* gate) {
    EXPECT_THAT(stream->Enqueue([gate] { return gate->Await(Soon()); }), IsOk());
  }

  template <typename Function>
  static void EnqueueOk(Stream* stream, Function function) {
    EXPECT_THAT(stream->Enqueue([function = std::move(function)]() mutable {
      function();
      return absl::OkStatus();
    }),
                IsOk());
  }

  static void EnqueueError(Stream* stream, absl::Status error) {
    EXPECT_THAT(stream->Enqueue([error] { return error; }), IsOk());
  }

  Device* device_ = nullptr;
};

}  // namespace lockstep

#endif  // TESTS_DEVICE_CONFORMANCE_FIXTURE_H_

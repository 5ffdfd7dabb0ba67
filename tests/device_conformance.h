// What every Device promises, as tests (device_conformance.cc). A device's own test links //tests:device_conformance and supplies a
// factory:
//
//   INSTANTIATE_TEST_SUITE_P(Host, DeviceConformance, testing::Values(DeviceFactory([] { return HostDevice(); })));
//
// A factory that answers UNAVAILABLE skips the suite (there is no such device here). Any other error fails it.
//
// CUDA may run the host work of all streams on one thread. So work in a stream waits only at gates that the test opens, and for work in
// another stream only through events.

#ifndef TESTS_DEVICE_CONFORMANCE_H_
#define TESTS_DEVICE_CONFORMANCE_H_

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
    stream_ = NewStream();
    event_ = NewEvent();
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
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
};

}  // namespace lockstep

#endif  // TESTS_DEVICE_CONFORMANCE_H_

#include "comm/device/device_watchdog.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

Deadline Soon() { return Deadline::After(std::chrono::seconds(60)); }

// Tells of its first call, and each call waits at a gate.
class SlowClient final : public DeviceWatchdog::Client {
 public:
  void Watch() override {
    called_.Open();
    EXPECT_THAT(goes_on_.Await(Soon()), IsOk());
    ++done_;
  }
  absl::Status AwaitCall() { return called_.Await(Soon()); }
  void GoOn() { goes_on_.Open(); }
  int done() const { return done_; }

 private:
  Gate called_;
  Gate goes_on_;
  std::atomic<int> done_{0};
};

TEST(DeviceWatchdog, ACallHoldsUpOnlyWhoRemovesItsClient) {
  DeviceWatchdog& watchdog = *DeviceWatchdog::Get();
  SlowClient slow, other, stays;
  watchdog.Add(&slow);
  ASSERT_THAT(slow.AwaitCall(), IsOk());
  // These return while the call is under way.
  watchdog.Add(&other);
  watchdog.Remove(&other);
  watchdog.Add(&stays);
  EXPECT_EQ(slow.done(), 0);
  EXPECT_EQ(other.done(), 0);
  std::thread remover([&] {
    watchdog.Remove(&slow);
    EXPECT_GE(slow.done(), 1);
  });
  slow.GoOn();
  remover.join();
  // The same thread goes on with who is left.
  EXPECT_THAT(stays.AwaitCall(), IsOk());
  stays.GoOn();
  watchdog.Remove(&stays);
  EXPECT_GE(stays.done(), 1);
}

TEST(DeviceWatchdog, BeginsAnewWhenItsLastClientIsGone) {
  DeviceWatchdog& watchdog = *DeviceWatchdog::Get();
  for (int i = 0; i < 3; ++i) {
    SlowClient client;
    client.GoOn();
    watchdog.Add(&client);
    EXPECT_THAT(client.AwaitCall(), IsOk());
    watchdog.Remove(&client);
    EXPECT_GE(client.done(), 1);
  }
}

}  // namespace
}  // namespace lockstep

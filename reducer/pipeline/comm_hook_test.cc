#include "reducer/pipeline/comm_hook.h"

#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr std::chrono::seconds kLong{20};

Deadline Soon() { return Deadline::After(kLong); }

// A bucket that is given to hooks on a stream.
class HookTest : public ::testing::Test {
 protected:
  // EXPECTs that the hook is issued, and that the stream gets past it: if a bucket fails, those behind it must still be told.
  void RunHook(CommHook& hook) {
    LOCKSTEP_EXPECT_OK(hook.Issue(bucket_, *stream_));
    LOCKSTEP_EXPECT_OK(stream_->Synchronize(Soon()));
  }

  HookBucket bucket_;
  std::unique_ptr<Stream> stream_ = HostDevice()->CreateStream("test").value();
};

using NoopHook = HookTest;
using HostCompletedHook = HookTest;

TEST_F(NoopHook, TouchesNothing) {
  const std::unique_ptr<CommHook> hook = MakeNoopHook();
  EXPECT_EQ(hook->name(), "noop");
  EXPECT_FALSE(hook->communicates());
  float data[] = {1, 2};
  bucket_.data = data;
  bucket_.elements = 2;
  RunHook(*hook);
  EXPECT_THAT(data, ElementsAre(1, 2));
  EXPECT_FALSE(bucket_.result.has_value());
  LOCKSTEP_EXPECT_OK(bucket_.status);
}

// The stream stands until another thread completes the hook, and what follows sees what that thread wrote.
TEST_F(HostCompletedHook, HoldsTheStreamUntilItIsCompleted) {
  Gate started;
  std::shared_ptr<HookCompletion> completion;
  const auto hook = MakeHostCompletedHook("mine", kLong, [&](HookBucket&, std::shared_ptr<HookCompletion> theirs) {
    completion = std::move(theirs);
    started.Open();
  });
  EXPECT_EQ(hook->name(), "mine");
  EXPECT_TRUE(hook->communicates());
  std::vector<int> order;
  const auto note = [&order](int number) {
    return [&order, number] {
      order.push_back(number);
      return absl::OkStatus();
    };
  };
  LOCKSTEP_EXPECT_OK(stream_->Enqueue(note(1)));
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket_, *stream_));
  LOCKSTEP_EXPECT_OK(stream_->Enqueue(note(3)));
  LOCKSTEP_ASSERT_OK(started.Await(Soon()));
  EXPECT_THAT(order, ElementsAre(1));
  std::thread([&] {
    order.push_back(2);
    completion->Done(absl::OkStatus());
  }).join();
  LOCKSTEP_EXPECT_OK(stream_->Synchronize(Soon()));
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  LOCKSTEP_EXPECT_OK(bucket_.status);
}

TEST_F(HostCompletedHook, TheFirstCompletionCounts) {
  for (const bool fails_first : {true, false}) {
    const absl::Status first = fails_first ? absl::DataLossError("first") : absl::OkStatus();
    const absl::Status second = fails_first ? absl::OkStatus() : absl::DataLossError("second");
    const auto hook = MakeHostCompletedHook("mine", kLong, [&](HookBucket&, auto completion) {
      completion->Done(first);
      completion->Done(second);
    });
    bucket_ = HookBucket();
    RunHook(*hook);
    EXPECT_EQ(bucket_.status, first);
  }
}

TEST_F(HostCompletedHook, ThatNeverCompletesFailsInTimeAndACompletionAfterwardsDoesNothing) {
  std::shared_ptr<HookCompletion> late;
  auto hook = MakeHostCompletedHook(
      "mine", std::chrono::milliseconds(1),
      [&](HookBucket&, std::shared_ptr<HookCompletion> completion) { late = std::move(completion); });
  RunHook(*hook);
  EXPECT_THAT(bucket_.status, StatusIs(absl::StatusCode::kDeadlineExceeded, "it did not complete in time"));
  // It outlives everything.
  stream_.reset();
  hook.reset();
  late->Done(absl::OkStatus());
  EXPECT_THAT(bucket_.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(HostCompletedHook, ThatDropsItsCompletionFailsInTimeToo) {
  RunHook(*MakeHostCompletedHook("mine", std::chrono::milliseconds(1), [](HookBucket&, auto) {}));
  EXPECT_THAT(bucket_.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace lockstep

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

std::unique_ptr<Stream> NewStream() { return HostDevice()->CreateStream("test").value(); }

TEST(NoopHook, TouchesNothing) {
  const std::unique_ptr<CommHook> hook = MakeNoopHook();
  EXPECT_EQ(hook->name(), "noop");
  EXPECT_FALSE(hook->communicates());
  float data[] = {1, 2};
  HookBucket bucket;
  bucket.data = data;
  bucket.elements = 2;
  const std::unique_ptr<Stream> stream = NewStream();
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
  LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
  EXPECT_THAT(data, ElementsAre(1, 2));
  EXPECT_FALSE(bucket.result.has_value());
  LOCKSTEP_EXPECT_OK(bucket.status);
}

TEST(HookBucket, KnowsTheLastOne) {
  HookBucket bucket;
  bucket.count = 2;
  EXPECT_FALSE(bucket.is_last());
  bucket.index = 1;
  EXPECT_TRUE(bucket.is_last());
}

TEST(HostCompletedHook, HasANameAndCommunicates) {
  const auto hook = MakeHostCompletedHook("mine", kLong, [](HookBucket&, auto) {});
  EXPECT_EQ(hook->name(), "mine");
  EXPECT_TRUE(hook->communicates());
}

// The stream stands until another thread completes the hook, and what follows sees what that thread wrote.
TEST(HostCompletedHook, HoldsTheStreamUntilItIsCompleted) {
  Gate started;
  std::shared_ptr<HookCompletion> completion;
  const auto hook = MakeHostCompletedHook("mine", kLong, [&](HookBucket&, std::shared_ptr<HookCompletion> theirs) {
    completion = std::move(theirs);
    started.Open();
  });
  std::vector<int> order;
  HookBucket bucket;
  const std::unique_ptr<Stream> stream = NewStream();
  LOCKSTEP_EXPECT_OK(stream->Enqueue([&] {
    order.push_back(1);
    return absl::OkStatus();
  }));
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
  LOCKSTEP_EXPECT_OK(stream->Enqueue([&] {
    order.push_back(3);
    return absl::OkStatus();
  }));
  LOCKSTEP_ASSERT_OK(started.Await(Soon()));
  EXPECT_THAT(order, ElementsAre(1));
  std::thread([&] {
    order.push_back(2);
    completion->Done(absl::OkStatus());
  }).join();
  LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  LOCKSTEP_EXPECT_OK(bucket.status);
}

TEST(HostCompletedHook, MayCompleteBeforeItReturns) {
  const auto hook = MakeHostCompletedHook("mine", kLong, [](HookBucket& bucket, auto completion) {
    *static_cast<float*>(bucket.data) *= 2;
    completion->Done(absl::OkStatus());
  });
  float value = 3;
  HookBucket bucket;
  bucket.data = &value;
  const std::unique_ptr<Stream> stream = NewStream();
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
  LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
  EXPECT_EQ(value, 6);
}

TEST(HostCompletedHook, TheFirstCompletionCounts) {
  for (const bool fails_first : {true, false}) {
    const absl::Status first = fails_first ? absl::DataLossError("first") : absl::OkStatus();
    const absl::Status second = fails_first ? absl::OkStatus() : absl::DataLossError("second");
    const auto hook = MakeHostCompletedHook("mine", kLong, [&](HookBucket&, auto completion) {
      completion->Done(first);
      completion->Done(second);
    });
    HookBucket bucket;
    const std::unique_ptr<Stream> stream = NewStream();
    LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
    // The bucket has failed, and not the stream: those behind it must still be told.
    LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
    EXPECT_EQ(bucket.status, first);
  }
}

TEST(HostCompletedHook, ThatNeverCompletesFailsInTimeAndACompletionAfterwardsDoesNothing) {
  std::shared_ptr<HookCompletion> late;
  auto hook = MakeHostCompletedHook(
      "mine", std::chrono::milliseconds(1),
      [&](HookBucket&, std::shared_ptr<HookCompletion> completion) { late = std::move(completion); });
  HookBucket bucket;
  std::unique_ptr<Stream> stream = NewStream();
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
  LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
  EXPECT_THAT(bucket.status, StatusIs(absl::StatusCode::kDeadlineExceeded, "it did not complete in time"));
  // It outlives everything.
  stream.reset();
  hook.reset();
  late->Done(absl::OkStatus());
  EXPECT_THAT(bucket.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(HostCompletedHook, ThatDropsItsCompletionFailsInTimeToo) {
  const auto hook = MakeHostCompletedHook("mine", std::chrono::milliseconds(1), [](HookBucket&, auto) {});
  HookBucket bucket;
  const std::unique_ptr<Stream> stream = NewStream();
  LOCKSTEP_EXPECT_OK(hook->Issue(bucket, *stream));
  LOCKSTEP_EXPECT_OK(stream->Synchronize(Soon()));
  EXPECT_THAT(bucket.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace lockstep

#include "comm/work.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/ref.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// Completed by the test.
class TestState : public WorkState {
 public:
  absl::Status Await(Deadline deadline) override {
    MutexLock lock(&mu_);
    ++awaits_;
    while (!done() && changed_.WaitUntil(&mu_, deadline)) {
    }
    return absl::OkStatus();
  }
  void Finish(absl::Status status) {
    MutexLock lock(&mu_);
    Complete(std::move(status));
    changed_.SignalAll();
  }
  int awaits() {
    MutexLock lock(&mu_);
    return awaits_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int awaits_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(Work, GivingUpWaitingLeavesTheOperationAlone) {
  auto state = MakeRef<TestState>();
  Work work(state);
  EXPECT_FALSE(work.done());
  EXPECT_THAT(work.Wait(Deadline::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("stay borrowed")));
  EXPECT_THAT(work.Wait(Deadline::AfterMs(1)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_FALSE(work.done());
  state->Finish(absl::OkStatus());
  EXPECT_TRUE(work.done());
  EXPECT_THAT(work.Wait(Deadline::Now()), IsOk());
}

TEST(Work, EveryCopyTellsTheResultAsOftenAsAsked) {
  auto state = MakeRef<TestState>();
  Work work(state);
  Work copy = work;
  state->Finish(absl::AbortedError("rank 3 died"));
  state = nullptr;
  for (Work* const handle : {&work, &copy, &work}) {
    EXPECT_THAT(handle->Wait(Deadline::Now()), StatusIs(absl::StatusCode::kAborted, "rank 3 died"));
  }
}

TEST(Work, NobodyWaitsForWhatIsDone) {
  auto state = MakeRef<TestState>();
  state->Finish(absl::OkStatus());
  EXPECT_THAT(Work(state).Wait(Deadline::Infinite()), IsOk());
  EXPECT_EQ(state->awaits(), 0);
}

// Under ThreadSanitizer this shows that done() publishes what the collective wrote.
TEST(Work, WhatWasWrittenIsVisibleToWhoeverSeesItDone) {
  auto state = MakeRef<TestState>();
  std::string output;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&, work = Work(state)]() mutable {
      while (!work.done()) std::this_thread::yield();
      EXPECT_EQ(output, "written");
      EXPECT_THAT(work.Wait(Deadline::Now()), IsOk());
    });
  }
  readers.emplace_back([&, work = Work(state)]() mutable {
    EXPECT_THAT(work.Wait(Deadline::AfterMs(30'000)), IsOk());
    EXPECT_EQ(output, "written");
  });
  output = "written";
  state->Finish(absl::OkStatus());
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace lockstep

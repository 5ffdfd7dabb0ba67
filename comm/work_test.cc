#include "comm/work.h"

#include <memory>
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

// Completed by the test.
class TestState : public WorkState {
 public:
  void Await(Deadline deadline) override {
    MutexLock lock(&mu_);
    ++awaits_;
    while (!done() && changed_.WaitUntil(&mu_, deadline)) {
    }
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

// Callbacks come in the order in which they were registered; after the end they come at once.
TEST(Work, CallbacksComeInOrder) {
  auto state = MakeRef<TestState>();
  const Work work(state);
  std::vector<int> called;
  Mutex mu;
  CondVar changed;
  for (int i = 0; i < 5; ++i) {
    work.OnComplete([&, i](const absl::Status& status) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, "rank 3 died"));
      MutexLock lock(&mu);
      called.push_back(i);
      changed.SignalAll();
    });
  }
  EXPECT_TRUE(called.empty());
  state->Finish(absl::AbortedError("rank 3 died"));
  {
    MutexLock lock(&mu);
    while (called.size() < 5) ASSERT_TRUE(changed.WaitUntil(&mu, Deadline::AfterMs(30'000)));
  }
  EXPECT_THAT(called, ::testing::ElementsAre(0, 1, 2, 3, 4));
  bool at_once = false;
  work.OnComplete([&](const absl::Status&) { at_once = true; });
  EXPECT_TRUE(at_once);
}

// What a callback holds goes after it was called; of a work that is never completed, with its state.
TEST(Work, CallbacksAreDestroyed) {
  auto held = std::make_shared<Mutex>();
  {
    const Work work(MakeRef<TestState>());
    work.OnComplete([held](const absl::Status&) { ADD_FAILURE() << "nothing is done"; });
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace lockstep

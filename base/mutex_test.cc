#include "base/mutex.h"

#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/thread.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int kLongMs = 20000;

struct Flag {
  Mutex mu;
  CondVar changed;
  bool set ABSL_GUARDED_BY(mu) = false;
  bool waiter_is_in ABSL_GUARDED_BY(mu) = false;
};

void Set(Flag* flag, bool Flag::*what) {
  MutexLock lock(&flag->mu);
  flag->*what = true;
  flag->changed.SignalAll();
}

bool AwaitFlag(Flag* flag, Deadline deadline) {
  MutexLock lock(&flag->mu);
  flag->waiter_is_in = true;
  flag->changed.SignalAll();
  while (!flag->set) {
    if (!flag->changed.WaitUntil(&flag->mu, deadline)) return flag->set;
  }
  return true;
}

// Once this has returned, the waiter is inside WaitUntil: it set its mark and let go of the mutex only there.
bool AwaitWaiter(Flag* flag) {
  MutexLock lock(&flag->mu);
  while (!flag->waiter_is_in) {
    if (!flag->changed.WaitUntil(&flag->mu, Deadline::AfterMs(kLongMs))) return false;
  }
  return true;
}

bool CouldLock(Mutex* mutex) {
  if (!mutex->TryLock()) return false;
  mutex->Unlock();
  return true;
}

bool AnotherThreadCouldLock(Mutex* mutex) {
  bool could = false;
  std::thread([&] { could = CouldLock(mutex); }).join();
  return could;
}

TEST(MutexTest, TryLockFailsWhileAnotherThreadHoldsIt) {
  Mutex mu;
  {
    MutexLock lock(&mu);
    EXPECT_FALSE(AnotherThreadCouldLock(&mu));
  }
  EXPECT_TRUE(AnotherThreadCouldLock(&mu));
}

TEST(MutexTest, LockExcludes) {
  Mutex mu;
  int count = 0;
  const auto add = [&] {
    for (int i = 0; i < 10000; ++i) {
      MutexLock lock(&mu);
      ++count;
    }
  };
  std::thread other(add);
  add();
  other.join();
  EXPECT_EQ(count, 20000);
}

TEST(CondVarTest, WaitReturnsFalseOnceTheDeadlineHasPassed) {
  Flag flag;
  EXPECT_FALSE(AwaitFlag(&flag, Deadline::Now()));
  EXPECT_FALSE(AwaitFlag(&flag, Deadline::AfterMs(0)));
  const Deadline deadline = Deadline::AfterMs(5);
  EXPECT_FALSE(AwaitFlag(&flag, deadline));
  EXPECT_TRUE(deadline.passed());
}

TEST(CondVarTest, MutexIsHeldAfterATimeout) {
  Flag flag;
  MutexLock lock(&flag.mu);
  EXPECT_FALSE(flag.changed.WaitUntil(&flag.mu, Deadline::Now()));
  EXPECT_FALSE(AnotherThreadCouldLock(&flag.mu));
}

TEST(CondVarTest, SignalEndsAWaitWithAndWithoutDeadline) {
  for (Deadline deadline : {Deadline::AfterMs(kLongMs), Deadline::Infinite()}) {
    Flag flag;
    bool seen = false;
    Thread waiter("waiter", [&] { seen = AwaitFlag(&flag, deadline); });
    ASSERT_TRUE(AwaitWaiter(&flag));
    Set(&flag, &Flag::set);
    waiter.Join();
    EXPECT_TRUE(seen);
  }
}

// glibc's pthread_cond_destroy waits for waiters to leave. The child of a fork has none of the parent's threads, yet
// the memory says that they wait.
TEST(CondVarTest, ForkedChildDestroysOneThatTheParentWaitsOn) {
  auto flag = std::make_unique<Flag>();
  Thread waiter("waiter", [&] { AwaitFlag(flag.get(), Deadline::AfterMs(kLongMs)); });
  ASSERT_TRUE(AwaitWaiter(flag.get()));
  const auto destroy = [&] {
    flag.reset();
    return 0;
  };
  EXPECT_EQ(RunInForkedChild(destroy, Deadline::AfterMs(kLongMs)), 0);
  Set(flag.get(), &Flag::set);
  waiter.Join();
}

}  // namespace
}  // namespace lockstep

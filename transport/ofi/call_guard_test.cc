#include "transport/ofi/call_guard.h"

#include <chrono>
#include <utility>

#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gate.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kTick{1};

Deadline Soon() { return Deadline::AfterMs(20'000); }

TEST(OfiCallGuard, TellsOfACallThatDoesNotReturn) {
  Gate stuck;
  OfiCallGuard::Options options;
  options.tick = kTick;
  options.on_stuck = [&stuck] { stuck.Open(); };
  OfiCallGuard guard("shm", std::move(options));
  { const OfiCallGuard::Call returns(&guard); }
  const OfiCallGuard::Call call(&guard);
  EXPECT_THAT(stuck.Await(Soon()), IsOk());
}

TEST(OfiCallGuard, SaysNothingBetweenCalls) {
  bool told = false;
  OfiCallGuard::Options options;
  options.tick = kTick;
  options.on_stuck = [&told] { told = true; };
  {
    OfiCallGuard guard("shm", std::move(options));
    { const OfiCallGuard::Call returns(&guard); }
    // As long as the guard of a call that does not return takes.
    Gate stuck;
    OfiCallGuard::Options others;
    others.tick = 3 * kTick;
    others.on_stuck = [&stuck] { stuck.Open(); };
    OfiCallGuard other("shm", std::move(others));
    const OfiCallGuard::Call call(&other);
    EXPECT_THAT(stuck.Await(Soon()), IsOk());
  }
  EXPECT_FALSE(told);
}

TEST(OfiCallGuardDeathTest, EndsTheProcessAndSaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        OfiCallGuard::Options options;
        options.tick = kTick;
        OfiCallGuard guard("shm", std::move(options));
        const OfiCallGuard::Call call(&guard);
        Gate never;
        (void)never.Await(Soon());
      },
      "provider shm has not returned from a call");
}

TEST(OfiCallGuard, WithoutAGuardACallIsNotWatched) { const OfiCallGuard::Call call(nullptr); }

}  // namespace
}  // namespace lockstep

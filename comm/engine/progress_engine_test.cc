#include "comm/engine/progress_engine.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/rank.h"
#include "gtest/gtest.h"
#include "transport/transport.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

Deadline Soon() { return Deadline::AfterMs(30'000); }

// Progress() carries out what the test has scheduled, on whatever thread drives.
class FakeTransport : public Transport {
 public:
  // From any thread, like an arriving message.
  void Arrive(std::function<void()> completion) {
    MutexLock lock(&mu_);
    arrived_.push_back(std::move(completion));
    changed_.SignalAll();
  }

  bool Progress() override {
    std::function<void()> completion;
    {
      MutexLock lock(&mu_);
      drivers_.insert(std::this_thread::get_id());
      ++polls_;
      if (arrived_.empty()) return false;
      completion = std::move(arrived_.front());
      arrived_.pop_front();
    }
    completion();
    return true;
  }
  void WaitForEvent(Deadline deadline) override {
    MutexLock lock(&mu_);
    ++sleepers_;
    if (++sleeps_ == 1) polls_before_first_sleep_ = polls_;
    changed_.SignalAll();
    while (!woken_ && arrived_.empty() && changed_.WaitUntil(&mu_, deadline)) {
    }
    woken_ = false;
    --sleepers_;
  }
  void Wake() override {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.SignalAll();
  }

  bool AwaitSleeper() {
    MutexLock lock(&mu_);
    const Deadline deadline = Soon();
    while (sleepers_ == 0) {
      if (!changed_.WaitUntil(&mu_, deadline)) return false;
    }
    return true;
  }
  std::set<std::thread::id> drivers() {
    MutexLock lock(&mu_);
    return drivers_;
  }
  int polls() {
    MutexLock lock(&mu_);
    return polls_;
  }
  int sleeps() {
    MutexLock lock(&mu_);
    return sleeps_;
  }
  // Noted when that sleep began: a sleeper looks up now and then, whenever the test comes to ask.
  int polls_before_first_sleep() {
    MutexLock lock(&mu_);
    return polls_before_first_sleep_;
  }

  const char* name() const override { return "fake"; }
  Rank rank() const override { return Rank(0); }
  int size() const override { return 2; }
  std::string DescribePeer(Rank) const override { return "fake"; }
  void Send(Rank, ChannelId, const Envelope&, const void*, size_t, Operation*) override {}
  void Receive(Rank, ChannelId, const Envelope&, const Sink&, Operation*) override {}
  void AbortChannel(ChannelId, const absl::Status&) override {}
  void Abort(const absl::Status&) override {}
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  PeerCounters counters(Rank) const override { return {}; }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> arrived_ ABSL_GUARDED_BY(mu_);
  std::set<std::thread::id> drivers_ ABSL_GUARDED_BY(mu_);
  int polls_ ABSL_GUARDED_BY(mu_) = 0;
  int sleepers_ ABSL_GUARDED_BY(mu_) = 0;
  int sleeps_ ABSL_GUARDED_BY(mu_) = 0;
  int polls_before_first_sleep_ ABSL_GUARDED_BY(mu_) = 0;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
};

// What operations have sent leaves it after so many more polls.
class LaggingTransport : public FakeTransport {
 public:
  void Lag(int polls) { left_ = polls; }
  bool lagging() const { return left_ > 0; }

  bool Progress() override {
    const bool moved = FakeTransport::Progress();
    if (left_ > 0) --left_;
    return moved;
  }
  bool sends_may_lag() const override { return true; }
  bool sends_lag() const override { return left_ > 0; }

 private:
  std::atomic<int> left_{0};
};

// Polls something that the transport knows nothing of, and acts once its deadline has passed.
class FakeClient : public ProgressEngine::Client {
 public:
  FakeClient(ProgressEngine* engine, std::function<bool()> poll, std::function<void()> act = nullptr)
      : engine_(engine), poll_(std::move(poll)), act_(std::move(act)) {
    MutexLock lock(engine_->mutex());
    engine_->AddClient(this);
  }
  ~FakeClient() override {
    MutexLock lock(engine_->mutex());
    engine_->RemoveClient(this);
  }
  void Set(Deadline deadline) {
    MutexLock lock(engine_->mutex());
    deadline_ = deadline;
    engine_->NoteDeadline(deadline);
  }
  bool Poll() override { return poll_ && poll_(); }
  Deadline CheckDeadlines() override {
    if (!deadline_.passed()) return deadline_;
    deadline_ = Deadline::Infinite();
    act_();
    return deadline_;
  }

 private:
  ProgressEngine* const engine_;
  const std::function<bool()> poll_;
  const std::function<void()> act_;
  Deadline deadline_ = Deadline::Infinite();  // under the engine's mutex
};

// Operations that nobody need wait for, until it goes out of scope.
class Background {
 public:
  explicit Background(ProgressEngine* engine) : engine_(engine) {
    MutexLock lock(engine_->mutex());
    engine_->AddBackgroundWork();
  }
  ~Background() {
    MutexLock lock(engine_->mutex());
    engine_->RemoveBackgroundWork();
    engine_->Notify();
  }

 private:
  ProgressEngine* const engine_;
};

bool AwaitTrue(const std::atomic<bool>& flag) {
  const Deadline deadline = Soon();
  while (!flag && !deadline.passed()) std::this_thread::yield();
  return flag;
}

TEST(ProgressEngine, TheCallerCarriesOutItsOwnOperation) {
  for (const nanoseconds spin : {nanoseconds::zero(), nanoseconds(milliseconds(1))}) {
    FakeTransport transport;
    ProgressEngine engine(&transport, spin);
    std::atomic<bool> done{false};
    std::thread peer([&] {
      ASSERT_TRUE(transport.AwaitSleeper());
      transport.Arrive([] {});
      transport.Arrive([&] { done = true; });
    });
    engine.Drive(done, Soon(), /*spin=*/true);
    peer.join();
    EXPECT_TRUE(done);
    EXPECT_EQ(transport.drivers(), std::set<std::thread::id>{std::this_thread::get_id()});
  }
}

// Its caller may not come back for a long time, and another rank waits for it.
TEST(ProgressEngine, WhatHasNotLeftWhenItsOperationIsDoneIsSeenToByTheThread) {
  const auto left = [](const LaggingTransport& transport) {
    const Deadline deadline = Soon();
    while (transport.lagging() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
    return !transport.lagging();
  };
  LaggingTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  {
    std::atomic<bool> done{false};
    transport.Arrive([&] { done = true; });
    transport.Lag(6);
    engine.Drive(done, Soon(), /*spin=*/true);
    EXPECT_TRUE(transport.lagging());
  }
  EXPECT_TRUE(left(transport));
  // Of an operation that nobody waited for, which was done as it began; and of an abort.
  {
    MutexLock lock(engine.mutex());
    engine.AddBackgroundWork();
    transport.Lag(3);
    engine.RemoveBackgroundWork();
  }
  EXPECT_TRUE(left(transport));
  {
    MutexLock lock(engine.mutex());
    transport.Lag(3);
    engine.Notify();
  }
  EXPECT_TRUE(left(transport));
  // The caller may have come back before: it does the work then, and another time is like the first.
  for (int i = 0; i < 3; ++i) {
    transport.Lag(5);
    std::atomic<bool> done{false};
    transport.Arrive([&] { done = true; });
    engine.Drive(done, Soon(), /*spin=*/true);
    EXPECT_TRUE(done);
  }
  EXPECT_TRUE(left(transport));
}

// Where ranks outnumber cores, an eager caller gives his core away before he sleeps, anew whenever something has moved; what
// comes meanwhile is done without a sleep. Whoever is not eager sleeps at once.
TEST(ProgressEngine, WhoeverWouldPollGivesHisCoreAwayWhereRanksOutnumberCores) {
  const auto polls_before_a_sleep = [](bool eager, int moves) {
    FakeTransport transport;
    ProgressEngine engine(&transport, nanoseconds::zero());
    std::atomic<bool> done{false};
    for (int i = 0; i < moves; ++i) transport.Arrive([] {});
    std::thread driver([&] { engine.Drive(done, Soon(), eager); });
    EXPECT_TRUE(transport.AwaitSleeper());
    const int polls = transport.polls_before_first_sleep() - moves;
    transport.Arrive([&] { done = true; });
    driver.join();
    return polls;
  };
  EXPECT_EQ(polls_before_a_sleep(/*eager=*/false, 0), 1);
  const int eager = polls_before_a_sleep(/*eager=*/true, 0);
  EXPECT_GT(eager, 10);
  EXPECT_EQ(polls_before_a_sleep(/*eager=*/true, 3), eager);
}

TEST(ProgressEngine, NothingIsDrivenForWhatIsDone) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  engine.Drive(std::atomic<bool>(true), Soon(), true);
  EXPECT_EQ(transport.polls(), 0);
}

TEST(ProgressEngine, ACallerComesBackAtItsDeadline) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  const std::atomic<bool> never{false};
  const auto begin = Deadline::Clock::now();
  engine.Drive(never, Deadline::AfterMs(30), true);
  EXPECT_GE(Deadline::Clock::now() - begin, milliseconds(30));
  const int polls = transport.polls();
  engine.Drive(never, Deadline::Now(), true);
  EXPECT_EQ(transport.polls(), polls);
}

// The second caller's deadline passes while the first one drives.
TEST(ProgressEngine, ACallerWithoutTheProgressLockComesBackAtItsDeadlineToo) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  const std::atomic<bool> never{false};
  std::thread driver([&] { engine.Drive(done, Soon(), false); });
  ASSERT_TRUE(transport.AwaitSleeper());
  engine.Drive(never, Deadline::AfterMs(20), false);
  EXPECT_FALSE(done);
  transport.Arrive([&] { done = true; });
  driver.join();
}

// Whoever drives completes the others' operations; the last one left takes over when a driver leaves.
TEST(ProgressEngine, TheProgressLockGoesFromCallerToCaller) {
  constexpr int kCallers = 5;
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done[kCallers] = {};
  std::vector<std::thread> callers;
  for (auto& flag : done) callers.emplace_back([&engine, &flag] { engine.Drive(flag, Soon(), false); });
  for (int i = 0; i < kCallers; ++i) {
    ASSERT_TRUE(transport.AwaitSleeper());
    // Completions run with the engine's mutex held.
    transport.Arrive([&, i]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      done[i] = true;
      engine.Notify();
    });
    callers[i].join();
  }
}

TEST(ProgressEngine, ItsOwnThreadDrivesWhatNobodyWaitsFor) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  {
    Background background(&engine);
    ASSERT_TRUE(transport.AwaitSleeper());
    transport.Arrive([&] { done = true; });
    EXPECT_TRUE(AwaitTrue(done));
  }
  EXPECT_EQ(transport.drivers().count(std::this_thread::get_id()), 0);
  // And once more, with the thread that is there already.
  done = false;
  Background background(&engine);
  transport.Arrive([&] { done = true; });
  EXPECT_TRUE(AwaitTrue(done));
  EXPECT_EQ(transport.drivers().size(), 1);
}

TEST(ProgressEngine, ItsOwnThreadHandsOverToACallerAndTakesBack) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  Background background(&engine);
  ASSERT_TRUE(transport.AwaitSleeper());
  std::atomic<bool> done{false};
  std::thread::id driver;
  std::thread caller([&] { engine.Drive(done, Soon(), false); });
  const std::thread::id caller_id = caller.get_id();
  // The thread may still carry out what arrives before the caller has come.
  const Deadline deadline = Soon();
  while (transport.drivers().count(caller_id) == 0 && !deadline.passed()) std::this_thread::yield();
  EXPECT_EQ(transport.drivers().count(caller_id), 1);
  transport.Arrive([&] {
    driver = std::this_thread::get_id();
    done = true;
  });
  caller.join();
  EXPECT_EQ(driver, caller_id);

  std::atomic<bool> again{false};
  transport.Arrive([&] {
    driver = std::this_thread::get_id();
    again = true;
  });
  EXPECT_TRUE(AwaitTrue(again));
  EXPECT_NE(driver, caller_id);
}

// Nobody sleeps while a client moves something, and all clients are asked after each look at the transport.
TEST(ProgressEngine, ClientsArePolledAsLongAsTheyMove) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  int polls = 0;
  const FakeClient mover(&engine, [&] {
    EXPECT_EQ(transport.polls(), ++polls);
    done = polls == 100;
    return true;
  });
  int others_polls = 0;
  const FakeClient other(&engine, [&] {
    ++others_polls;
    return false;
  });
  engine.Drive(done, Soon(), false);
  EXPECT_EQ(polls, 100);
  EXPECT_EQ(others_polls, 100);
  EXPECT_EQ(transport.sleeps(), 0);
}

// What wakes the driver may be for a client: it is asked before the driver sleeps again, and whatever the transport says.
TEST(ProgressEngine, ClientsArePolledAfterASleepAndBesideATransportThatMoves) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  std::atomic<bool> there{false};
  const FakeClient client(&engine, [&] {
    if (there) done = true;
    return there.load();
  });
  std::thread driver([&] { engine.Drive(done, Soon(), false); });
  ASSERT_TRUE(transport.AwaitSleeper());
  there = true;
  transport.Wake();
  driver.join();
  EXPECT_TRUE(done);

  done = there = false;
  std::function<void()> busy = [&] {
    there = transport.polls() > 20;
    if (!done) transport.Arrive(busy);
  };
  transport.Arrive(busy);
  engine.Drive(done, Soon(), false);
  EXPECT_TRUE(done);
}

// A transport that is never idle leaves no pause in which to look at the clock, and yet somebody must.
TEST(ProgressEngine, DeadlinesAreLookedAfterWhileDataMoves) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  std::function<void()> busy = [&] {
    if (!done) transport.Arrive(busy);
  };
  transport.Arrive(busy);
  FakeClient client(&engine, nullptr, [&] { done = true; });
  client.Set(Deadline::AfterMs(5));
  engine.Drive(done, Soon(), false);
  EXPECT_TRUE(done);
}

// What completes an operation need not come from the transport: an abort from elsewhere.
TEST(ProgressEngine, ANotificationEndsTheSleepOfTheDriverAndTheWaitOfTheOthers) {
  FakeTransport transport;
  ProgressEngine engine(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  std::thread callers[2];
  for (std::thread& caller : callers) caller = std::thread([&] { engine.Drive(done, Soon(), false); });
  ASSERT_TRUE(transport.AwaitSleeper());
  {
    MutexLock lock(engine.mutex());
    done = true;
    engine.Notify();
  }
  for (std::thread& caller : callers) caller.join();
}

// As when a communicator is destroyed under somebody who waits for its work.
TEST(ProgressEngine, ItsDestructorLetsAWaiterLeave) {
  FakeTransport transport;
  auto engine = std::make_unique<ProgressEngine>(&transport, nanoseconds::zero());
  std::atomic<bool> done{false};
  std::thread caller([&] { engine->Drive(done, Soon(), false); });
  ASSERT_TRUE(transport.AwaitSleeper());
  {
    MutexLock lock(engine->mutex());
    done = true;
    engine->Notify();
  }
  engine.reset();
  caller.join();
}

TEST(ProgressEngine, ItsDestructorEndsTheThreadWhereverItIs) {
  FakeTransport transport;
  { ProgressEngine engine(&transport, nanoseconds::zero()); }  // never started
  {
    ProgressEngine engine(&transport, nanoseconds::zero());
    { Background background(&engine); }
  }  // with nothing to do
  ProgressEngine* const engine = new ProgressEngine(&transport, nanoseconds::zero());
  {
    MutexLock lock(engine->mutex());
    engine->AddBackgroundWork();
  }
  ASSERT_TRUE(transport.AwaitSleeper());
  delete engine;  // asleep in the transport
}

}  // namespace
}  // namespace lockstep

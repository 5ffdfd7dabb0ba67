#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/fork_testing.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/hindrances.h"

namespace lockstep {
namespace {

constexpr int kNoFilter = 77;  // an exit status: this system has none

TEST(ThreadTest, BlocksEverySignalFromItsFirstMoment) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  sigset_t inside;
  Thread("masked", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).Join();
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE, SIGUSR1, SIGALRM, SIGPROF, SIGRTMIN}) {
    EXPECT_EQ(sigismember(&inside, signal), 1) << strsignal(signal);
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << "the creator's mask changed: " << signal;
  }
}

std::string OwnName() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

TEST(ThreadTest, HasTheFirstFifteenCharactersOfItsName) {
  std::string name;
  Thread("tcp-progress", [&] { name = OwnName(); }).Join();
  EXPECT_EQ(name, "tcp-progress");
  Thread("a-name-that-is-too-long", [&] { name = OwnName(); }).Join();
  EXPECT_EQ(name, "a-name-that-is-");
}

TEST(ThreadTest, KnowsOurThreadsFromTheProgrammes) {
  bool ours = false;
  Thread("ours", [&] { ours = Thread::IsOurs(); }).Join();
  EXPECT_TRUE(ours);
  bool the_programmes = true;
  std::thread([&] { the_programmes = Thread::IsOurs(); }).join();
  EXPECT_FALSE(the_programmes);
  EXPECT_FALSE(Thread::IsOurs());
}

TEST(ThreadTest, DestructorAndAssignmentJoin) {
  std::atomic<int> ended{0};
  {
    Thread thread("first", [&] { ++ended; });
    thread = Thread("second", [&] { ++ended; });
    EXPECT_GE(ended, 1) << "assignment waited for the thread it replaced";
  }
  EXPECT_EQ(ended, 2);
}

TEST(ThreadTest, MovedFromAndDefaultThreadsAreNotJoinable) {
  Thread none;
  EXPECT_FALSE(none.joinable());
  none.Join();
  Thread thread("moved", [] {});
  Thread target(std::move(thread));
  EXPECT_FALSE(thread.joinable());  // NOLINT: what a moved-from thread is
  EXPECT_TRUE(target.joinable());
  target.Join();
  EXPECT_FALSE(target.joinable());
  target.Join();
}

// As where pids.max or RLIMIT_NPROC is reached.
TEST(ThreadTest, StartSaysWhatLimitsThreads) {
  const int in_child = RunInForkedChild(
      [] {
        for (const int call : {SYS_clone3, SYS_clone}) {
          if (!Refuse({call, EAGAIN}).ok()) return kNoFilter;
        }
        Thread thread;
        const absl::Status status = thread.Start("lockstep-test", [] {});
        if (!absl::IsResourceExhausted(status) || thread.joinable()) return 2;
        const auto says = [&](absl::string_view text) { return absl::StrContains(status.message(), text); };
        return says("start the thread lockstep-test: Resource temporarily unavailable: ") &&
                       says("RLIMIT_NPROC allows ")
                   ? 0
                   : 3;
      },
      Deadline::AfterMs(20'000));
  if (in_child == kNoFilter) GTEST_SKIP() << "no filters of system calls here";
  EXPECT_EQ(in_child, 0);
  Thread thread;
  bool ran = false;
  ASSERT_THAT(thread.Start("lockstep-test", [&] { ran = true; }), IsOk());
  thread.Join();
  EXPECT_TRUE(ran);
}

TEST(ThreadTest, ForkedChildForgetsTheParentsThread) {
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  Thread thread("parents", [&] {
    started = true;
    while (!stop) std::this_thread::yield();
  });
  // Whoever forks while a thread begins may copy a lock of the sanitizers' that it holds.
  while (!started) std::this_thread::yield();
  const auto join = [&] {
    thread.Join();
    const bool forgotten = !thread.joinable();
    // The object is as good as new.
    bool ran = false;
    thread = Thread("childs", [&] { ran = true; });
    thread.Join();
    return forgotten && ran ? 0 : 1;
  };
#if defined(__SANITIZE_THREAD__)
  (void)join;  // ThreadSanitizer refuses threads in the child of a process with several
#else
  EXPECT_EQ(RunInForkedChild(join, Deadline::AfterMs(20000)), 0);
#endif
  stop = true;
  thread.Join();
}

}  // namespace
}  // namespace lockstep

// SignalInbox in a process with a thread that blocks no signals, as drivers have them.

#include "launch/signal_inbox.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/deadline.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// Open to every signal while it lives.
class Bystander {
 public:
  ~Bystander() {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void Stand() {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [this] { return done_; });
  }

  std::mutex mu_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_{[this] { Stand(); }};
};

absl::optional<SignalInbox::Received> Next(SignalInbox* inbox) {
  const Deadline deadline = Deadline::AfterMs(60'000);
  while (!deadline.passed()) {
    if (absl::optional<SignalInbox::Received> received = inbox->Take()) return received;
    pollfd readable = {inbox->fd(), POLLIN, 0};
    poll(&readable, 1, deadline.remaining_ms());
  }
  return absl::nullopt;
}

TEST(SignalInbox, GetsWhatReachesAnotherThread) {
  const Bystander bystander;
  // Whatever the test was started with.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) signal(number, SIG_DFL);
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SignalInbox> inbox, SignalInbox::Open());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    ASSERT_EQ(kill(getpid(), signal), 0) << signal;
    const absl::optional<SignalInbox::Received> received = Next(inbox.get());
    ASSERT_TRUE(received.has_value()) << signal;
    EXPECT_EQ(received->signal, signal);
    EXPECT_EQ(received->sender, getpid());
  }
}

TEST(SignalInbox, NamesEveryChildThatEnds) {
  const Bystander bystander;
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SignalInbox> inbox, SignalInbox::Open());
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    ASSERT_GT(child, 0);
    const absl::optional<SignalInbox::Received> received = Next(inbox.get());
    ASSERT_TRUE(received.has_value()) << "child " << i;
    EXPECT_EQ(received->signal, SIGCHLD);
    EXPECT_EQ(received->sender, child);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

int handled = 0;

TEST(SignalInbox, LeavesEverythingAsItWas) {
  signal(SIGUSR1, [](int) { ++handled; });
  {
    LOCKSTEP_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SignalInbox> inbox, SignalInbox::Open());
    EXPECT_THAT(SignalInbox::Open().status(), StatusIs(absl::StatusCode::kFailedPrecondition));
    raise(SIGUSR1);
    EXPECT_TRUE(Next(inbox.get()).has_value());
  }
  EXPECT_EQ(handled, 0);
  raise(SIGUSR1);
  EXPECT_EQ(handled, 1);
  EXPECT_THAT(SignalInbox::Open().status(), IsOk());
  signal(SIGUSR1, SIG_DFL);
}

}  // namespace
}  // namespace lockstep

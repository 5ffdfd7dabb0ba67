// A rank that is stopped in the middle of a set-up, where nothing but the ranks of its host waits for it: the others are told as they would
// be in a step. Method: three processes, one of which stops itself as it is about to connect to another one or, over TCP, where the first
// call connects, as it is about to listen.

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"
#include "base/status_matchers.h"
#include "comm/world/world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/process_worlds.h"
#include "tests/processes.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;
constexpr int kVictim = 1;

Deadline Soon() { return Deadline::AfterMs(40'000); }

// The family of the address at which this process stops itself, and how many such connections come before: to rank 0's coordinator.
std::atomic<int> stops_at{AF_UNSPEC}, before{0};
std::atomic<bool> stops_at_listen{false};

// Arguments: the address of the store, the transport. Says how making the world went.
LOCKSTEP_RANK_FUNCTION(MakesAWorld) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto store, ConnectToTestStore(self.arguments()[0]));
  WorldOptions options = ProcessWorldOptions(self, store.get());
  options.transport = self.arguments()[1];
  options.setup_timeout = std::chrono::minutes(10);
  options.peer_timeout = std::chrono::milliseconds(2000);
  if (self.rank() == kVictim) {
    stops_at_listen = options.transport == "tcp";
    if (options.transport != "tcp") stops_at = options.transport == "ofi" ? AF_INET : AF_UNIX;
    before = options.transport == "ofi";
  }
  return self.Send(World::Create(options).status().ToString());
}

class WorldSetupFaultTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WorldSetupFaultTest, ARankThatIsStoppedInTheMiddleIsUnresponsive) {
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto store, ServeTestStore());
  ProcessGroup::Options options;
  options.size = kRanks;
  options.arguments = {store->address().ToString(), GetParam()};
  LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto group, ProcessGroup::Start("MakesAWorld", options));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(group->Receive(rank, Soon()),
                IsOkAndHolds(AllOf(
                    StartsWith("ABORTED: "), HasSubstr(absl::StrCat("rank ", kVictim, " (host ")),
                    HasSubstr(absl::StrCat("pid ", group->pid(kVictim), ") is unresponsive: no heartbeat for 2 s")))));
  }
}

INSTANTIATE_TEST_SUITE_P(Over, WorldSetupFaultTest, ::testing::Values("auto", "shm", "tcp", "ofi"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep

// In place of the C library's.
extern "C" __attribute__((visibility("default"))) int connect(int socket, const sockaddr* address, socklen_t bytes) {
  if (address->sa_family == lockstep::stops_at && --lockstep::before < 0) (void)raise(SIGSTOP);
  return static_cast<int>(syscall(SYS_connect, socket, address, bytes));
}

extern "C" __attribute__((visibility("default"))) int listen(int socket, int backlog) {
  if (lockstep::stops_at_listen) (void)raise(SIGSTOP);
  return static_cast<int>(syscall(SYS_listen, socket, backlog));
}

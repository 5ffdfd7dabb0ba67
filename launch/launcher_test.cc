#include "launch/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/env_testing.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/log_testing.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/spawn.h"
#include "transport/net/socket.h"
#include "transport/secure/credentials.h"
#include "transport/secure/secret.h"
#include "transport/store/store_tcp_client.h"
#include "transport/store/store_tcp_server.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A file in memory that collects output.
class Capture {
 public:
  Capture() : fd_(memfd_create("capture", MFD_CLOEXEC)) {}
  ~Capture() { close(fd_); }

  int fd() const { return fd_; }
  std::string text() const {
    std::string text(lseek(fd_, 0, SEEK_END), '\0');
    EXPECT_EQ(pread(fd_, &text[0], text.size(), 0), text.size());
    return text;
  }
  std::vector<std::string> lines() const { return absl::StrSplit(text(), '\n', absl::SkipEmpty()); }

 private:
  const int fd_;
};

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    options_.stdout_fd = out_.fd();
    options_.stderr_fd = err_.fd();
    options_.store_url = "file:///nowhere";
    char folder[] = "/tmp/launcher_test.XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~LauncherTest() override {
    // Each test, whatever it did, leaves no child behind, not even a zombie.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(folder_.c_str());
  }

  // A job that starts.
  LaunchResult Run(int world_size, const std::string& script) {
    options_.world_size = world_size;
    options_.command = {"/bin/sh", "-c", script};
    return Launch(options_).value();
  }

  std::string File(const std::string& name) {
    files_.push_back(absl::StrCat(folder_, "/", name));
    return files_.back();
  }
  static void RemoveReports(const LaunchResult& result) {
    const std::string& last = result.others.back();
    EXPECT_EQ(system(absl::StrCat("rm -r ", last.substr(last.rfind(' ') + 1)).c_str()), 0);
  }
  std::string Fifo() {
    const std::string fifo = File("fifo");
    EXPECT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    return fifo;
  }

  Capture out_;
  Capture err_;
  LaunchOptions options_;
  std::string folder_;
  std::vector<std::string> files_;
};

TEST_F(LauncherTest, TellsEachRankItsPlace) {
  options_.job_id = "job 7";
  const LaunchResult result =
      Run(2,
          "echo $LOCKSTEP_RANK/$LOCKSTEP_WORLD_SIZE $LOCKSTEP_LOCAL_RANK/$LOCKSTEP_LOCAL_WORLD_SIZE "
          "$LOCKSTEP_STORE $LOCKSTEP_JOB_ID");
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.report, "");
  EXPECT_FALSE(result.first_failed.has_value());
  EXPECT_THAT(out_.lines(),
              UnorderedElementsAre("[0] 0/2 0/2 file:///nowhere job 7", "[1] 1/2 1/2 file:///nowhere job 7"));
}

TEST_F(LauncherTest, TellsEachRankItsPlaceAsTorchrunDoes) {
  Run(2, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT");
  std::vector<std::string> lines = out_.lines();
  ASSERT_EQ(lines.size(), 2);
  std::sort(lines.begin(), lines.end());
  EXPECT_THAT(lines[0], ContainsRegex("^.0. 0/2 0/2 127.0.0.1 [1-9][0-9]*$"));
  EXPECT_THAT(lines[1], ContainsRegex("^.1. 1/2 1/2 127.0.0.1 [1-9][0-9]*$"));
  EXPECT_EQ(lines[0].substr(lines[0].rfind(' ')), lines[1].substr(lines[1].rfind(' ')));
}

TEST_F(LauncherTest, TakesItsPortsFromLockstepPorts) {
  const int first = LocalAddress(ListenAnywhere(*SocketAddress::Parse("127.0.0.1:0"))->get())->port();
  const int last = std::min(first + 20, 65535);
  const ScopedVariable ports("LOCKSTEP_PORTS", absl::StrCat(first, "-", last));
  options_.store_url.clear();
  Run(1, "echo ${LOCKSTEP_STORE##*:}; echo $MASTER_PORT");
  const std::vector<std::string> lines = out_.lines();
  ASSERT_EQ(lines.size(), 2);
  for (const std::string& line : lines) {
    const int port = std::atoi(line.c_str() + line.find(' '));
    EXPECT_TRUE(port >= first && port <= last) << line << " is not in " << first << "-" << last;
  }
}

// One rank per core and one more: each has one thread. Alone, a rank has all cores.
TEST_F(LauncherTest, SharesTheUsableCoresAmongTheRanksUnlessTheUserSetsTheThreads) {
  ScopedVariable omp("OMP_NUM_THREADS", nullptr), mkl("MKL_NUM_THREADS", nullptr);
  SetLogLevel(LogLevel::kInfo);
  LogLines log;
  const int cores = UsableCores();
  const std::string show = "echo omp $OMP_NUM_THREADS";
  Run(1, show);
  EXPECT_EQ(out_.lines().back(), absl::StrCat("[0] omp ", cores));
  Run(cores + 1, show);
  EXPECT_THAT(out_.lines().back(), testing::EndsWith("] omp 1"));
  options_.threads = 3;
  Run(1, show);
  EXPECT_EQ(out_.lines().back(), "[0] omp 3");
  options_.threads = 0;
  mkl.Set("5");
  Run(1, show);
  EXPECT_EQ(out_.lines().back(), "[0] omp");
  omp.Set("7");
  Run(1, show);
  EXPECT_EQ(out_.lines().back(), "[0] omp 7");
  SetLogLevel(LogLevel::kWarning);
  EXPECT_THAT(log.lines(),
              ElementsAre(HasSubstr(absl::StrCat("threads per rank: ", cores, " (OMP_NUM_THREADS), since 1 rank has ")),
                          HasSubstr("threads per rank: 1 (OMP_NUM_THREADS), since"),
                          HasSubstr("threads per rank: 3 (--threads)"),
                          HasSubstr("threads per rank: as MKL_NUM_THREADS=5 says"),
                          HasSubstr("threads per rank: as OMP_NUM_THREADS=7 says")));
}

TEST_F(LauncherTest, ServesAStoreUnlessOneIsGiven) {
  Run(1, "echo $LOCKSTEP_STORE_SERVED");
  options_.store_url.clear();
  Run(2, "echo $LOCKSTEP_STORE $LOCKSTEP_STORE_SERVED");
  const std::vector<std::string> lines = out_.lines();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0], "[0] 0");
  EXPECT_THAT(lines[1], ContainsRegex("^.[01]. tcp://127.0.0.1:[0-9]+ 1$"));
  EXPECT_EQ(lines[1].substr(4), lines[2].substr(4));
}

// The file of its secret holds what the store's server of this job wants, for every rank and as long as it runs; its contents are
// neither in the environment nor in an argument.
TEST_F(LauncherTest, GivesEachRankTheFileOfASecretThatIsTheJobsOwn) {
  options_.store_url.clear();
  const std::string script =
      "secret=$(cat $LOCKSTEP_SECRET_FILE); echo $secret\n"
      "stat -L -c 'mode %a of %U' $LOCKSTEP_SECRET_FILE\n"
      "grep -q $secret /proc/self/environ /proc/$$/cmdline /proc/$PPID/environ /proc/$PPID/cmdline && echo found\n"
      "echo x 2> /dev/null > $LOCKSTEP_SECRET_FILE && echo written\n"
      "echo fds: $(ls -l /proc/self/fd | grep -c lockstep-secret)\n"
      "exit 0";
  EXPECT_EQ(Run(2, script).exit_status, 0);
  EXPECT_EQ(Run(1, script).exit_status, 0);
  std::map<std::string, std::vector<std::string>> secrets;
  for (const std::string& line : out_.lines()) {
    const std::string text = line.substr(4);
    if (text.size() == 64) {
      EXPECT_THAT(Secret::FromHex(text), IsOk());
      secrets[text].push_back(line.substr(0, 3));
    } else {
      EXPECT_THAT(text, testing::AnyOf(HasSubstr("mode 600 of "), "fds: 0"));
    }
  }
  EXPECT_THAT(secrets, UnorderedElementsAre(testing::Pair(testing::_, UnorderedElementsAre("[0]", "[1]")),
                                            testing::Pair(testing::_, UnorderedElementsAre("[0]"))));
}

TEST_F(LauncherTest, ItsStoreServesWhoHasTheSecretAndNobodyElse) {
  options_.store_url.clear();
  const std::string fifo = Fifo(), done = File("done");
  ASSERT_EQ(mkfifo(done.c_str(), 0600), 0);
  absl::Status with, without;
  std::thread client([&] {
    std::string store, path;
    std::ifstream(fifo) >> store >> path;
    const HostPort server = *ParseHostPort(store.substr(6));
    Credentials credentials = {SecurityLevel::kAuthenticate, Secret::ReadFile(path).value(), path};
    with = TcpStoreClient::Connect(server, credentials, Deadline::AfterMs(20'000)).status();
    credentials.secret = Secret::Draw().value();
    without = TcpStoreClient::Connect(server, credentials, Deadline::AfterMs(20'000)).status();
    std::ofstream(done) << "done\n";
  });
  Run(1, absl::StrCat("echo $LOCKSTEP_STORE $LOCKSTEP_SECRET_FILE > ", fifo, "; read line < ", done));
  client.join();
  EXPECT_THAT(with, IsOk());
  EXPECT_THAT(without, StatusIs(absl::StatusCode::kPermissionDenied));
}

TEST_F(LauncherTest, MasterPortStaysFreeForAServerOfRankZero) {
  const std::string fifo = Fifo(), done = File("done");
  ASSERT_EQ(mkfifo(done.c_str(), 0600), 0);
  std::thread others([&] {
    uint16_t port = 0;
    std::ifstream(fifo) >> port;
    for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
      const SocketAddress address = SocketAddress::Parse(absl::StrCat(host, ":", port)).value();
      const UniqueFd taker(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(bind(taker.get(), address.get(), address.length()), -1) << "a process that does not set SO_REUSEADDR";
      EXPECT_EQ(errno, EADDRINUSE);
      EXPECT_THAT(Connect(address, Deadline::AfterMs(20'000)), StatusIs(absl::StatusCode::kUnavailable)) << "refused";
      TcpStoreServer::Options options;
      options.credentials.level = SecurityLevel::kNone;
      LOCKSTEP_ASSERT_OK_AND_ASSIGN(const auto server, TcpStoreServer::Create(address, options));
      const HostPort place = {host, port};
      EXPECT_THAT(TcpStoreClient::Connect(place, options.credentials, Deadline::AfterMs(20'000)), IsOk());
    }
    std::ofstream(done) << "done\n";
  });
  Run(1, absl::StrCat("echo $MASTER_PORT > ", fifo, "; read line < ", done));
  others.join();
}

TEST_F(LauncherTest, AnotherUserCannotReadTheSecret) {
  if (system("setpriv --reuid=65534 --regid=65534 --clear-groups true 2> /dev/null") != 0) {
    GTEST_SKIP() << "this process cannot be another user, or there is no setpriv";
  }
  options_.world_size = 1;
  options_.command = {"/bin/sh", "-c",
                      "cat $LOCKSTEP_SECRET_FILE > /dev/null && echo own; "
                      "setpriv --reuid=65534 --regid=65534 --clear-groups cat $LOCKSTEP_SECRET_FILE; echo $?"};
  ASSERT_THAT(Launch(options_), IsOk());
  EXPECT_THAT(out_.lines(), ElementsAre("[0] own", "[0] 1"));
  EXPECT_THAT(err_.text(), HasSubstr("Permission denied"));
}

TEST_F(LauncherTest, LeavesTheUsersFileAndLevelAsTheyAre) {
  const std::string file = File("secret");
  std::ofstream(file) << std::string(64, 'a') << "\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  options_.store_url.clear();
  ScopedVariable variable("LOCKSTEP_SECRET_FILE", file);
  Run(1, "echo $LOCKSTEP_SECRET_FILE");
  // Also in a job that a rank starts.
  Run(1, "launch/lockstep-run -n 1 --foreground 0 /bin/sh -c 'echo inner $LOCKSTEP_SECRET_FILE'");
  variable.Set(nullptr);
  const ScopedVariable level("LOCKSTEP_SECURITY", "none");
  Run(1, "echo none: $LOCKSTEP_SECRET_FILE");
  EXPECT_THAT(out_.lines(), ElementsAre("[0] " + file, "[0] inner " + file, "[0] none:"));
}

// Who starts the inner launcher is a rank of the outer job. Where the store is given, it may be the outer job's, which wants its secret.
TEST_F(LauncherTest, AJobThatARankOfAnotherStartsHasASecretOfItsOwn) {
  options_.store_url.clear();
  const std::string inner = "launch/lockstep-run -n 1 --foreground 0 ", show = "/bin/sh -c 'cat $LOCKSTEP_SECRET_FILE'";
  EXPECT_EQ(Run(1, absl::StrCat(show, "; ", inner, show, "; ", inner, "--store $LOCKSTEP_STORE ", show)).exit_status,
            0);
  const std::vector<std::string> secrets = out_.lines();
  ASSERT_EQ(secrets.size(), 3) << err_.text();
  EXPECT_NE(secrets[1], secrets[0]);
  EXPECT_EQ(secrets[2], secrets[0]);
}

TEST_F(LauncherTest, AFileOrLevelThatCannotBeIsAnErrorBeforeAnythingStarts) {
  const std::string file = File("secret");
  std::ofstream(file) << std::string(64, 'a') << "\n";
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  options_.store_url.clear();
  options_.command = {"/bin/true"};
  ScopedVariable variable("LOCKSTEP_SECRET_FILE", file);
  EXPECT_THAT(Launch(options_),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::AllOf(HasSubstr(file), HasSubstr("0644"))));
  variable.Set("/no/such/file");
  EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/no/such/file")));
  variable.Set(nullptr);
  const ScopedVariable level("LOCKSTEP_SECURITY", "much");
  EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOCKSTEP_SECURITY")));
}

TEST_F(LauncherTest, DrawsAnotherJobIdForEachJob) {
  Run(1, "echo $LOCKSTEP_JOB_ID");
  Run(1, "echo $LOCKSTEP_JOB_ID");
  const std::vector<std::string> lines = out_.lines();
  ASSERT_EQ(lines.size(), 2);
  EXPECT_GE(lines[0].size(), 12);
  EXPECT_NE(lines[0], lines[1]);
}

TEST_F(LauncherTest, ArgumentsArriveUntouched) {
  options_.command = {"/bin/sh", "-c", "printf '<%s>' \"$@\"", "name", "a b", "", "--help", "$x"};
  ASSERT_THAT(Launch(options_), IsOk());
  EXPECT_EQ(out_.text(), "[0] <a b><><--help><$x>\n");
}

TEST_F(LauncherTest, KeepsStdoutAndStderrApartAndCompletesTheLastLine) {
  Run(1, "echo out; echo err >&2; printf 'no newline'; printf 'none here' >&2");
  EXPECT_EQ(out_.text(), "[0] out\n[0] no newline\n");
  EXPECT_EQ(err_.text(), "[0] err\n[0] none here\n");
}

TEST_F(LauncherTest, ForegroundRankWritesWithoutAPrefix) {
  options_.foreground_rank = 1;
  Run(2, "printf \"r$LOCKSTEP_RANK\"; printf \"e$LOCKSTEP_RANK\" >&2");
  EXPECT_THAT(out_.text(), testing::AnyOf("r1[0] r0\n", "[0] r0\nr1"));
  EXPECT_THAT(err_.text(), testing::AnyOf("e1[0] e0\n", "[0] e0\ne1"));
}

TEST_F(LauncherTest, RanksReadNothing) {
  Run(2, "cat; echo end");
  EXPECT_THAT(out_.lines(), UnorderedElementsAre("[0] end", "[1] end"));
}

// Three ranks write 20,000 lines each at once: nothing is lost, torn or out of order.
TEST_F(LauncherTest, RelaysMuchOutputWithWholeLinesInOrder) {
  Run(3, "seq 1 20000");
  std::map<std::string, int> last;
  for (const std::string& line : out_.lines()) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 2) << line;
    int number;
    ASSERT_TRUE(absl::SimpleAtoi(words[1], &number)) << line;
    ASSERT_EQ(number, ++last[words[0]]) << line;
  }
  EXPECT_THAT(last, UnorderedElementsAre(testing::Pair("[0]", 20000), testing::Pair("[1]", 20000),
                                         testing::Pair("[2]", 20000)));
}

TEST_F(LauncherTest, FirstFailureEndsTheOthersAndGivesTheExitStatus) {
  // The others fail too once they are told to end: that is not what is reported.
  const LaunchResult result = Run(3,
                                  "if [ $LOCKSTEP_RANK = 1 ]; then exit 3; fi\n"
                                  "sleep 1000 & trap 'echo told; exit 9' TERM; wait");
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.report, absl::StrCat("rank 1 (pid ", result.ranks[1].pid, ") exited with status 3"));
}

TEST_F(LauncherTest, KilledRankIsReportedWithItsSignal) {
  const LaunchResult result = Run(3, "if [ $LOCKSTEP_RANK = 2 ]; then kill -KILL $$; fi; sleep 1000 & wait");
  EXPECT_EQ(result.first_failed, 2);
  EXPECT_EQ(result.exit_status, 137);
  EXPECT_EQ(result.report, absl::StrCat("rank 2 (pid ", result.ranks[2].pid, ") was killed by signal 9 (SIGKILL)"));
  EXPECT_EQ(DescribeWaitStatus(result.ranks[0].wait_status), "was killed by signal 15 (SIGTERM)");
}

// Rank 0 blames rank 1 and is gone when rank 1 fails. Rank 2 does nothing.
TEST_F(LauncherTest, TheRankThatIsBlamedIsWaitedForAndComesLast) {
  const std::string fifo = Fifo(), victim = File("victim"), culprit = File("culprit");
  std::ofstream(victim) << R"({"message": {"message": "Aborted: rank 1 died"},
                               "lockstep": {"rank": 0, "world_size": 3, "failed_rank": 1, "where": "a.py:1"}})";
  std::ofstream(culprit) << R"({"message": {"message": "ValueError: bad",
                                            "extraInfo": {"py_callstack": "Traceback\nValueError: bad\n"}}})";
  options_.blame_ms = 100'000;
  const LaunchResult result =
      Run(3, absl::StrCat("case $RANK in\n0) cat ", victim, " > $TORCHELASTIC_ERROR_FILE; echo $$ > ", fifo,
                          "; exit 1;;\n1) read pid < ", fifo, "; while kill -0 $pid 2> /dev/null; do :; done; cat ",
                          culprit, " > $TORCHELASTIC_ERROR_FILE; exit 3;;\nesac\nsleep 1000 & wait"));
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.report, absl::StrCat("rank 1 (pid ", result.ranks[1].pid, ") exited with status 3"));
  EXPECT_EQ(result.traceback, "[1] Traceback\n[1] ValueError: bad\n");
  ASSERT_EQ(result.others.size(), 3);
  EXPECT_THAT(result.others[0], ContainsRegex("^rank 0 .* exited with status 1: Aborted: rank 1 died .a.py:1.$"));
  EXPECT_THAT(result.others[1], ContainsRegex("^rank 2 .* was ended by the launcher$"));
  EXPECT_THAT(result.others[2], HasSubstr(" are in /"));
  RemoveReports(result);
}

TEST_F(LauncherTest, TheRankThatIsBlamedIsEndedIfItDoesNotEnd) {
  const std::string report = File("report");
  std::ofstream(report) << R"({"message": "rank 1 stopped answering",
                               "lockstep": {"rank": 0, "world_size": 2, "failed_rank": 1}})";
  options_.blame_ms = 100;
  const LaunchResult result = Run(2, absl::StrCat("case $RANK in\n0) cat ", report,
                                                  " > $TORCHELASTIC_ERROR_FILE; exit 5;;\nesac\nsleep 1000 & wait"));
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.exit_status, 5);
  EXPECT_THAT(result.report, ContainsRegex("^rank 1 .* was ended by the launcher: rank 0 failed because of it$"));
  RemoveReports(result);
}

// Rank 0 continues without a process that wrote its error file.
TEST_F(LauncherTest, ARankThatContinuesWithoutItsHelperHasNotFailed) {
  const std::string fifo = Fifo(), report = File("report");
  std::ofstream(report)
      << R"({"message": {"message": "ValueError", "extraInfo": {"py_callstack": "Traceback\nValueError\n"}},
                               "lockstep": {"pid": PID}})";
  const LaunchResult result = Run(
      2, absl::StrCat("case $RANK in\n0) sh -c 'sed \"s/PID/$$/\" ", report, " > $TORCHELASTIC_ERROR_FILE'; echo > ",
                      fifo, ";;\n1) read line < ", fifo, "; exit 3;;\nesac\nsleep 1000 & wait"));
  EXPECT_EQ(result.first_failed, 1);
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_EQ(result.report, absl::StrCat("rank 1 (pid ", result.ranks[1].pid, ") exited with status 3"));
  RemoveReports(result);
}

// Else rank 0 would expect torchrun to serve MASTER_PORT.
TEST_F(LauncherTest, RanksOfATorchrunWorkerAreNoWorkersOfTorchrun) {
  const ScopedVariable store("TORCHELASTIC_USE_AGENT_STORE", "1"), id("TORCHELASTIC_RUN_ID", "1"),
      group("GROUP_RANK", "1"), file("TORCHELASTIC_ERROR_FILE", "/nowhere/error.json");
  Run(1, "env | grep -E '^(TORCHELASTIC|GROUP)_'");
  EXPECT_THAT(out_.lines(), ElementsAre(ContainsRegex("^.0. TORCHELASTIC_ERROR_FILE=.*/error.rank0.json$")));
}

TEST_F(LauncherTest, RankThatIgnoresSigtermIsKilledAfterTheGracePeriod) {
  options_.grace_ms = 100;
  const std::string fifo = Fifo();
  const LaunchResult result = Run(2, absl::StrCat("if [ $LOCKSTEP_RANK = 1 ]; then read line < ", fifo,
                                                  "; exit 4; fi\n"
                                                  "trap '' TERM; echo ready > ",
                                                  fifo, "; while :; do sleep 1000; done"));
  EXPECT_EQ(result.exit_status, 4);
  EXPECT_EQ(DescribeWaitStatus(result.ranks[0].wait_status), "was killed by signal 9 (SIGKILL)");
}

TEST_F(LauncherTest, StoppedRankIsEndedWithoutWaitingForTheGracePeriod) {
  options_.grace_ms = 1000 * 1000;
  const std::string fifo = Fifo();
  const LaunchResult result =
      Run(2, absl::StrCat("if [ $LOCKSTEP_RANK = 0 ]; then echo $$ > ", fifo,
                          "; kill -STOP $$; fi\n"
                          "read pid < ",
                          fifo,
                          "\n"
                          "until read state < /proc/$pid/stat && case $state in *') T '*) ;; *) false; esac\n"
                          "do :; done; exit 5"));
  EXPECT_EQ(result.exit_status, 5);
  EXPECT_EQ(DescribeWaitStatus(result.ranks[0].wait_status), "was killed by signal 15 (SIGTERM)");
}

TEST_F(LauncherTest, PassesSignalsOnToEveryRank) {
  const std::string fifo = Fifo();
  for (const char* signal : {"INT", "TERM", "HUP", "QUIT", "USR1", "USR2"}) {
    Capture out;
    options_.stdout_fd = out.fd();
    // Rank 1 has set its trap when rank 0, which has too, signals the launcher: its parent.
    const LaunchResult result = Run(2, absl::StrCat("sleep 1000 & trap 'echo got ", signal, "; exit 0' ", signal,
                                                    "\n"
                                                    "if [ $LOCKSTEP_RANK = 1 ]; then echo ready > ",
                                                    fifo, "; else read line < ", fifo, "; kill -", signal,
                                                    " $PPID; fi\n"
                                                    "while :; do wait; done"));
    EXPECT_EQ(result.exit_status, 0) << result.report;
    EXPECT_THAT(out.lines(), UnorderedElementsAre(absl::StrCat("[0] got ", signal), absl::StrCat("[1] got ", signal)));
  }
}

TEST_F(LauncherTest, ReportSaysWhichSignalWasPassedOn) {
  const LaunchResult result = Run(1, "sleep 1000 & kill -TERM $PPID; wait");
  EXPECT_EQ(result.exit_status, 128 + SIGTERM);
  EXPECT_THAT(result.report, HasSubstr("killed by signal 15 (SIGTERM), after SIGTERM was passed on to all ranks"));
}

TEST_F(LauncherTest, SecondInterruptEndsTheJob) {
  const LaunchResult result =
      Run(1, "sleep 1000 & trap 'echo again; kill -INT $PPID' INT; kill -INT $PPID; while :; do wait; done");
  EXPECT_THAT(out_.lines(), testing::Contains("[0] again"));
  EXPECT_EQ(result.exit_status, 128 + SIGTERM);
}

TEST_F(LauncherTest, WhatARankLeavesBehindIsEndedWhenItExits) {
  options_.grace_ms = 100;
  const LaunchResult result = Run(1, "(trap '' TERM; sleep 1000) & echo $!; sleep 1000 & echo $!");
  EXPECT_EQ(result.exit_status, 0);
  const std::vector<std::string> lines = out_.lines();
  ASSERT_EQ(lines.size(), 2);
  for (const std::string& line : lines) {
    pid_t pid;
    ASSERT_TRUE(absl::SimpleAtoi(line.substr(4), &pid)) << line;
    EXPECT_EQ(kill(pid, 0), -1) << line;
    EXPECT_EQ(errno, ESRCH);
  }
}

TEST_F(LauncherTest, OutputThatCannotBeWrittenIsAnError) {
  options_.stdout_fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
  const LaunchResult result = Run(1, "echo lost");
  close(options_.stdout_fd);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_EQ(result.report, "the launcher could not write its output: stdout: No space left on device");
}

TEST_F(LauncherTest, AProcessThatHasLeftTheGroupMayNeverStopWriting) {
  const std::string pid = File("pid");
  const LaunchResult result =
      Run(1, absl::StrCat("setsid sh -c 'echo $$ > ", pid, "; exec yes' & while [ ! -s ", pid, " ]; do :; done"));
  EXPECT_EQ(result.exit_status, 0);
  int writer = 0;
  std::ifstream(pid) >> writer;
  EXPECT_GT(writer, 0);
  (void)waitpid(writer, nullptr, 0);  // it dies when the launcher closes the pipe, which may also have reaped it
}

TEST_F(LauncherTest, WritersFailWhenNobodyReadsTheOutput) {
  for (const bool socket : {false, true}) {
    int ends[2];
    ASSERT_EQ(socket ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    options_.stdout_fd = ends[1];
    const LaunchResult result = Run(2, "exec cat /dev/zero");
    close(ends[1]);
    EXPECT_EQ(result.exit_status, 128 + SIGPIPE);
    EXPECT_THAT(result.report, HasSubstr("the launcher could not write its output: stdout: Broken pipe"));
  }
}

TEST_F(LauncherTest, ProgramThatCannotRunIsAnErrorBeforeAnythingStarts) {
  const auto launch = [this](const std::string& program) {
    options_.command = {program};
    return Launch(options_);
  };
  EXPECT_THAT(launch("no-such-program-anywhere"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'no-such-program-anywhere' in PATH")));
  EXPECT_THAT(launch("/no/such/program"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/program")));
  EXPECT_THAT(launch("/tmp"), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is a directory")));

  const std::string file = File("text");
  std::ofstream(file) << "just text\n";
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  EXPECT_THAT(launch(file), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(file)));
  ASSERT_EQ(chmod(file.c_str(), 0700), 0);
  EXPECT_THAT(launch(file), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("begins with #!")));
  std::ofstream(file) << "#!/no/such/interpreter\n";
  EXPECT_THAT(launch(file), StatusIs(absl::StatusCode::kNotFound, HasSubstr("interpreter")));
  EXPECT_EQ(out_.text() + err_.text(), "");
}

TEST_F(LauncherTest, RefusesOptionsOutOfRange) {
  options_.command = {"/bin/true"};
  for (int world_size : {0, -1, kLauncherRanksMax + 1}) {
    options_.world_size = world_size;
    EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("number of ranks")));
  }
  options_.world_size = 2;
  for (int rank : {-1, 2}) {
    options_.foreground_rank = rank;
    EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("foreground rank")));
  }
  options_.foreground_rank.reset();
  options_.grace_ms = -1;
  EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grace period")));
  options_.grace_ms = 0;
  options_.command.clear();
  EXPECT_THAT(Launch(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no program")));
}

// ---- The program lockstep-run --------------------------------------------------------------------------------------

class LockstepRunTest : public LauncherTest {
 protected:
  pid_t Start(std::vector<std::string> arguments) {
    SpawnOptions spawn;
    spawn.path = "launch/lockstep-run";
    spawn.arguments = {"lockstep-run", "--store=file:///nowhere"};
    spawn.arguments.insert(spawn.arguments.end(), arguments.begin(), arguments.end());
    spawn.environment = EnvironmentWith({});
    spawn.stdout_fd = out_.fd();
    spawn.stderr_fd = err_.fd();
    const absl::StatusOr<pid_t> pid = Spawn(spawn);
    EXPECT_THAT(pid, IsOk());
    return pid.ok() ? *pid : -1;
  }
  static int Wait(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

TEST_F(LockstepRunTest, ExitStatusAndLastLineAreThoseOfTheFirstFailedRank) {
  EXPECT_EQ(Wait(Start({"-n", "2", "/bin/sh", "-c", "echo hello; exit $LOCKSTEP_RANK"})), 1);
  EXPECT_THAT(out_.lines(), testing::Contains("[1] hello"));
  EXPECT_THAT(err_.text(), ContainsRegex("^lockstep-run: rank 1 \\(pid [0-9]+\\) exited with status 1\n$"));
}

TEST_F(LockstepRunTest, HelpGoesToStdout) {
  EXPECT_EQ(Wait(Start({"--help"})), 0);
  EXPECT_THAT(out_.text(), HasSubstr("usage: lockstep-run -n N"));
  EXPECT_EQ(err_.text(), "");
}

TEST_F(LockstepRunTest, WrongUsageAndMissingProgramsHaveTheirOwnExitStatus) {
  EXPECT_EQ(Wait(Start({"-n", "zero", "/bin/true"})), 2);
  EXPECT_EQ(Wait(Start({"-n", "2", "--foreground", "2", "/bin/true"})), 2);
  EXPECT_EQ(Wait(Start({"-n", "2", "/tmp"})), 126);
  EXPECT_EQ(Wait(Start({"-n", "2", "no-such-program-anywhere"})), 127);
  EXPECT_THAT(err_.lines(),
              ElementsAre(HasSubstr("-n is 'zero'"), HasSubstr("foreground rank is 2"), HasSubstr("is a directory"),
                          HasSubstr("no program 'no-such-program-anywhere'")));
}

// The ranks' children are two generations away from the launcher, and one of them ignores every signal it can. As their
// new parent we see each of them end: when waitpid() answers ECHILD, nothing is left.
TEST_F(LockstepRunTest, NothingSurvivesALauncherThatIsKilled) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const std::string fifo = Fifo();
  const pid_t launcher =
      Start({"-n", "2", "/bin/sh", "-c",
             absl::StrCat("trap '' TERM HUP INT; sh -c 'sleep 1000 & echo ready > ", fifo, "; wait' & wait")});
  // Opened for writing as well: else it would end when one rank has written and closed it.
  std::fstream ready(fifo, std::ios::in | std::ios::out);
  for (int rank = 0; rank < 2; ++rank) {
    std::string line;
    ready >> line;
    ASSERT_EQ(line, "ready");
  }
  ASSERT_EQ(kill(launcher, SIGKILL), 0);

  // Bounded by the test's own time limit: a survivor would sleep for longer.
  pid_t pid;
  int reaped = 0;
  while ((pid = waitpid(-1, nullptr, 0)) > 0) ++reaped;
  EXPECT_EQ(errno, ECHILD);
  EXPECT_GE(reaped, 6) << "the launcher, its guardian, two ranks and their children";
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(LockstepRunTest, StopsAndContinuesWithItsRanks) {
  const std::string fifo = Fifo();
  const pid_t launcher =
      Start({"-n", "1", "/bin/sh", "-c",
             absl::StrCat("sleep 1000 & trap 'exit 6' CONT; echo ready > ", fifo, "; while :; do wait; done")});
  std::string line;
  std::ifstream(fifo) >> line;
  ASSERT_EQ(line, "ready");
  ASSERT_EQ(kill(launcher, SIGTSTP), 0);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, WUNTRACED), launcher);
  EXPECT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(kill(launcher, SIGCONT), 0);
  EXPECT_EQ(Wait(launcher), 6);
}

}  // namespace
}  // namespace lockstep

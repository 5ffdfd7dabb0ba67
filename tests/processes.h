// Multi-process tests: ranks that are real processes, which can be killed, stopped and looked at.
//
//   LOCKSTEP_RANK_FUNCTION(Echo) {              // runs in each process
//     LOCKSTEP_ASSIGN_OR_RETURN(const std::string text, self.Receive(Deadline::AfterMs(10000)));
//     return self.Send(text);
//   }
//
//   TEST(Echo, Answers) {
//     ProcessGroup::Options options;
//     options.size = 2;
//     LOCKSTEP_ASSERT_OK_AND_ASSIGN(auto group, ProcessGroup::Start("Echo", options));
//     EXPECT_THAT(group->Send(1, "hello"), IsOk());
//     EXPECT_THAT(group->Receive(1, Deadline::AfterMs(10000)), IsOkAndHolds("hello"));
//     EXPECT_THAT(group->Signal(0, SIGKILL), IsOk());
//     EXPECT_THAT(group->Wait(0, Deadline::AfterMs(10000)), StatusIs(absl::StatusCode::kUnknown,
//     HasSubstr("SIGKILL"))); EXPECT_THAT(group->Wait(1, Deadline::AfterMs(10000)), IsOk());
//   }
//
// The processes are started by executing the test's own program again, so that threads and sanitizers find a fresh
// process; this library brings a main() that knows. Use threads (tests/ranks) where a process does not matter.

#ifndef TESTS_PROCESSES_H_
#define TESTS_PROCESSES_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"

namespace lockstep {

inline constexpr size_t kProcessMessageBytesMax = 65536;

// What a rank function is given: its place, and the line to the test.
class RankProcess {
 public:
  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::vector<std::string>& arguments() const { return arguments_; }

  // Whole messages of at most kProcessMessageBytesMax bytes, in order. The test must receive: a few hundred wait for
  // it, then Send blocks. UNAVAILABLE when the test is gone.
  absl::Status Send(absl::string_view message);
  absl::StatusOr<std::string> Receive(Deadline deadline);

 private:
  friend int RunRankProcess();
  int rank_ = 0;
  int size_ = 1;
  int socket_ = -1;
  std::vector<std::string> arguments_;
};

// Runs in the process; what it returns is what ProcessGroup::Wait() answers. A failed EXPECT in it counts as INTERNAL.
using RankFunction = absl::Status (*)(RankProcess& self);

// The processes of one rank function. Used by one thread, which must live as long: the processes are killed when it ends. The test
// program becomes the parent of its ranks' orphans, so that the destructor ends them too.
class ProcessGroup {
 public:
  struct Options {
    int size = 1;
    std::vector<std::string> arguments;                            // for every rank
    std::vector<std::pair<std::string, std::string>> environment;  // set in every rank
  };

  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Start(absl::string_view function, const Options& options);

  // Kills and reaps what is left, children of ranks included. Fails the test if something remains. Prints what the ranks wrote if the
  // test has failed.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int size() const { return static_cast<int>(processes_.size()); }
  pid_t pid(int rank) const { return processes_[rank].pid; }

  // Signals the rank's process, not its children. FAILED_PRECONDITION if it was waited for.
  absl::Status Signal(int rank, int signal);

  absl::Status Send(int rank, absl::string_view message);
  // The next message. UNAVAILABLE when the rank ended without sending one.
  absl::StatusOr<std::string> Receive(int rank, Deadline deadline);

  // Waits until the rank ends. Returns what its function returned. May be called again; messages that the rank sent before can still be
  // received.
  //
  // ERRORS  UNKNOWN            the function did not return, or the process failed afterwards: "process 1 was killed by signal 9
  // (SIGKILL)"
  //         DEADLINE_EXCEEDED  the rank is still running
  absl::Status Wait(int rank, Deadline deadline);
  std::vector<absl::Status> WaitAll(Deadline deadline);

  // What the rank wrote to stdout and stderr so far.
  std::string Output(int rank) const;

 private:
  struct Process {
    pid_t pid = 0;
    int pid_fd = -1;     // readable once the process ended
    int socket = -1;     // datagrams with boundaries; the child's descriptor 0
    int output_fd = -1;  // a file in memory
    bool reaped = false;
    absl::Status end;  // once reaped
    bool returned = false;
    absl::Status result;                // once returned
    std::vector<std::string> received;  // while waiting for something else, oldest first
  };

  ProcessGroup();
  absl::Status StartOne(absl::string_view function, int rank, const Options& options);
  // Takes one message from the socket. False if there is none.
  bool TakeMessage(Process* process);
  void Reap(int rank);

  std::string name_;
  int subreaper_before_ = 0;
  std::vector<Process> processes_;
};

// What the macro uses.
struct RankFunctionRegistration {
  RankFunctionRegistration(const char* name, RankFunction function);
};

}  // namespace lockstep

#define LOCKSTEP_RANK_FUNCTION(name)                                                                             \
  static ::absl::Status LockstepRankFunction_##name(::lockstep::RankProcess& self);                              \
  static const ::lockstep::RankFunctionRegistration lockstep_rank_function_##name(#name,                         \
                                                                                  &LockstepRankFunction_##name); \
  static ::absl::Status LockstepRankFunction_##name([[maybe_unused]] ::lockstep::RankProcess& self)

#endif  // TESTS_PROCESSES_H_

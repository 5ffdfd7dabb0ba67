// ProcessFamily: the processes of one contender: those that we start, and those that they start.
//
// A process that we start leads a group. Launchers put ranks into groups of their own, so ranks are adopted one by one,
// and the orphans of a launcher that is gone come to us while there is a Subreaper. Not thread-safe; the thread that
// starts a family must outlive it, as Spawn says.

#ifndef BENCH_COMPARE_PROCESS_FAMILY_H_
#define BENCH_COMPARE_PROCESS_FAMILY_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/deadline.h"
#include "base/fork.h"

namespace lockstep {
namespace bench {

class ProcessFamily {
 public:
  // What the processes write to stdout and stderr is appended to this file.
  explicit ProcessFamily(std::string output_file) : output_file_(std::move(output_file)) {}
  // Ends what is left: SIGTERM, which lets launchers clean up, and SIGKILL three seconds later.
  ~ProcessFamily();
  ProcessFamily(const ProcessFamily&) = delete;
  ProcessFamily& operator=(const ProcessFamily&) = delete;

  // Errors: those of FindProgram and Spawn.
  absl::Status Start(const std::vector<std::string>& words,
                     const std::vector<std::pair<std::string, std::string>>& environment);
  // A descendant, alive at this moment, that is to be ended with the others.
  void Adopt(pid_t pid);

  // Of the processes that we started.
  bool SomeEnded();
  bool AllEnded(Deadline deadline);

  // "was killed by signal 6 (SIGABRT); it wrote: ..." once a process has ended, and that one if it is known which;
  // else, after two seconds, "closed its connection". Ends what it left in its group.
  std::string DescribeEnd(pid_t preferred);
  // "; it wrote: " and the last line; empty if there is none.
  std::string LastOutput() const;

 private:
  struct Started {
    pid_t pid = 0;
    bool ended = false;
    bool reaped = false;
  };
  struct Adopted {
    pid_t pid = 0;
    UniqueFd process;  // a pidfd: the number may be another's by the time we kill
  };

  void SignalAll(int signal);
  Started* FindEnded(pid_t preferred);

  const std::string output_file_;
  std::vector<Started> started_;
  std::vector<Adopted> adopted_;
};

// Makes this process the parent of its descendants' orphans while it lives, so that none escapes.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_PROCESS_FAMILY_H_

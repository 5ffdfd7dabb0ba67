// Runs other programs to their end, for what they print: compilers, and programs that tell their version.

#ifndef BENCH_COMPARE_COMMAND_H_
#define BENCH_COMPARE_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/deadline.h"

namespace lockstep {
namespace bench {

// Returns what the program wrote to stdout and stderr. NOT_FOUND when there is none of that name; UNKNOWN when it
// fails, with the first lines of what it wrote; DEADLINE_EXCEEDED, and then it is killed.
absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& words, Deadline deadline);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_COMPARE_COMMAND_H_

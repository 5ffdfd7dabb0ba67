// Runs a piece of a test in a forked child.

#ifndef BASE_FORK_TESTING_H_
#define BASE_FORK_TESTING_H_

#include "absl/functional/function_ref.h"
#include "base/deadline.h"

namespace lockstep {

inline constexpr int kChildHung = -1;

// Forks, lets the child run `body` and leave by _exit with what it returns (0 to 125), and waits for it. kChildHung
// when it did not end by the deadline and was killed; 128 plus the signal when one killed it.
int RunInForkedChild(absl::FunctionRef<int()> body, Deadline deadline);

}  // namespace lockstep

#endif  // BASE_FORK_TESTING_H_

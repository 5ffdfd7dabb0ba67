// Starting the other processes.

#ifndef EXAMPLES_FASHION_MNIST_LAUNCH_H_
#define EXAMPLES_FASHION_MNIST_LAUNCH_H_

#include "absl/status/status.h"

namespace fashion_mnist {

// Whether a launcher (lockstep-run, torchrun, Open MPI, MPICH) started this process as a rank.
bool StartedByLauncher();

// This process's rank as the launcher told it, for messages before the world exists; 0 if there was none.
int LaunchedRank();

// Becomes lockstep-run with `processes` ranks of this program and these arguments, of which rank 0 keeps the terminal.
// Returns only when that fails: NOT_FOUND when there is no lockstep-run in LOCKSTEP_RUN, beside this program as Bazel
// builds it, or in PATH.
absl::Status BecomeLauncher(int processes, char** argv);

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_LAUNCH_H_

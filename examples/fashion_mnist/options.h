// What the trainer is told on its command line.

#ifndef EXAMPLES_FASHION_MNIST_OPTIONS_H_
#define EXAMPLES_FASHION_MNIST_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/fashion_mnist/choices.h"

namespace fashion_mnist {

struct Options {
  bool help = false;
  int nproc = 2;
  int epochs = 5;
  int batch = 256;  // of all processes together
  uint64_t seed = 1;
  float learning_rate = 0.1f;
  double bucket_mb = 1;
  bool overlap = true;
  std::string transport;  // empty: LOCKSTEP_TRANSPORT, or "auto"
  int64_t steps = 0;      // stop after so many; 0: train all epochs
  std::string data;
  std::string log_losses;  // a file; empty: none

  Hook hook = Hook::kNone;
  bool find_unused = false;
  bool static_graph = false;
  int accumulate = 1;  // micro-batches in a step, of each process
  SyncStrategy sync_strategy = SyncStrategy::kSingleAutoSync;
  bool mixed_precision = false;
  bool optimizer_in_backward = false;
};

// `arguments` without the program's name. Words in a flag's name may be joined by "-" or "_", and a switch is turned
// off by "--no-". INVALID_ARGUMENT names the flag, its value and what is wrong, or the flags that do not go together.
// Sets process-wide flags: call it once.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments);

// INVALID_ARGUMENT unless so many processes get equal parts of a batch, which each cuts into equal micro-batches.
absl::Status CheckDivisible(int batch, int processes, int micro_batches);

// Generated from the flags.
std::string HelpText();

}  // namespace fashion_mnist

#endif  // EXAMPLES_FASHION_MNIST_OPTIONS_H_

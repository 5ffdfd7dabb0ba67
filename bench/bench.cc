// The one command for the numbers: how fast collectives of two ranks are, and how far all-reduce is from what bare
// sockets do. Takes no arguments; collectives has them.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/exercise.h"
#include "bench/limits_comparison.h"
#include "bench/program.h"
#include "bench/sweep.h"

namespace lockstep {
namespace bench {
namespace {

int Main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr,
                 "bench takes no arguments; bazel run -c opt //bench:collectives -- --help tells what can be chosen\n");
    return 2;
  }
  const absl::StatusOr<std::vector<Exercise>> exercises = ParseExercises("all");
  const absl::StatusOr<std::vector<int64_t>> sizes = SweepSizes(8, 32 << 20, 16);
  ProgramOptions options;
  options.exercises = *exercises;
  options.sizes = *sizes;
  options.limits = true;
  options.limit_sizes = DefaultLimitSizes();
  return RunProgram(options, argv);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

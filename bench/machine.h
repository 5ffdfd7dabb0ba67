// What a number depends on beside the code: a number without it is worth nothing.

#ifndef BENCH_MACHINE_H_
#define BENCH_MACHINE_H_

#include <string>
#include <utility>
#include <vector>

namespace lockstep {
namespace bench {

// Processor, kernel, TCP's congestion control, compiler, version and commit, as pairs of name and value. "unknown" for
// what this machine does not tell. Runs git, where the program was started by `bazel run`.
std::vector<std::pair<std::string, std::string>> MachineFacts();

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_MACHINE_H_

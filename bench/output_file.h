// Where a program that `bazel run` started writes what its user asked for.

#ifndef BENCH_OUTPUT_FILE_H_
#define BENCH_OUTPUT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace lockstep {
namespace bench {

// A relative path counts from the folder in which the user called `bazel run`, which changes it; else from this one.
// UNAVAILABLE names the file that cannot be written.
absl::Status WriteFile(const std::string& path, const std::string& text);

}  // namespace bench
}  // namespace lockstep

#endif  // BENCH_OUTPUT_FILE_H_

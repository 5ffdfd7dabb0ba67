// Trains a network on Fashion-MNIST with several processes. See --help.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/launch.h"
#include "examples/fashion_mnist/options.h"
#include "examples/fashion_mnist/trainer.h"
#include "examples/fashion_mnist/world.h"

namespace fashion_mnist {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int Fail(const std::string& who, const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "%s: %s\n", who.c_str(), std::string(status.message()).c_str());
  return exit_status;
}

// As one of several processes, or alone.
int RunRank(const Options& options) {
  const std::string who = absl::StrCat("train: rank ", LaunchedRank());
  // The data first: what cannot be read should not keep other ranks waiting.
  const absl::StatusOr<Dataset> training = LoadDataset(options.data, "train");
  if (!training.ok()) return Fail(who, training.status(), kFailed);
  const absl::StatusOr<Dataset> test = LoadDataset(options.data, "t10k");
  if (!test.ok()) return Fail(who, test.status(), kFailed);
  const absl::StatusOr<std::unique_ptr<World>> world = World::Join(/*alone=*/!StartedByLauncher(), options.transport);
  if (!world.ok()) return Fail(who, world.status(), kFailed);

  absl::Status status = CheckSetUp(options, *training, *test, (*world)->size());
  if (!status.ok()) {
    return Fail(who, status, status.code() == absl::StatusCode::kInvalidArgument ? kWrongUsage : kFailed);
  }
  status = Train(options, *training, *test, world->get());
  return status.ok() ? 0 : Fail(who, status, kFailed);
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Options> options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) return Fail("train", options.status(), kWrongUsage);
  if (options->help) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  if (options->nproc == 1 || StartedByLauncher()) return RunRank(*options);
  const absl::Status divisible = CheckDivisible(options->batch, options->nproc, options->accumulate);
  if (!divisible.ok()) return Fail("train", divisible, kWrongUsage);
  return Fail("train", BecomeLauncher(options->nproc, argv), kFailed);
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) { return fashion_mnist::Main(argc, argv); }

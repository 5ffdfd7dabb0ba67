#include "examples/fashion_mnist/options.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

ABSL_FLAG(int, nproc, 2, "processes to train with; 1 trains alone");
ABSL_FLAG(int, epochs, 5, "passes over the training images");
ABSL_FLAG(int, batch, 256, "images in a step, of all processes together");
ABSL_FLAG(uint64_t, seed, 1, "of the initial parameters and of the order of the images");
ABSL_FLAG(float, lr, 0.1f, "peak of the learning rate");
ABSL_FLAG(double, bucket_mb, 1, "size from which a bucket of gradients is sent, in MiB");
ABSL_FLAG(bool, overlap, true, "send gradients while the backward pass computes the next ones");
ABSL_FLAG(std::string, transport, "",
          "auto: shared memory between processes of one host, TCP between hosts; tcp or shm: one of them alone; ofi: "
          "libfabric; empty: LOCKSTEP_TRANSPORT, or auto");
ABSL_FLAG(int64_t, steps, 0, "stop after so many steps; 0: after the last epoch");
ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "folder with the four IDX files, plain or .gz");
ABSL_FLAG(std::string, log_losses, "", "write each step's loss over all processes to this file");
ABSL_FLAG(fashion_mnist::Hook, hook, fashion_mnist::Hook::kNone,
          "what averages gradients: none, all_reduce (the same), fp16_compress, bf16_compress, or callback: "
          "a reduce-scatter and an all-gather, from this program");
ABSL_FLAG(
    bool, find_unused, false,
    "in a quarter of the micro-batches leave out a hidden layer, drawn anew in each process, whose gradients then "
    "are not there");
ABSL_FLAG(
    bool, static_graph, false,
    "the inner layers share their weights, whose gradients are complete after as many layers as in the first step");
ABSL_FLAG(int, accumulate, 1, "micro-batches that a process cuts its part of a batch into, whose gradients add up");
ABSL_FLAG(fashion_mnist::SyncStrategy, sync_strategy, fashion_mnist::SyncStrategy::kSingleAutoSync,
          "gradients are averaged in the backward pass of the last micro-batch: single_auto_sync, of each one: "
          "multi_auto_sync, or after all: forced_sync");
ABSL_FLAG(bool, mixed_precision, false,
          "compute with copies of the parameters that are rounded to bf16, and send gradients as bf16");
ABSL_FLAG(bool, optimizer_in_backward, false,
          "step parameters as soon as their gradients are averaged, while the backward pass goes on");

namespace fashion_mnist {
namespace {

constexpr const char* kFlags[] = {"nproc",
                                  "epochs",
                                  "batch",
                                  "seed",
                                  "lr",
                                  "bucket_mb",
                                  "overlap",
                                  "transport",
                                  "steps",
                                  "data",
                                  "log_losses",
                                  "hook",
                                  "find_unused",
                                  "static_graph",
                                  "accumulate",
                                  "sync_strategy",
                                  "mixed_precision",
                                  "optimizer_in_backward"};
constexpr int kProcessesMax = 4096;
constexpr double kBucketMbMax = 65536;

bool IsOurs(absl::string_view name) {
  return std::any_of(std::begin(kFlags), std::end(kFlags), [name](absl::string_view flag) { return flag == name; });
}

std::string Dashed(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

absl::Status Invalid(absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(message, "; see --help"));
}

// Sets the flag that `arguments[*next]` names, whose value may be the next word.
absl::Status SetFlag(const std::vector<std::string>& arguments, size_t* next) {
  const absl::string_view word = arguments[(*next)++];
  absl::string_view body = word;
  if (!absl::ConsumePrefix(&body, "--")) return Invalid(absl::StrCat("'", word, "' is no flag"));
  const size_t equals = body.find('=');
  std::string name = absl::StrReplaceAll(body.substr(0, equals), {{"-", "_"}});
  bool negated = false;
  if (!IsOurs(name) && absl::StartsWith(name, "no")) {
    name = std::string(absl::StripPrefix(absl::StripPrefix(name, "no"), "_"));
    negated = true;
  }
  absl::CommandLineFlag* flag = IsOurs(name) ? absl::FindCommandLineFlag(name) : nullptr;
  if (flag == nullptr || (negated && !flag->IsOfType<bool>())) return Invalid(absl::StrCat("no flag ", word));

  std::string value;
  if (equals != absl::string_view::npos) {
    if (negated) return Invalid(absl::StrCat(word, " takes no value"));
    value = std::string(body.substr(equals + 1));
  } else if (flag->IsOfType<bool>()) {
    value = negated ? "false" : "true";
  } else if (*next < arguments.size()) {
    value = arguments[(*next)++];
  } else {
    return Invalid(absl::StrCat("--", Dashed(name), " needs a value"));
  }
  std::string error;
  if (!flag->ParseFrom(value, &error)) return Invalid(absl::StrCat("--", Dashed(name), " is '", value, "': ", error));
  return absl::OkStatus();
}

absl::Status OutOfRange(absl::string_view flag, double value, absl::string_view takes) {
  return Invalid(absl::StrCat("--", flag, " is ", value, "; it takes ", takes));
}

absl::Status CheckRanges(const Options& options) {
  if (options.nproc < 1 || options.nproc > kProcessesMax) {
    return OutOfRange("nproc", options.nproc, absl::StrCat("1 to ", kProcessesMax));
  }
  if (options.epochs < 1) return OutOfRange("epochs", options.epochs, "1 or more");
  if (options.batch < 1) return OutOfRange("batch", options.batch, "1 or more");
  if (options.accumulate < 1) return OutOfRange("accumulate", options.accumulate, "1 or more");
  if (options.steps < 0) return OutOfRange("steps", static_cast<double>(options.steps), "0 or more");
  // The comparisons are false for NaN.
  if (!(options.learning_rate > 0 && std::isfinite(options.learning_rate))) {
    return OutOfRange("lr", options.learning_rate, "a number above 0");
  }
  if (!(options.bucket_mb > 0 && options.bucket_mb <= kBucketMbMax)) {
    return OutOfRange("bucket-mb", options.bucket_mb, absl::StrCat("MiB, above 0 and at most ", kBucketMbMax));
  }
  return absl::OkStatus();
}

absl::Status CheckCombinations(const Options& options) {
  if (options.find_unused && options.static_graph) {
    return Invalid("--find-unused leaves out other layers in each step, and with --static-graph all steps are alike");
  }
  const bool compresses = options.hook == Hook::kFp16Compress || options.hook == Hook::kBf16Compress;
  if (options.mixed_precision && compresses) {
    return Invalid(absl::StrCat("--mixed-precision sends gradients as bf16; there is nothing left for --hook=",
                                AbslUnparseFlag(options.hook), " to compress"));
  }
  if (!options.optimizer_in_backward) return absl::OkStatus();
  if (!options.overlap) {
    return Invalid("--optimizer-in-backward needs averages during the backward pass; --no-overlap has none");
  }
  if (options.sync_strategy == SyncStrategy::kForcedSync) {
    return Invalid(
        "--optimizer-in-backward needs averages during the backward pass; --sync-strategy=forced_sync has none");
  }
  if (options.sync_strategy == SyncStrategy::kMultiAutoSync && options.accumulate > 1) {
    return Invalid("--optimizer-in-backward would step once for each micro-batch with --sync-strategy=multi_auto_sync");
  }
  return absl::OkStatus();
}

// `bazel run` changes the folder and says in which one the user is.
std::string FromUsersFolder(const std::string& path) {
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || path[0] == '/' || folder == nullptr) return path;
  return absl::StrCat(folder, "/", path);
}

}  // namespace

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t next = 0; next < arguments.size();) {
    if (arguments[next] == "--help" || arguments[next] == "-h") {
      options.help = true;
      return options;
    }
    const absl::Status status = SetFlag(arguments, &next);
    if (!status.ok()) return status;
  }
  options.nproc = absl::GetFlag(FLAGS_nproc);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.learning_rate = absl::GetFlag(FLAGS_lr);
  options.bucket_mb = absl::GetFlag(FLAGS_bucket_mb);
  options.overlap = absl::GetFlag(FLAGS_overlap);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.data = FromUsersFolder(absl::GetFlag(FLAGS_data));
  options.log_losses = FromUsersFolder(absl::GetFlag(FLAGS_log_losses));
  options.hook = absl::GetFlag(FLAGS_hook);
  options.find_unused = absl::GetFlag(FLAGS_find_unused);
  options.static_graph = absl::GetFlag(FLAGS_static_graph);
  options.accumulate = absl::GetFlag(FLAGS_accumulate);
  options.sync_strategy = absl::GetFlag(FLAGS_sync_strategy);
  options.mixed_precision = absl::GetFlag(FLAGS_mixed_precision);
  options.optimizer_in_backward = absl::GetFlag(FLAGS_optimizer_in_backward);
  absl::Status status = CheckRanges(options);
  if (status.ok()) status = CheckCombinations(options);
  if (!status.ok()) return status;
  return options;
}

absl::Status CheckDivisible(int batch, int processes, int micro_batches) {
  if (batch % processes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch, " images cannot be divided equally among ",
                                                   processes, " processes; choose another --batch or --nproc"));
  }
  const int part = batch / processes;
  if (part % micro_batches == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a process's ", part, " images of a batch cannot be cut into ",
                                                 micro_batches,
                                                 " equal micro-batches; choose another --batch or --accumulate"));
}

std::string HelpText() {
  std::string text =
      "usage: train [flag...]\n\n"
      "Trains a multi-layer perceptron on Fashion-MNIST with several processes, whose gradients Lockstep averages.\n"
      "Alone it starts --nproc processes with lockstep-run; under lockstep-run, torchrun or mpirun it is one of "
      "theirs.\n\n";
  for (const char* name : kFlags) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    const std::string shown = flag->IsOfType<bool>() ? absl::StrCat("[no-]", Dashed(name)) : Dashed(name);
    const std::string value = flag->DefaultValue();
    absl::StrAppendFormat(&text, "  --%-26s %s%s\n", shown, flag->Help(),
                          value.empty() ? "" : absl::StrCat(" (default ", value, ")"));
  }
  return text;
}

}  // namespace fashion_mnist

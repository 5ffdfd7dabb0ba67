// How well communication hides behind computation, on the gradients of real models. See --help.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/options.h"
#include "bench/overlap/program.h"

ABSL_FLAG(int, nproc, 2, "ranks to start");
ABSL_FLAG(std::string, model, "resnet50", "whose gradients: resnet50, bert_base, bert_large, gpt2_small, mlp");
ABSL_FLAG(std::string, compute, "busy",
          "busy: arithmetic on the rank's own core, as a framework on processors does; away: sleep, as when an "
          "accelerator computes; on a stream, while the rank goes on: matmul: products of matrices, which compete with "
          "communication for the device; stream: a clock, which leaves the device to communication");
ABSL_FLAG(double, compute_ms, 0,
          "of a step, a third of it forward; 0: such that backward takes as long as communication alone");
ABSL_FLAG(bool, wake_per_bucket, false,
          "with --compute away, the thread that marks gradients wakes for the last of each bucket only");
ABSL_FLAG(std::string, device, "host",
          "where gradients are: host, or cuda, on the host's GPUs in turn; exit status 77 without one");
ABSL_FLAG(std::string, backend, "auto",
          "with --device cuda, what brings gradients to the other ranks: nccl, ipc, staged or auto");
ABSL_FLAG(std::string, transport, "", "auto, shm, tcp or ofi; empty: as LOCKSTEP_TRANSPORT says");
ABSL_FLAG(
    std::string, link, "",
    "put each rank on an emulated host, with links of this rate between them, as tc writes it (1gbit), or none for "
    "as fast as the kernel copies; needs root and iproute2: without them, as with --throttle");
ABSL_FLAG(bool, throttle, false,
          "with --link, messages are held back in the program as over such links, instead of emulating hosts");
ABSL_FLAG(double, first_bucket_cap_mb, -1, "cap of the first bucket in MiB; below 0: the reducer's default");
ABSL_FLAG(double, bucket_cap_mb, -1, "cap of the other buckets in MiB; below 0: the reducer's default");
ABSL_FLAG(std::string, compress, "", "what gradients are sent as: f16 or bf16; empty: as they are");
ABSL_FLAG(bool, caps_from_last, false, "the first cap is that of the last bucket, and so on");
ABSL_FLAG(std::string, average, "before", "when gradients are divided: before the sum, after it, or in_collective");
ABSL_FLAG(bool, gradient_as_bucket_view, false, "gradients live in the buckets instead of being copied");
ABSL_FLAG(int, rounds, 15, "rounds, in each of which every kind of step is measured");
ABSL_FLAG(int, steps, 0, "steps of each kind in a round; 0: as many as fit in --round_ms, one at least");
ABSL_FLAG(int64_t, round_ms, 100, "see --steps");
ABSL_FLAG(int, overhead_steps, 300, "steps of the reducer alone, with nothing to move");
ABSL_FLAG(bool, pin, true, "keep each rank on a core of its own, where there are as many");
ABSL_FLAG(std::string, json, "", "also write the results, every round of them, to this file");

namespace lockstep {
namespace bench {
namespace {

absl::Status SetCap(double mib, size_t* cap_bytes) {
  if (mib < 0) return absl::OkStatus();
  if (!(mib <= 1 << 20)) return absl::InvalidArgumentError(absl::StrCat("no bucket has ", mib, " MiB"));
  *cap_bytes = static_cast<size_t>(std::llround(mib * (1 << 20)));
  return absl::OkStatus();
}

absl::StatusOr<OverlapOptions> OptionsFromFlags() {
  OverlapOptions options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  options.model = absl::GetFlag(FLAGS_model);
  LOCKSTEP_ASSIGN_OR_RETURN(options.compute, ParseComputeKind(absl::GetFlag(FLAGS_compute)));
  options.compute_ms = absl::GetFlag(FLAGS_compute_ms);
  options.wake_per_bucket = absl::GetFlag(FLAGS_wake_per_bucket);
  LOCKSTEP_ASSIGN_OR_RETURN(options.device, ParseDeviceKind(absl::GetFlag(FLAGS_device)));
  options.backend = absl::GetFlag(FLAGS_backend);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.link = absl::GetFlag(FLAGS_link);
  options.throttle = absl::GetFlag(FLAGS_throttle);
  std::vector<size_t>& caps = options.reducer.bucket_caps_bytes;
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_first_bucket_cap_mb), &caps.front()));
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_bucket_cap_mb), &caps.back()));
  if (const std::string dtype = absl::GetFlag(FLAGS_compress); !dtype.empty()) {
    if (dtype != "f16" && dtype != "bf16") return absl::InvalidArgumentError(absl::StrCat("--compress: ", dtype));
    options.reducer.compress = dtype == "f16" ? DType::kF16 : DType::kBF16;
  }
  if (absl::GetFlag(FLAGS_caps_from_last)) options.reducer.caps_from = CapsFrom::kLast;
  LOCKSTEP_ASSIGN_OR_RETURN(options.reducer.average, ParseAverage(absl::GetFlag(FLAGS_average)));
  options.reducer.gradient_as_bucket_view = absl::GetFlag(FLAGS_gradient_as_bucket_view);
  options.reducer.replan = false;
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.overhead_steps = absl::GetFlag(FLAGS_overhead_steps);
  options.pin = absl::GetFlag(FLAGS_pin);
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

int Main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "replays the training steps of a model on ranks that it starts on this machine: its gradients in their order, "
      "and "
      "computation that takes its time; prints steps with and without overlap beside the ideal");
  // Runs again as each rank with these same words, so they must stay as they are.
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    std::fprintf(stderr, "overlap: '%s' is no flag; see --help\n", words[1]);
    return 2;
  }
  const absl::StatusOr<OverlapOptions> options = OptionsFromFlags();
  if (!options.ok()) {
    std::fprintf(stderr, "overlap: %s\n", std::string(options.status().message()).c_str());
    return 2;
  }
  return RunOverlap(*options, argv);
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

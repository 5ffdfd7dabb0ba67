// How well communication hides behind computation, on the gradients of real models. See --help.

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/cuda/cuda_device.h"
#include "base/device/device.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "bench/model.h"
#include "bench/overlap/computation.h"
#include "bench/overlap/rank_program.h"
#include "bench/ranks.h"
#include "comm/schedule/verify/price_table.h"
#include "reducer/reducer.h"

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
          "with --device cuda, what brings gradients to the other ranks: nccl, staged or auto");
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

absl::StatusOr<DeviceKind> ParseDeviceKind(const std::string& text) {
  for (const DeviceKind kind : {DeviceKind::kHost, DeviceKind::kCuda}) {
    if (text == lockstep::Name(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("no device '", text, "'; known are host, cuda"));
}

// A sum is no average, and a factor of the embedder's changes no time.
absl::StatusOr<Average> ParseAverage(const std::string& text) {
  if (text == "before") return Average::kBefore;
  if (text == "after") return Average::kAfter;
  if (text == "in_collective") return Average::kInCollective;
  return absl::InvalidArgumentError(
      absl::StrCat("no way to average '", text, "'; known are before, after, in_collective"));
}

// 0 for "none".
absl::StatusOr<double> LinkBytesPerSecond(const std::string& link) {
  if (link == "none") return 0;
  LOCKSTEP_ASSIGN_OR_RETURN(const double ns_per_byte, ParseBandwidth(link));
  return 1e9 / ns_per_byte;
}

absl::StatusOr<OverlapOptions> OptionsFromFlags() {
  const auto invalid = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  OverlapOptions options;
  options.ranks = absl::GetFlag(FLAGS_nproc);
  if (options.ranks < 2) return invalid(absl::StrCat(options.ranks, " ranks have nothing to average; 2 at least have"));
  LOCKSTEP_ASSIGN_OR_RETURN(options.model, FindModel(absl::GetFlag(FLAGS_model)));
  LOCKSTEP_ASSIGN_OR_RETURN(options.compute, ParseComputeKind(absl::GetFlag(FLAGS_compute)));
  options.compute_ms = absl::GetFlag(FLAGS_compute_ms);
  if (!(options.compute_ms >= 0) || options.compute_ms > 1e6) {
    return invalid(absl::StrCat("a step cannot compute for ", options.compute_ms, " ms"));
  }
  options.wake_per_bucket = absl::GetFlag(FLAGS_wake_per_bucket);
  if (options.wake_per_bucket && options.compute != ComputeKind::kAway) {
    return invalid("who computes does not sleep: --wake_per_bucket goes with --compute away");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(options.device, ParseDeviceKind(absl::GetFlag(FLAGS_device)));
  if (options.device != DeviceKind::kHost && !ComputesOnStream(options.compute)) {
    return invalid("gradients on a GPU are computed by a stream: --device cuda goes with --compute matmul or stream");
  }
  options.backend = absl::GetFlag(FLAGS_backend);
  options.transport = absl::GetFlag(FLAGS_transport);
  options.link = absl::GetFlag(FLAGS_link);
  if (!options.link.empty() && (options.transport == "shm" || options.transport == "ofi")) {
    return invalid("shared memory and libfabric have no link: --link goes with --transport tcp or auto");
  }
  options.throttle = absl::GetFlag(FLAGS_throttle);
  if (options.throttle) {
    if (options.link.empty()) return invalid("--throttle goes with --link");
    LOCKSTEP_ASSIGN_OR_RETURN(options.link_bytes_per_second, LinkBytesPerSecond(options.link));
  }
  std::vector<size_t>& caps = options.reducer.bucket_caps_bytes;
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_first_bucket_cap_mb), &caps.front()));
  LOCKSTEP_RETURN_IF_ERROR(SetCap(absl::GetFlag(FLAGS_bucket_cap_mb), &caps.back()));
  if (const std::string dtype = absl::GetFlag(FLAGS_compress); !dtype.empty()) {
    if (dtype != "f16" && dtype != "bf16") return invalid(absl::StrCat("--compress: ", dtype));
    options.reducer.compress = dtype == "f16" ? DType::kF16 : DType::kBF16;
  }
  if (absl::GetFlag(FLAGS_caps_from_last)) options.reducer.caps_from = CapsFrom::kLast;
  options.average = absl::GetFlag(FLAGS_average);
  LOCKSTEP_ASSIGN_OR_RETURN(options.reducer.average, ParseAverage(options.average));
  options.reducer.gradient_as_bucket_view = absl::GetFlag(FLAGS_gradient_as_bucket_view);
  options.reducer.replan = false;
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.round_time = std::chrono::milliseconds(absl::GetFlag(FLAGS_round_ms));
  options.overhead_steps = absl::GetFlag(FLAGS_overhead_steps);
  if (options.rounds < 1 || options.overhead_steps < 1) return invalid("there must be a round at least");
  if (options.steps < 0 || options.round_time.count() < 1) return invalid("a round has a step or a millisecond");
  options.pin = absl::GetFlag(FLAGS_pin);
  options.json = absl::GetFlag(FLAGS_json);
  return options;
}

// Hosts of the ranks' own, which this machine emulates by tools/emulated-hosts: it runs this program again, with the same arguments, as
// ranks in network namespaces with links between them. Returns only where it does not: 77 where namespaces are not permitted.
int BecomeEmulatedHosts(const OverlapOptions& options, char** argv) {
  const absl::StatusOr<std::string> program = ThisProgram();
  if (!program.ok()) return Complain(program.status());
  // Beside the program as Bazel lays it out, or where a test is started.
  std::string tool = *program + ".runfiles/lockstep/tools/emulated-hosts";
  if (access(tool.c_str(), X_OK) != 0) tool = "tools/emulated-hosts";
  if (access(tool.c_str(), X_OK) != 0) {
    return Complain(absl::NotFoundError(
        absl::StrCat("no ", tool, " in ", *program, ".runfiles/lockstep nor in this folder: --link needs it")));
  }
  // What else is wrong it says itself, when it is run for the measurement.
  const int status = std::system(absl::StrCat("'", tool, "' --hosts 1 -- true >/dev/null 2>&1").c_str());
  if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) return kSkipped;
  std::vector<std::string> words = {tool, "--hosts", absl::StrCat(options.ranks), "--rate", options.link,
                                    "--", *program};
  for (char** word = argv + 1; *word != nullptr; ++word) words.emplace_back(*word);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(tool.c_str(), pointers.data());
  return Complain(ErrnoStatus(errno, absl::StrCat("run ", tool)));
}

// Without network namespaces.
int RunThrottled(const OverlapOptions& options, char** argv) {
  if (const absl::Status rate = LinkBytesPerSecond(options.link).status(); !rate.ok()) {
    return Complain(rate, kWrongUsage);
  }
  std::vector<char*> words;
  for (char** word = argv; *word != nullptr; ++word) words.push_back(*word);
  std::string throttle = "--throttle";
  words.push_back(throttle.data());
  words.push_back(nullptr);
  return RunAsRanks(options.ranks, words.data());
}

int Main(int argc, char** argv) {
  ParseFlags(argc, argv,
             "replays the training steps of a model on ranks that it starts on this machine: its gradients in their "
             "order, and computation that takes its time; prints steps with and without overlap beside the ideal");
  const absl::StatusOr<OverlapOptions> options = OptionsFromFlags();
  if (!options.ok()) return Complain(options.status(), kWrongUsage);
  if (IsRank()) {
    const absl::Status status = RunOverlapRank(*options);
    return status.ok() ? 0 : Complain(status);
  }
  if (options->device != DeviceKind::kHost) {
    if (const absl::Status gpus = CudaDeviceCount().status(); !gpus.ok()) return Complain(gpus, kSkipped);
  }
  if (options->link.empty() || options->throttle) return RunAsRanks(options->ranks, argv);
  const int exit_status = BecomeEmulatedHosts(*options, argv);
  return exit_status == kSkipped ? RunThrottled(*options, argv) : exit_status;
}

}  // namespace
}  // namespace bench
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }

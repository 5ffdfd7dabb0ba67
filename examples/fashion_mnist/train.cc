// Trains a network on Fashion-MNIST with several processes, whose gradients Lockstep averages. From top to bottom: the flags,
// what they set in Lockstep, a step of training, an epoch, and how the processes are started.

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "capi/lockstep.h"
#include "examples/fashion_mnist/data.h"
#include "examples/fashion_mnist/model.h"
#include "examples/fashion_mnist/reducer.h"

ABSL_FLAG(int, nproc, 2, "processes to train with");
ABSL_FLAG(int, epochs, 5, "passes over the training images");
ABSL_FLAG(int, steps, 0, "stop after so many steps; 0: after the last epoch");
ABSL_FLAG(int, batch, 256, "images in a step, of all processes together");
ABSL_FLAG(uint64_t, seed, 1, "of the initial parameters and of the order of the images");
ABSL_FLAG(int, log_every, 0, "print the loss of each step whose number this divides; 0: of none");
ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "folder with the four IDX files, plain or .gz");
ABSL_FLAG(std::string, transport, "", "auto, tcp, shm or ofi (libfabric); empty: LOCKSTEP_TRANSPORT, or auto");
ABSL_FLAG(double, bucket_mb, 1, "size from which a bucket of gradients is sent, in MiB");
ABSL_FLAG(bool, no_overlap, false, "send gradients after the backward pass, not while it computes the next ones");
ABSL_FLAG(
    std::string, hook, "none",
    "what averages gradients: none (an all-reduce), all_reduce (the same), fp16_compress, bf16_compress, callback "
    "(of this program), or noop (nothing: the replicas drift apart)");
ABSL_FLAG(bool, find_unused, false, "in a quarter of the micro-batches each process leaves out a layer that it draws");
ABSL_FLAG(bool, static_graph, false, "the inner layers share their weights, whose gradients are marked several times");
ABSL_FLAG(int, accumulate, 1, "micro-batches that a process cuts its part of a batch into, whose gradients add up");
ABSL_FLAG(std::string, sync_strategy, "single_auto_sync",
          "when gradients are averaged: in the backward pass of the last micro-batch (single_auto_sync), of each one "
          "(multi_auto_sync), or after all of them (forced_sync)");
ABSL_FLAG(bool, mixed_precision, false, "compute with parameters that are rounded to bf16, and send gradients as bf16");
ABSL_FLAG(bool, optimizer_in_backward, false, "step parameters bucket by bucket while the backward pass goes on");

namespace fashion_mnist {
namespace {

using absl::GetFlag;
using absl::StrCat;

constexpr int kHidden = 512;
constexpr int kInnerLayers = 3;
constexpr float kLearningRatePeak = 0.1f;
constexpr int kWrongUsage = 2;

constexpr std::pair<const char*, lockstep_hook> kHooks[] = {{"none", LOCKSTEP_HOOK_NONE},
                                                            {"all_reduce", LOCKSTEP_HOOK_ALL_REDUCE},
                                                            {"fp16_compress", LOCKSTEP_HOOK_FP16_COMPRESS},
                                                            {"bf16_compress", LOCKSTEP_HOOK_BF16_COMPRESS},
                                                            {"callback", LOCKSTEP_HOOK_CALLBACK},
                                                            {"noop", LOCKSTEP_HOOK_NOOP}};

// The hook of this name; -1: there is none.
lockstep_hook HookNamed(const std::string& wanted) {
  for (const auto& [name, hook] : kHooks) {
    if (name == wanted) return hook;
  }
  return -1;
}

lockstep_reducer_options ReducerOptions() {
  lockstep_reducer_options options;
  LOCKSTEP_INIT(options);
  options.bucket_cap_bytes = std::max<int64_t>(1, std::llround(GetFlag(FLAGS_bucket_mb) * (1 << 20)));
  options.no_overlap = GetFlag(FLAGS_no_overlap) ? 1 : 0;
  options.find_unused_parameters = GetFlag(FLAGS_find_unused) ? 1 : 0;
  options.static_graph = GetFlag(FLAGS_static_graph) ? 1 : 0;
  options.hook = HookNamed(GetFlag(FLAGS_hook));
  if (options.hook == LOCKSTEP_HOOK_CALLBACK) {
    options.hook_name = "two_phase";
    options.hook_issue = AverageInTwoPhases;
  }
  return options;
}

// What is wrong with the flags, for so many processes; "" when nothing is.
std::string WrongUsage(int processes) {
  const int batch = GetFlag(FLAGS_batch), accumulate = GetFlag(FLAGS_accumulate);
  const std::string hook = GetFlag(FLAGS_hook), strategy = GetFlag(FLAGS_sync_strategy);
  const bool single = strategy == "single_auto_sync", multi = strategy == "multi_auto_sync";
  const bool forced = strategy == "forced_sync", in_backward = GetFlag(FLAGS_optimizer_in_backward);
  const double bucket_mb = GetFlag(FLAGS_bucket_mb);

  const std::pair<const char*, int> above_zero[] = {
      {"nproc", processes}, {"epochs", GetFlag(FLAGS_epochs)}, {"batch", batch}, {"accumulate", accumulate}};
  for (const auto& [flag, value] : above_zero) {
    if (value < 1) return StrCat("--", flag, " is ", value, "; it takes 1 or more");
  }
  const std::pair<bool, std::string> refused[] = {
      {!(bucket_mb > 0 && bucket_mb <= 65536),  // also NaN
       StrCat("--bucket-mb is ", bucket_mb, "; it takes MiB, above 0 and at most 65536")},
      {HookNamed(hook) < 0,
       StrCat("--hook is '", hook, "'; it takes none, all_reduce, fp16_compress, bf16_compress, callback or noop")},
      {!single && !multi && !forced,
       StrCat("--sync-strategy is '", strategy, "'; it takes single_auto_sync, multi_auto_sync or forced_sync")},
      {batch % processes != 0, StrCat("a batch of ", batch, " images cannot be divided equally among ", processes,
                                      " processes; choose another --batch or --nproc")},
      {batch / processes % accumulate != 0,
       StrCat("a process's ", batch / processes, " images of a batch cannot be cut into ", accumulate,
              " equal micro-batches; choose another --batch or --accumulate")},
      {GetFlag(FLAGS_find_unused) && GetFlag(FLAGS_static_graph),
       "--find-unused leaves out other layers in each step, and with --static-graph all steps are alike"},
      {GetFlag(FLAGS_mixed_precision) && absl::EndsWith(hook, "_compress"),
       StrCat("--mixed-precision sends gradients as bf16; there is nothing left for --hook=", hook, " to compress")},
      {in_backward && GetFlag(FLAGS_no_overlap),
       "--optimizer-in-backward needs averages during the backward pass; --no-overlap has none"},
      {in_backward && forced,
       "--optimizer-in-backward needs averages during the backward pass; --sync-strategy=forced_sync has none"},
      {in_backward && multi && accumulate > 1,
       "--optimizer-in-backward would step once for each micro-batch with --sync-strategy=multi_auto_sync"},
  };
  for (const auto& [wrong, reason] : refused) {
    if (wrong) return reason;
  }
  return "";
}

// Stochastic depth (Huang et al. 2016): in a quarter of the micro-batches one of the inner layers, each as likely as
// another; else -1. Each rank draws for itself, so that ranks use different parameters.
int DrawSkippedLayer(uint64_t rank, uint64_t step, uint64_t micro_batch) {
  const uint64_t seed = GetFlag(FLAGS_seed);
  std::seed_seq words = {seed, seed >> 32, rank, step, step >> 32, micro_batch};  // of each the lower 32 bits
  uint32_t draw[2];
  words.generate(draw, draw + 2);
  return draw[0] % 4 != 0 ? -1 : 1 + static_cast<int>(draw[1] % kInnerLayers);
}

// One process's replica, and its part of each batch.
class Trainer {
 public:
  Trainer(const Communicator& communicator, const Dataset& training, const Dataset& test)
      : communicator_(communicator),
        training_(training),
        test_(test),
        steps_per_epoch_(static_cast<int>(training.count()) / GetFlag(FLAGS_batch)),
        // Seeded differently on every rank on purpose: that they start equal is the broadcast's doing.
        model_({kPixels, kHidden, kInnerLayers, kClasses, GetFlag(FLAGS_static_graph)},
               GetFlag(FLAGS_seed) + static_cast<uint64_t>(communicator.rank())),
        reducer_(communicator, &model_.parameters(), ReducerOptions(), GetFlag(FLAGS_mixed_precision),
                 StepInBackward()) {
    reducer_.BroadcastParameters();
    if (!GetFlag(FLAGS_mixed_precision)) return;
    for (Parameter& parameter : model_.parameters()) {
      parameter.master = parameter.value;
      RoundToBf16(parameter.master, &parameter.value);
    }
  }

  void TrainEpoch(int epoch) {
    const std::vector<uint32_t> order = SampleOrder(training_.count(), GetFlag(FLAGS_seed), epoch);
    const int batch = GetFlag(FLAGS_batch), part = batch / communicator_.size();
    const auto begin = std::chrono::steady_clock::now();
    double loss_sum = 0;
    int steps = 0;
    // Images beyond the last whole batch have their turn in another epoch's order.
    for (; steps < steps_per_epoch_ && !finished(); ++steps) {
      training_.Gather(&order[steps * batch + communicator_.rank() * part], part, &batch_);
      const double loss = Step();
      loss_sum += loss;
      LogStep(loss);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    const auto [hidden_ms, exposed_ms] = reducer_.TakeHiddenAndExposedMs();
    const double loss = communicator_.Sum(loss_sum / steps) / communicator_.size();
    const double accuracy = Accuracy();
    if (communicator_.rank() == 0) {
      absl::PrintF("epoch %d/%d  training loss %.4f  test accuracy %.2f %%  %.0f images/s\n", epoch + 1,
                   GetFlag(FLAGS_epochs), loss, 100 * accuracy, steps * batch / seconds.count());
      absl::PrintF(
          "  communication per step, in %d buckets: hidden %.3f ms, exposed %.3f ms;  parameters' hash %016x\n",
          reducer_.buckets(), hidden_ms / steps, exposed_ms / steps, HashOfParameters());
    }
    // What data-parallel training stands on: replicas never differ, not by a bit.
    reducer_.CheckReplicas();
    if (communicator_.rank() == 0 && (epoch + 1 == GetFlag(FLAGS_epochs) || finished())) {
      absl::PrintF("the replicas of all %d ranks are equal\n", communicator_.size());
    }
  }

  bool finished() const { return GetFlag(FLAGS_steps) > 0 && step_ >= GetFlag(FLAGS_steps); }

 private:
  void LogStep(double local_loss) {
    if (GetFlag(FLAGS_log_every) <= 0 || step_ % GetFlag(FLAGS_log_every) != 0) return;
    const double loss = communicator_.Sum(local_loss) / communicator_.size();
    if (communicator_.rank() == 0) absl::PrintF("step %d  loss %.6f\n", step_, loss);
  }

  // Trains with this rank's part of a batch. Returns this rank's mean loss.
  double Step() {
    const std::string strategy = GetFlag(FLAGS_sync_strategy);
    const int micro_batches = GetFlag(FLAGS_accumulate);
    const int micro_batch = batch_.count / micro_batches;
    learning_rate_ = LearningRate(kLearningRatePeak, step_, GetFlag(FLAGS_epochs) * steps_per_epoch_);
    model_.ClearGradients();
    double loss = 0;
    for (int m = 0; m < micro_batches; ++m) {
      const bool last = m + 1 == micro_batches;
      const int skipped = GetFlag(FLAGS_find_unused) ? DrawSkippedLayer(communicator_.rank(), step_, m) : -1;
      // The mean of the micro-batches' mean losses is the batch's, and so are its derivatives.
      loss += model_.Forward(batch_.inputs.data() + m * micro_batch * kPixels, batch_.labels.data() + m * micro_batch,
                             micro_batch, 1.0f / static_cast<float>(micro_batches), skipped);
      if (strategy == "forced_sync") {
        // For frameworks whose backward passes cannot be watched: all at once, and nothing to hide communication behind.
        model_.Backward([](size_t) {});
        if (last) AverageWhatThereIs();
        continue;
      }
      reducer_.BeginBackward(last || strategy == "multi_auto_sync", model_.ParametersOf(skipped));
      model_.Backward([this](size_t index) { reducer_.MarkReady(index); });
      reducer_.EndBackward();
    }
    if (!GetFlag(FLAGS_optimizer_in_backward)) {
      for (Parameter& parameter : model_.parameters()) {
        if (parameter.has_gradient) StepParameter(&parameter, parameter.gradient.data(), learning_rate_);
      }
    }
    ++step_;
    return loss / micro_batches;
  }

  Reducer::OptimizerStep StepInBackward() {
    if (!GetFlag(FLAGS_optimizer_in_backward)) return nullptr;
    return [this](size_t index, const float* average) {
      StepParameter(&model_.parameters()[index], average, learning_rate_);
    };
  }

  void AverageWhatThereIs() {
    std::vector<size_t> all(model_.parameters().size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = all.size() - 1 - i;
    reducer_.BeginBackward(/*sync=*/true, all);
    reducer_.EndBackward();
  }

  // On the test images, of which each rank classifies its part.
  double Accuracy() {
    const size_t begin = test_.count() * communicator_.rank() / communicator_.size();
    const size_t end = test_.count() * (communicator_.rank() + 1) / communicator_.size();
    std::vector<uint32_t> samples(end - begin);
    std::iota(samples.begin(), samples.end(), static_cast<uint32_t>(begin));
    int correct = 0;
    for (size_t i = 0; i < samples.size(); i += 500) {
      test_.Gather(&samples[i], static_cast<int>(std::min<size_t>(500, samples.size() - i)), &batch_);
      correct += model_.CountCorrect(batch_.inputs.data(), batch_.labels.data(), batch_.count);
    }
    return communicator_.Sum(correct) / static_cast<double>(test_.count());
  }

  uint64_t HashOfParameters() {
    uint64_t hash = 0;
    for (const Parameter& parameter : model_.parameters()) {
      const std::vector<float>& values = parameter.master.empty() ? parameter.value : parameter.master;
      hash = XXH3_64bits_withSeed(values.data(), values.size() * sizeof(float), hash);
    }
    return hash;
  }

  const Communicator& communicator_;
  const Dataset& training_;
  const Dataset& test_;
  const int steps_per_epoch_;
  int step_ = 0;
  float learning_rate_ = 0;  // of this step
  Batch batch_;
  Model model_;
  Reducer reducer_;  // behind what its thread uses: it ends first
};

// Becomes lockstep-run with --nproc ranks of this program, of which rank 0 has the terminal.
[[noreturn]] void BecomeLauncher(char** argv) {
  char own_path[PATH_MAX] = "";
  if (readlink("/proc/self/exe", own_path, PATH_MAX - 1) < 0) Fail(StrCat("read /proc/self/exe: ", strerror(errno)));
  const std::string program = own_path;
  // Where Bazel builds it, or in PATH.
  std::string launcher = StrCat(program.substr(0, program.rfind('/')), "/../../launch/lockstep-run");
  if (access(launcher.c_str(), X_OK) != 0) launcher = "lockstep-run";
  if (const char* path = getenv("LOCKSTEP_RUN")) launcher = path;

  std::vector<std::string> words = {launcher, "-n", StrCat(GetFlag(FLAGS_nproc)), "--foreground", "0", program};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(&word[0]);
  for (char** word = argv + 1; *word != nullptr; ++word) arguments.push_back(*word);
  arguments.push_back(nullptr);
  setenv("OPENBLAS_NUM_THREADS", "1", 0);  // the processes share the cores
  execvp(launcher.c_str(), arguments.data());
  Fail(StrCat("run ", launcher, ": ", strerror(errno), "; LOCKSTEP_RUN may say where it is"));
}

// Whether a launcher has started this process.
bool IsRank() {
  for (const char* name : {"LOCKSTEP_WORLD_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (getenv(name) != nullptr) return true;
  }
  return false;
}

void Run(char** argv) {
  if (!IsRank()) {
    const std::string wrong = WrongUsage(GetFlag(FLAGS_nproc));
    if (!wrong.empty()) Fail(StrCat(wrong, "; see --help"), kWrongUsage);
    BecomeLauncher(argv);
  }
  // `bazel run` changes the folder and says in which one the user is.
  if (const char* folder = getenv("BUILD_WORKING_DIRECTORY"); folder != nullptr && chdir(folder) != 0) {
    Fail(StrCat("change to ", folder, ": ", strerror(errno)));
  }
  // The data first: a rank that cannot go on should say so before others wait for it.
  const absl::StatusOr<Dataset> training = LoadDataset(GetFlag(FLAGS_data), "train");
  if (!training.ok()) Fail(std::string(training.status().message()));
  if (training->count() < GetFlag(FLAGS_batch)) {
    Fail(StrCat("--batch is ", GetFlag(FLAGS_batch), ", more than the ", training->count(), " training images"),
         kWrongUsage);
  }
  const absl::StatusOr<Dataset> test = LoadDataset(GetFlag(FLAGS_data), "t10k");
  if (!test.ok()) Fail(std::string(test.status().message()));

  const Communicator communicator(GetFlag(FLAGS_transport));
  const std::string wrong = WrongUsage(communicator.size());
  if (!wrong.empty()) Fail(wrong, kWrongUsage);
  Trainer trainer(communicator, *training, *test);
  for (int epoch = 0; epoch < GetFlag(FLAGS_epochs) && !trainer.finished(); ++epoch) trainer.TrainEpoch(epoch);
}

}  // namespace
}  // namespace fashion_mnist

int main(int argc, char** argv) {
  setlinebuf(stdout);
  // --find-unused is --find_unused.
  for (int i = 1; i < argc; ++i) {
    char* const end = argv[i] + strlen(argv[i]);
    if (absl::StartsWith(argv[i], "--")) std::replace(argv[i] + 2, std::find(argv[i] + 2, end, '='), '-', '_');
  }
  absl::SetProgramUsageMessage(
      "Trains a network on Fashion-MNIST with several processes, whose gradients Lockstep averages.\n"
      "Alone it starts --nproc processes with lockstep-run; under lockstep-run, torchrun or mpirun it is one of "
      "theirs.");
  const std::vector<char*> words = absl::ParseCommandLine(argc, argv);
  if (words.size() > 1) {
    fashion_mnist::Fail(absl::StrCat("'", words[1], "' is no flag; see --help"), fashion_mnist::kWrongUsage);
  }
  fashion_mnist::Run(argv);
}

#include "examples/fashion_mnist/trainer.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/fashion_mnist/averager.h"
#include "examples/fashion_mnist/model.h"
#include "examples/fashion_mnist/progress.h"
#include "examples/fashion_mnist/sampler.h"
#include "examples/fashion_mnist/sgd.h"
#include "examples/fashion_mnist/stepper.h"

namespace fashion_mnist {
namespace {

constexpr int kHiddenWidth = 512;
constexpr size_t kTestBatch = 500;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

uint64_t Hash(const std::vector<Parameter>& parameters) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const Parameter& parameter : parameters) {
    // Where there is a master copy, the value follows from it.
    const std::vector<float>& values = parameter.master.empty() ? parameter.value : parameter.master;
    XXH3_64bits_update(&state, values.data(), values.size() * sizeof(float));
  }
  return XXH3_64bits_digest(&state);
}

class Trainer {
 public:
  Trainer(const Options& options, const Dataset& training, const Dataset& test, World* world)
      : options_(options),
        training_(training),
        test_(test),
        world_(*world),
        local_batch_(options.batch / world->size()),
        // Seeded differently on every rank on purpose: that they start equal is the broadcast's doing.
        model_({static_cast<int>(training.pixels_per_image()), kHiddenWidth, kHiddenWidth, kHiddenWidth, kHiddenWidth,
                kClasses},
               options.seed + static_cast<uint64_t>(world->rank()),
               options.static_graph ? HiddenWeights::kShared : HiddenWeights::kOwn),
        progress_(world->rank() == 0 ? stdout : nullptr) {}

  absl::Status Run() {
    absl::Status status = Prepare();
    if (!status.ok()) return status;
    for (int epoch = 0; epoch < options_.epochs && !finished(); ++epoch) {
      status = RunEpoch(epoch);
      if (!status.ok()) return status;
    }
    Report();
    return absl::OkStatus();
  }

 private:
  bool finished() const { return options_.steps > 0 && step_ >= options_.steps; }
  int64_t steps_per_epoch() const { return static_cast<int64_t>(training_.count) / options_.batch; }

  absl::Status Prepare() {
    if (!options_.log_losses.empty() && world_.rank() == 0) {
      losses_.reset(std::fopen(options_.log_losses.c_str(), "w"));
      if (losses_ == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat("open ", options_.log_losses, ": ", strerror(errno)));
      }
    }
    absl::StatusOr<std::unique_ptr<Stepper>> stepper = Stepper::Create(options_, &world_, &model_);
    if (!stepper.ok()) return stepper.status();
    stepper_ = *std::move(stepper);
    return absl::OkStatus();
  }

  absl::Status RunEpoch(int epoch) {
    const std::vector<uint32_t> order = SampleOrder(training_.count, options_.seed, epoch);
    progress_.BeginEpoch(epoch, options_.epochs, steps_per_epoch());
    double loss_sum = 0;
    int64_t steps = 0;
    // Images beyond the last whole batch have their turn in another epoch's order.
    for (; steps < steps_per_epoch() && !finished(); ++steps) {
      const size_t begin = steps * options_.batch + world_.rank() * local_batch_;
      absl::StatusOr<double> loss = RunStep(order.data() + begin);
      if (!loss.ok()) return loss.status();
      loss_sum += *loss;
      progress_.Step(steps, options_.batch, *loss);
    }
    progress_.EndEpoch();

    const absl::Status equal = world_.CheckEqual(Hash(model_.parameters()));
    if (!equal.ok()) {
      return absl::Status(equal.code(), absl::StrCat("after epoch ", epoch + 1, ": ", equal.message()));
    }
    const absl::StatusOr<double> loss = world_.Mean(loss_sum / static_cast<double>(steps));
    if (!loss.ok()) return loss.status();
    const absl::Status evaluated = Evaluate();
    if (!evaluated.ok()) return evaluated;
    progress_.Print(absl::StrFormat("epoch %d/%d  training loss %.4f  test accuracy %.2f %%  %.0f images/s", epoch + 1,
                                    options_.epochs, *loss, 100 * accuracy_, progress_.images_per_second()));
    return absl::OkStatus();
  }

  // `samples` are this rank's part of the batch. Returns this rank's loss.
  absl::StatusOr<double> RunStep(const uint32_t* samples) {
    Gather(training_, samples, local_batch_);
    const absl::StatusOr<double> loss =
        stepper_->Run(inputs_.data(), labels_.data(), local_batch_,
                      LearningRate(options_.learning_rate, step_, options_.epochs * steps_per_epoch()));
    if (!loss.ok()) return loss.status();
    ++step_;
    const absl::Status status = LogLoss(*loss);
    if (!status.ok()) return status;
    return loss;
  }

  absl::Status LogLoss(double local_loss) {
    if (options_.log_losses.empty()) return absl::OkStatus();
    const absl::StatusOr<double> loss = world_.Mean(local_loss);
    if (!loss.ok()) return loss.status();
    if (losses_ != nullptr && absl::FPrintF(losses_.get(), "%d %.17g\n", step_, *loss) < 0) {
      return absl::DataLossError(absl::StrCat("write ", options_.log_losses, ": ", strerror(errno)));
    }
    return absl::OkStatus();
  }

  // Each rank classifies its part of the test images.
  absl::Status Evaluate() {
    const Range part = PartOf(test_.count, world_.rank(), world_.size());
    std::vector<uint32_t> samples;
    int64_t correct = 0;
    for (size_t begin = part.begin; begin < part.end; begin += samples.size()) {
      samples.resize(std::min(kTestBatch, part.end - begin));
      for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<uint32_t>(begin + i);
      Gather(test_, samples.data(), samples.size());
      correct += model_.CountCorrect(inputs_.data(), labels_.data(), static_cast<int>(samples.size()));
    }
    const absl::StatusOr<int64_t> all_correct = world_.Sum(correct);
    if (!all_correct.ok()) return all_correct.status();
    accuracy_ = static_cast<double>(*all_correct) / static_cast<double>(test_.count);
    return absl::OkStatus();
  }

  void Gather(const Dataset& dataset, const uint32_t* samples, size_t count) {
    const size_t pixels = dataset.pixels_per_image();
    inputs_.resize(count * pixels);
    labels_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      NormalizeImage(dataset, samples[i], inputs_.data() + i * pixels);
      labels_[i] = dataset.labels[samples[i]];
    }
  }

  void Report() {
    const Averager& averager = stepper_->averager();
    progress_.Print(absl::StrFormat("test accuracy           %.2f %%", 100 * accuracy_));
    progress_.Print(absl::StrFormat("images/s                %.0f", progress_.images_per_second()));
    progress_.Print(absl::StrFormat("communication per step  hidden %.3f ms, exposed %.3f ms",
                                    averager.hidden_ms() / static_cast<double>(step_),
                                    averager.exposed_ms() / static_cast<double>(step_)));
    progress_.Print(absl::StrFormat("buckets                 %d", averager.buckets()));
  }

  const Options& options_;
  const Dataset& training_;
  const Dataset& test_;
  World& world_;
  const size_t local_batch_;
  Model model_;
  Progress progress_;
  std::unique_ptr<Stepper> stepper_;
  File losses_;  // of rank 0
  int64_t step_ = 0;
  double accuracy_ = 0;  // of the last epoch, on the test images
  std::vector<float> inputs_;
  std::vector<uint8_t> labels_;
};

}  // namespace

absl::Status CheckSetUp(const Options& options, const Dataset& training, const Dataset& test, int processes) {
  const absl::Status divisible = CheckDivisible(options.batch, processes, options.accumulate);
  if (!divisible.ok()) return divisible;
  if (static_cast<size_t>(options.batch) > training.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", options.batch, " is more than the ", training.count, " training images"));
  }
  if (test.rows != training.rows || test.columns != training.columns) {
    return absl::DataLossError(absl::StrCat("the test images have ", test.rows, " x ", test.columns,
                                            " pixels, the training images ", training.rows, " x ", training.columns));
  }
  return absl::OkStatus();
}

absl::Status Train(const Options& options, const Dataset& training, const Dataset& test, World* world) {
  return Trainer(options, training, test, world).Run();
}

}  // namespace fashion_mnist

#include "examples/fashion_mnist/stepper.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "capi/lockstep.h"
#include "examples/fashion_mnist/bf16.h"
#include "examples/fashion_mnist/choices.h"
#include "examples/fashion_mnist/stochastic_depth.h"

namespace fashion_mnist {
namespace {

constexpr float kMomentum = 0.9f;

lockstep_hook ToLockstep(Hook hook) {
  switch (hook) {
    case Hook::kNone:
      return LOCKSTEP_HOOK_NONE;
    case Hook::kAllReduce:
      return LOCKSTEP_HOOK_ALL_REDUCE;
    case Hook::kFp16Compress:
      return LOCKSTEP_HOOK_FP16_COMPRESS;
    case Hook::kBf16Compress:
      return LOCKSTEP_HOOK_BF16_COMPRESS;
    case Hook::kCallback:
      return LOCKSTEP_HOOK_CALLBACK;
  }
  return LOCKSTEP_HOOK_NONE;  // not reached
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stepper>> Stepper::Create(const Options& options, World* world, Model* model) {
  std::unique_ptr<Stepper> stepper(new Stepper(options, world, model));
  const absl::Status status = stepper->Connect();
  if (!status.ok()) return status;
  return stepper;
}

Stepper::Stepper(const Options& options, World* world, Model* model)
    : options_(options), world_(*world), model_(*model), sgd_(&model->parameters(), kMomentum) {}

absl::Status Stepper::Connect() {
  Averager::Options options;
  options.bucket_bytes = std::max<int64_t>(1, std::llround(options_.bucket_mb * (1 << 20)));
  options.overlap = options_.overlap;
  options.hook = ToLockstep(options_.hook);
  options.find_unused = options_.find_unused;
  options.static_graph = options_.static_graph;
  options.bf16_gradients = options_.mixed_precision;
  if (options_.optimizer_in_backward) {
    options.optimizer_step = [this](size_t index, const float* average) { sgd_.Step(index, average, learning_rate_); };
  }
  absl::StatusOr<std::unique_ptr<Averager>> averager = Averager::Create(&world_, &model_.parameters(), options);
  if (!averager.ok()) return averager.status();
  averager_ = *std::move(averager);
  const absl::Status status = averager_->BroadcastParameters();
  if (!status.ok() || !options_.mixed_precision) return status;
  for (Parameter& parameter : model_.parameters()) {
    parameter.master = parameter.value;
    RoundToBf16(parameter.master, &parameter.value);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Stepper::Run(const float* inputs, const uint8_t* labels, size_t count, float learning_rate) {
  const int micro_batches = options_.accumulate;
  const size_t micro_batch = count / micro_batches;
  learning_rate_ = learning_rate;
  model_.ClearGradients();
  double loss = 0;
  for (int m = 0; m < micro_batches; ++m) {
    ForwardOptions forward;
    // The mean of the micro-batches' mean losses is the batch's, and so are its derivatives.
    forward.weight = 1.0f / static_cast<float>(micro_batches);
    if (options_.find_unused) {
      forward.skipped_layer = DrawSkippedLayer(model_.skippable_layers(), options_.seed, world_.rank(), step_, m);
    }
    const size_t first = m * micro_batch;
    loss += model_.Forward(inputs + first * model_.inputs(), labels + first, static_cast<int>(micro_batch), forward);

    absl::Status status;
    if (options_.sync_strategy == SyncStrategy::kForcedSync) {
      model_.Backward([](size_t) {});
      if (m + 1 == micro_batches) status = AverageGradients();
    } else {
      const bool sync = m + 1 == micro_batches || options_.sync_strategy == SyncStrategy::kMultiAutoSync;
      status = BackwardWithAverages(sync ? Averager::Sync::kYes : Averager::Sync::kNo, forward.skipped_layer);
    }
    if (!status.ok()) return status;
  }
  if (!options_.optimizer_in_backward) sgd_.StepAll(learning_rate);
  ++step_;
  return loss / micro_batches;
}

absl::Status Stepper::BackwardWithAverages(Averager::Sync sync, int skipped_layer) {
  // Of the skipped layer there may be gradients all the same, of earlier micro-batches. They are complete.
  std::vector<size_t> complete;
  std::vector<size_t> unused;
  if (skipped_layer >= 0) {
    for (const size_t index : model_.parameters_of(skipped_layer)) {
      (model_.parameters()[index].has_gradient ? complete : unused).push_back(index);
    }
  }
  const absl::Status status = averager_->BeginBackward(sync, unused);
  if (!status.ok()) return status;
  for (const size_t index : complete) averager_->MarkReady(index);
  model_.Backward([this](size_t index) { averager_->MarkReady(index); });
  return averager_->EndBackward();
}

absl::Status Stepper::AverageGradients() {
  const std::vector<Parameter>& parameters = model_.parameters();
  std::vector<size_t> unused;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].has_gradient) unused.push_back(i);
  }
  const absl::Status status = averager_->BeginBackward(Averager::Sync::kYes, unused);
  if (!status.ok()) return status;
  for (size_t i = parameters.size(); i-- > 0;) {
    if (parameters[i].has_gradient) averager_->MarkReady(i);
  }
  return averager_->EndBackward();
}

}  // namespace fashion_mnist

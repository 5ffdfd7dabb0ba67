#include "bench/overlap/replay.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "reducer/bucket_plan.h"
#include "reducer/parameter.h"

namespace lockstep {
namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double ProcessorSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

size_t AlignedElements(size_t elements) {
  constexpr size_t kUnit = BucketPlan::kAlignment / sizeof(float);
  return (elements + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replay>> Replay::Create(const Team& team, const ModelTable& model,
                                                       const ReducerOptions& options) {
  std::unique_ptr<Replay> replay(new Replay(team, model));
  LOCKSTEP_RETURN_IF_ERROR(replay->CreateReducer(options));
  LOCKSTEP_RETURN_IF_ERROR(options.gradient_as_bucket_view ? replay->FindGradientsInBuckets()
                                                           : replay->AllocateGradients());
  return replay;
}

Replay::Replay(const Team& team, const ModelTable& model) : team_(team), model_(model) {}

absl::Status Replay::AllocateGradients() {
  size_t elements = 0;
  for (const ModelParameter& parameter : model_.parameters) elements += AlignedElements(parameter.elements());
  memory_.assign(elements, own_value());
  float* next = memory_.data();
  for (const ModelParameter& parameter : model_.parameters) {
    gradients_.emplace_back(next, parameter.elements());
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Create(next, DType::kF32, parameter.shape, {}, DeviceId()));
    views_.push_back(std::move(view));
    next += AlignedElements(parameter.elements());
  }
  return absl::OkStatus();
}

absl::Status Replay::FindGradientsInBuckets() {
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, reducer_->GradientView(p));
    gradients_.emplace_back(static_cast<float*>(view.data()), view.elements());
    views_.push_back(std::move(view));
  }
  return absl::OkStatus();
}

absl::Status Replay::CreateReducer(const ReducerOptions& options) {
  std::vector<Parameter> parameters;
  for (const ModelParameter& of_model : model_.parameters) {
    Parameter parameter;
    parameter.name = of_model.name;
    parameter.shape = of_model.shape;
    parameters.push_back(std::move(parameter));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(reducer_, Reducer::Create(team_.communicator(), std::move(parameters), options));
  return absl::OkStatus();
}

absl::Status Replay::TakeLargest(std::vector<double>* values) const {
  for (double& value : *values) {
    LOCKSTEP_ASSIGN_OR_RETURN(value, team_.Largest(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<Replay::ComputeTimes> Replay::ComputeOnly(Computation& computation, int steps) {
  const BucketPlan& plan = reducer_->plan();
  ComputeTimes times;
  times.ready_seconds.assign(plan.buckets.size(), 0);
  std::vector<double> ready(plan.buckets.size());
  LOCKSTEP_RETURN_IF_ERROR(team_.Barrier());
  const Clock::time_point begin = Clock::now();
  for (int step = 0; step < steps; ++step) {
    const Clock::time_point step_begin = Clock::now();
    computation.Begin();
    computation.Forward();
    for (size_t left = gradients_.size(); left > 0; --left) {
      computation.Backward(left - 1);
      // The last gradient of a bucket has the last word.
      ready[plan.locations[left - 1].bucket] = SecondsSince(step_begin);
    }
    for (size_t b = 0; b < ready.size(); ++b) times.ready_seconds[b] += ready[b] / steps;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(times.seconds, team_.Largest(SecondsSince(begin) / steps));
  LOCKSTEP_RETURN_IF_ERROR(TakeLargest(&times.ready_seconds));
  return times;
}

absl::StatusOr<Replay::WireTimes> Replay::CommunicationOnly(int steps, bool background) {
  const BucketPlan& plan = reducer_->plan();
  if (wire_memory_ == nullptr) {
    size_t bytes = 0;
    for (const BucketPlan::Bucket& bucket : plan.buckets) bytes += AlignedElements(bucket.elements) * sizeof(float);
    LOCKSTEP_ASSIGN_OR_RETURN(wire_memory_, team_.communicator()->Allocate(bytes));
  }
  WireTimes times;
  times.seconds.assign(plan.buckets.size(), 0);
  times.processor_seconds.assign(plan.buckets.size(), 0);
  for (int step = 0; step < steps; ++step) {
    char* next = wire_memory_->data();
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = plan.buckets[b].dtype;
      request.op = ReduceOp::kSum;
      request.count = plan.buckets[b].elements;
      request.input = next;
      request.output = next;
      request.background = background;
      next += AlignedElements(plan.buckets[b].elements) * sizeof(float);
      LOCKSTEP_RETURN_IF_ERROR(team_.Barrier());
      const double processor_begin = ProcessorSeconds();
      const Clock::time_point begin = Clock::now();
      LOCKSTEP_RETURN_IF_ERROR(team_.communicator()->Run(request));
      times.seconds[b] += SecondsSince(begin) / steps;
      times.processor_seconds[b] += (ProcessorSeconds() - processor_begin) / steps;
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(TakeLargest(&times.seconds));
  LOCKSTEP_RETURN_IF_ERROR(TakeLargest(&times.processor_seconds));
  return times;
}

absl::Status Replay::Overlapped(Computation& computation) {
  computation.Begin();
  computation.Forward();
  LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward({}));
  for (size_t left = gradients_.size(); left > 0; --left) {
    computation.Backward(left - 1);
    LOCKSTEP_RETURN_IF_ERROR(MarkReady(left - 1));
  }
  return reducer_->EndBackward(/*stream=*/nullptr);
}

absl::Status Replay::OneAfterTheOther(Computation& computation) {
  computation.Begin();
  computation.Forward();
  for (size_t left = gradients_.size(); left > 0; --left) computation.Backward(left - 1);
  LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward({}));
  for (size_t left = gradients_.size(); left > 0; --left) LOCKSTEP_RETURN_IF_ERROR(MarkReady(left - 1));
  return reducer_->EndBackward(/*stream=*/nullptr);
}

absl::StatusOr<double> Replay::Step(Computation& computation, int steps, bool overlap) {
  LOCKSTEP_RETURN_IF_ERROR(team_.Barrier());
  const Clock::time_point begin = Clock::now();
  for (int step = 0; step < steps; ++step) {
    LOCKSTEP_RETURN_IF_ERROR(overlap ? Overlapped(computation) : OneAfterTheOther(computation));
  }
  return team_.Largest(SecondsSince(begin) / steps);
}

absl::Status Replay::CheckedStep() {
  LOCKSTEP_RETURN_IF_ERROR(reducer_->BeginBackward({}));
  for (size_t left = gradients_.size(); left > 0; --left) {
    std::fill(gradients_[left - 1].begin(), gradients_[left - 1].end(), own_value());
    LOCKSTEP_RETURN_IF_ERROR(MarkReady(left - 1));
  }
  LOCKSTEP_RETURN_IF_ERROR(reducer_->EndBackward(/*stream=*/nullptr));
  // The mean of 1 to n. A few roundings are allowed for where n is no power of two.
  const float average = static_cast<float>(team_.size() + 1) / 2;
  const float tolerance = average * 1e-5F;
  for (size_t p = 0; p < gradients_.size(); ++p) {
    for (const float value : gradients_[p]) {
      if (std::abs(value - average) <= tolerance) continue;
      return absl::DataLossError(absl::StrCat("the gradient of '", model_.parameters[p].name, "' has ", value,
                                              " where the average is ", average));
    }
  }
  return absl::OkStatus();
}

}  // namespace bench
}  // namespace lockstep

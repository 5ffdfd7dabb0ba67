#include "bench/overlap/replay.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/ref.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "base/types/reduce_op.h"
#include "bench/report.h"
#include "comm/communicator.h"
#include "comm/host/self_communicator.h"
#include "comm/pieces.h"
#include "reducer/plan/bucket_plan.h"
#include "reducer/plan/parameter.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};  // for what a stream does in a step or two
constexpr int kWarmUpSteps = 3;

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

absl::StatusOr<std::unique_ptr<Replay>> Replay::Create(const ProcessGroup& group, const ModelTable& model,
                                                       const ReducerOptions& options, const ReplayPlace& place) {
  std::unique_ptr<Replay> replay(new Replay(group, model, place));
  std::vector<Parameter> parameters;
  for (const ModelParameter& of_model : model.parameters) {
    Parameter& parameter = parameters.emplace_back();
    parameter.name = of_model.name;
    parameter.shape = of_model.shape;
    parameter.device = place.device->id();
  }
  ReducerOptions own = options;
  if (place.compares_replicas) own.replicas = parameters;
  LOCKSTEP_ASSIGN_OR_RETURN(replay->reducer_, Reducer::Create(group.communicator(), std::move(parameters), own));
  LOCKSTEP_RETURN_IF_ERROR(options.gradient_as_bucket_view ? replay->FindGradientsInBuckets()
                                                           : replay->AllocateGradients());
  // Allocated after the gradients, so that gradients lie where they do without parameters.
  for (const Parameter& parameter : own.replicas) {
    replay->weights_.emplace_back(parameter.elements(), 1.0F);
    replay->replicas_.push_back(replay->weights_.back().data());
  }
  return replay;
}

Replay::Replay(const ProcessGroup& group, const ModelTable& model, const ReplayPlace& place)
    : group_(group), model_(model), place_(place) {}

Replay::~Replay() {
  // Whatever still uses gradients ends with the reducer.
  reducer_.reset();
  if (memory_ != nullptr) place_.device->Free(memory_);
}

absl::Status Replay::AllocateGradients() {
  size_t elements = 0;
  for (const ModelParameter& parameter : model_.parameters) elements += AlignedElements(parameter.elements());
  LOCKSTEP_ASSIGN_OR_RETURN(void* const memory, place_.device->Allocate(elements * sizeof(float)));
  memory_ = static_cast<float*>(memory);
  float* next = memory_;
  for (size_t p = 0; p < model_.parameters.size(); ++p) {
    const ModelParameter& parameter = model_.parameters[p];
    gradients_.emplace_back(next, parameter.elements());
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view,
                              TensorView::Create(next, DType::kF32, parameter.shape, {}, place_.device->id()));
    views_.push_back(std::move(view));
    LOCKSTEP_RETURN_IF_ERROR(FillGradient(p, own_value()));
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

absl::StatusOr<Replay::ComputeTimes> Replay::ComputeOnly(Computation& computation, int steps) {
  const BucketPlan& plan = reducer_->plan();
  ComputeTimes times;
  times.ready_seconds.assign(plan.buckets.size(), 0);
  std::vector<double> ready(plan.buckets.size());
  std::vector<std::unique_ptr<Event>> computed(place_.stream == nullptr ? 0 : plan.buckets.size());
  for (std::unique_ptr<Event>& event : computed) {
    LOCKSTEP_ASSIGN_OR_RETURN(event, place_.device->CreateEvent());
  }
  LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
  const Clock::time_point begin = Clock::now();
  for (int step = 0; step < steps; ++step) {
    const Clock::time_point step_begin = Clock::now();
    computation.Begin();
    computation.Forward();
    for (size_t left = gradients_.size(); left > 0; --left) {
      computation.Backward(left - 1);
      // The last gradient of a bucket has the last word.
      const size_t bucket = plan.locations[left - 1].bucket;
      ready[bucket] = SecondsSince(step_begin);
      if (place_.stream != nullptr) LOCKSTEP_RETURN_IF_ERROR(place_.stream->Record(computed[bucket].get()));
    }
    // Issued long before they are reached.
    for (size_t b = 0; b < computed.size(); ++b) {
      LOCKSTEP_RETURN_IF_ERROR(computed[b]->Synchronize(Deadline::After(kPatience)));
      ready[b] = SecondsSince(step_begin);
    }
    LOCKSTEP_RETURN_IF_ERROR(computation.Finish());
    for (size_t b = 0; b < ready.size(); ++b) times.ready_seconds[b] += ready[b] / steps;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(times.seconds, group_.Largest(SecondsSince(begin) / steps));
  LOCKSTEP_RETURN_IF_ERROR(group_.TakeLargest(&times.ready_seconds));
  return times;
}

absl::StatusOr<std::unique_ptr<SymmetricBuffer>> Replay::AllocateWire(WireMemory memory) const {
  size_t bytes = 0;
  for (const BucketPlan::Bucket& bucket : reducer_->plan().buckets) {
    bytes += AlignedElements(bucket.elements) * sizeof(float);
  }
  if (place_.device->id().kind != DeviceKind::kHost) return group_.communicator()->AllocateOnDevice(bytes);
  if (memory == WireMemory::kAllocator) return group_.communicator()->Allocate(bytes);
  LOCKSTEP_ASSIGN_OR_RETURN(void* const data, HostDevice()->Allocate(bytes));
  std::memset(data, 0, bytes);
  return std::make_unique<SymmetricBuffer>(static_cast<char*>(data), bytes, /*shared=*/false,
                                           [data] { HostDevice()->Free(data); });
}

absl::StatusOr<Replay::WireTimes> Replay::CommunicationOnly(WireMemory memory, int steps, bool background) {
  const BucketPlan& plan = reducer_->plan();
  std::unique_ptr<SymmetricBuffer>& vectors = wire_memory_[static_cast<int>(memory)];
  if (vectors == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(vectors, AllocateWire(memory));
  }
  WireTimes times;
  times.seconds.assign(plan.buckets.size(), 0);
  times.processor_seconds.assign(plan.buckets.size(), 0);
  for (int step = 0; step < steps; ++step) {
    char* next = vectors->data();
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      CollectiveRequest request;
      request.collective = Collective::kAllReduce;
      request.dtype = plan.buckets[b].wire;
      request.op = ReduceOp::kSum;
      request.count = plan.buckets[b].elements;
      request.input = next;
      request.output = next;
      request.device = place_.device->id();
      request.background = background;
      next += AlignedElements(plan.buckets[b].elements) * sizeof(float);
      LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
      const double processor_begin = ProcessorSeconds();
      const Clock::time_point begin = Clock::now();
      LOCKSTEP_RETURN_IF_ERROR(group_.communicator()->Run(request));
      times.seconds[b] += SecondsSince(begin) / steps;
      times.processor_seconds[b] += (ProcessorSeconds() - processor_begin) / steps;
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(group_.TakeLargest(&times.seconds));
  LOCKSTEP_RETURN_IF_ERROR(group_.TakeLargest(&times.processor_seconds));
  return times;
}

absl::StatusOr<double> Replay::AllReduceAll(bool as_list) {
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kF32;
  request.op = ReduceOp::kAvg;  // however often: the values stay finite
  request.count = static_cast<size_t>(model_.elements());
  std::vector<std::vector<float>> memory;
  if (as_list) {
    const auto pieces = MakeRef<Pieces>(DType::kF32);
    for (const ModelParameter& parameter : model_.parameters) {
      std::vector<float>& vector = memory.emplace_back(parameter.elements());
      LOCKSTEP_ASSIGN_OR_RETURN(const TensorView view,
                                TensorView::Vector(vector.data(), DType::kF32, parameter.elements()));
      LOCKSTEP_RETURN_IF_ERROR(pieces->Add(view));
    }
    request.input_pieces = request.output_pieces = pieces;
  } else {
    request.input = request.output = memory.emplace_back(request.count).data();
  }
  // Of short ones so many that the clock does not count.
  constexpr size_t kBytes = size_t{64} << 20;
  const int calls = static_cast<int>(std::max<size_t>(1, kBytes / (request.count * sizeof(float) + 16384)));
  LOCKSTEP_RETURN_IF_ERROR(group_.communicator()->Run(request));
  LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
  const Clock::time_point begin = Clock::now();
  for (int call = 0; call < calls; ++call) LOCKSTEP_RETURN_IF_ERROR(group_.communicator()->Run(request));
  return group_.Largest(SecondsSince(begin) / calls);
}

absl::Status Replay::Begin() {
  BackwardOptions backward;
  backward.replicas = replicas_;
  return reducer_->BeginBackward(backward);
}

absl::StatusOr<double> Replay::Step(Computation& computation, int steps, bool overlap) {
  LOCKSTEP_RETURN_IF_ERROR(group_.Barrier());
  const Clock::time_point begin = Clock::now();
  for (int step = 0; step < steps; ++step) {
    computation.Begin();
    computation.Forward();
    if (!overlap) {
      for (size_t left = gradients_.size(); left > 0; --left) computation.Backward(left - 1);
    }
    LOCKSTEP_RETURN_IF_ERROR(Begin());
    for (size_t left = gradients_.size(); left > 0; --left) {
      if (overlap) computation.Backward(left - 1);
      LOCKSTEP_RETURN_IF_ERROR(MarkReady(left - 1));
    }
    LOCKSTEP_RETURN_IF_ERROR(reducer_->EndBackward(place_.stream));
  }
  LOCKSTEP_RETURN_IF_ERROR(computation.Finish());
  return group_.Largest(SecondsSince(begin) / steps);
}

absl::Status Replay::CopyNow(void* target, const void* source, size_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(place_.stream->Copy(target, source, bytes));
  return place_.stream->Synchronize(Deadline::After(kPatience));
}

absl::Status Replay::FillGradient(size_t parameter, float value) {
  const absl::Span<float> gradient = gradients_[parameter];
  if (place_.stream == nullptr) {
    std::fill(gradient.begin(), gradient.end(), value);
    return absl::OkStatus();
  }
  on_host_.assign(gradient.size(), value);
  return CopyNow(gradient.data(), on_host_.data(), gradient.size() * sizeof(float));
}

absl::Status Replay::CheckGradient(size_t parameter, float average) {
  absl::Span<const float> gradient = gradients_[parameter];
  if (place_.stream != nullptr) {
    on_host_.resize(gradient.size());
    LOCKSTEP_RETURN_IF_ERROR(CopyNow(on_host_.data(), gradient.data(), gradient.size() * sizeof(float)));
    gradient = on_host_;
  }
  // A few roundings are allowed for where there are not 2, 4, ... ranks.
  const float tolerance = average * 1e-5F;
  for (const float value : gradient) {
    if (std::abs(value - average) <= tolerance) continue;
    return absl::DataLossError(absl::StrCat("the gradient of '", model_.parameters[parameter].name, "' has ", value,
                                            " where the average is ", average));
  }
  return absl::OkStatus();
}

absl::Status Replay::CheckedStep() {
  LOCKSTEP_RETURN_IF_ERROR(Begin());
  for (size_t left = gradients_.size(); left > 0; --left) {
    LOCKSTEP_RETURN_IF_ERROR(FillGradient(left - 1, own_value()));
    LOCKSTEP_RETURN_IF_ERROR(MarkReady(left - 1));
  }
  LOCKSTEP_RETURN_IF_ERROR(reducer_->EndBackward(place_.stream));
  // The mean of 1 to n.
  const float average = static_cast<float>(group_.size() + 1) / 2;
  for (size_t p = 0; p < gradients_.size(); ++p) LOCKSTEP_RETURN_IF_ERROR(CheckGradient(p, average));
  return absl::OkStatus();
}

absl::StatusOr<ReducerOverhead> MeasureReducerOverhead(const BucketPlan& plan, int steps) {
  const size_t count = plan.locations.size();
  std::vector<float> gradients(count);
  std::vector<TensorView> views;
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < count; ++i) {
    LOCKSTEP_ASSIGN_OR_RETURN(TensorView view, TensorView::Vector(&gradients[i], DType::kF32, 1));
    views.push_back(std::move(view));
    Parameter& parameter = parameters.emplace_back();
    parameter.name = absl::StrCat("p", i);
    parameter.shape = {1};
  }
  ReducerOptions options;
  // Caps that cut a table of single floats as `plan` cuts its own.
  options.bucket_caps_bytes.clear();
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    options.bucket_caps_bytes.push_back(bucket.slots.size() * sizeof(float));
  }
  SelfCommunicator alone(/*flight_records=*/16);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Reducer> reducer,
                            Reducer::Create(&alone, std::move(parameters), std::move(options)));
  std::vector<double> mark_ready;
  std::vector<double> whole;
  for (int step = -kWarmUpSteps; step < steps; ++step) {
    const Clock::time_point begin = Clock::now();
    LOCKSTEP_RETURN_IF_ERROR(reducer->BeginBackward({}));
    const Clock::time_point begun = Clock::now();
    for (size_t left = count; left > 0; --left) {
      LOCKSTEP_RETURN_IF_ERROR(reducer->MarkReady(left - 1, views[left - 1], /*stream=*/nullptr));
    }
    const double marked_seconds = SecondsSince(begun);
    LOCKSTEP_RETURN_IF_ERROR(reducer->EndBackward(/*stream=*/nullptr));
    if (step < 0) continue;
    mark_ready.push_back(marked_seconds);
    whole.push_back(SecondsSince(begin));
  }
  ReducerOverhead overhead;
  overhead.buckets = static_cast<int>(reducer->plan().buckets.size());
  overhead.mark_ready_seconds = Median(mark_ready);
  overhead.step_seconds = Median(whole);
  return overhead;
}

absl::StatusOr<int64_t> ProportionalBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  int64_t kib = 0;
  for (std::string word; file >> word;) {  // "Pss:      1234 kB"
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  return absl::UnavailableError("no Pss in /proc/self/smaps_rollup");
}

}  // namespace lockstep::bench

// How a reducer comes to a communicator and its buckets to memory: when it is made, goes over to another plan, or to another communicator.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/status.h"
#include "comm/schedule/schedule.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/pipeline/device_pipeline.h"
#include "reducer/pipeline/opening.h"
#include "reducer/plan/agreement.h"
#include "reducer/reducer.h"

namespace lockstep {
namespace {

// Of a reducer's topics for notes the lower half are of steps, the upper half of plans.
constexpr uint64_t kTopicsOfPlans = uint64_t{1} << 39;

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options) {
  // A rank whose own arguments are bad says so, and the others learn it rather than wait.
  absl::Status local = CheckParameters(parameters);
  if (local.ok()) local = CheckOptions(options, parameters);
  if (!local.ok()) return AgreeOnParameters(*communicator, local, "", parameters);
  BucketPlan plan = FirstPlan(parameters, options);
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(parameters), std::move(options), std::move(plan)));
  LOCKSTEP_RETURN_IF_ERROR(reducer->Open(communicator, Opening::kCreated));
  return reducer;
}

Reducer::Reducer(std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      rules_(RulesOf(options_)),
      holds_last_bucket_(options_.find_unused || options_.static_graph),
      check_(parameters_),
      plan_(std::move(plan)),
      use_(parameters_.size()),
      flights_{Flight(plan_.buckets.size(), parameters_.size()), Flight(plan_.buckets.size(), parameters_.size())},
      marks_(parameters_, options_.delayed, {options_.find_unused, options_.static_graph}),
      written_(parameters_.size()),
      window_(parameters_.size()) {}

Reducer::~Reducer() {
  if (holds_) communicator_->Release();
}

absl::Status Reducer::Open(Communicator* communicator, Opening opening) {
  communicator_ = communicator;
  check_.set_pointers(communicator->checks_pointers());
  const std::string settings = Settings(options_);
  const absl::StatusOr<Accelerator> found = FindAccelerator(*communicator_, DeviceOf(parameters_));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, found.status(), settings, parameters_));
  accelerator_ = *found;
  LOCKSTEP_ASSIGN_OR_RETURN(const bool same_plan, SamePlan(*communicator_, ExportPlan(), opening));
  if (!same_plan) plan_ = FirstPlan(parameters_, options_);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, Allocate(), settings, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t first_topic, AgreeOnFirstTopic(*communicator_));
  for (Flight& flight : flights_) flight.outcome->set_first_topic(first_topic);
  replanner_ = std::make_unique<Replanner>(communicator_, first_topic + kTopicsOfPlans, parameters_, &rules_);
  const bool planned_already = !options_.plan.empty() || opening == Opening::kChanged;
  if (options_.replan && !planned_already && !options_.gradient_as_bucket_view) replanner_->Request();
  return pipeline_->RenewHookCommunicator();
}

absl::Status Reducer::Allocate() {
  const BucketMemory::Use use = {options_.buckets_in_memory_max, options_.gradient_as_bucket_view};
  LOCKSTEP_ASSIGN_OR_RETURN(
      memory_, BucketMemory::Allocate(*communicator_, accelerator_, plan_, PlanBytesMax(parameters_, rules_), use));
  for (Flight& flight : flights_) flight.outcome = std::make_unique<StepOutcome>(communicator_);
  // Where the host does something for a step, or decides by it what the next one does, that is not put off.
  runs_ahead_ =
      accelerator_.kernels != nullptr && options_.hook == nullptr && !options_.optimizer && !options_.uneven_inputs;
  BucketPipeline::Settings settings;
  const bool reduces_in_place = options_.gradient_as_bucket_view && !options_.compress.has_value();
  if (options_.hook == nullptr) {
    settings.factors = FactorsOf(options_.average, options_.predivide_factor, communicator_->size(), reduces_in_place);
    LOCKSTEP_RETURN_IF_ERROR(CheckReductions(settings.factors.op));
  }
  settings.in_place = reduces_in_place;
  settings.divide_by_live = options_.divide_by_live;
  settings.opens_steps = options_.uneven_inputs;
  settings.hook = options_.hook;
  settings.optimizer = options_.optimizer;
  pipeline_ =
      MakePipeline({accelerator_.device, communicator_, parameters_}, accelerator_.kernels, std::move(settings));
  log_ = std::make_unique<StepLog>(DescribeForLog());
  LOCKSTEP_RETURN_IF_ERROR(log_->OpenTrace(options_.trace_path));
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateStreams());
  return MakeBuckets();
}

absl::Status Reducer::CheckReductions(ReduceOp op) const {
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    if (bucket.sparse || bucket.device.kind == DeviceKind::kHost) continue;  // the host adds whatever there is
    const size_t first = bucket.slots[0].parameter;
    LOCKSTEP_RETURN_IF_ERROR(Annotate(communicator_->Supports(Collective::kAllReduce, bucket.wire, op),
                                      absl::StrCat("averages of ", Describe(first, parameters_[first]))));
  }
  return absl::OkStatus();
}

LoggingData Reducer::DescribeForLog() const {
  LoggingData data = ConstructionData(communicator_->rank(), communicator_->size(), parameters_, plan_);
  data.backend_name = "lockstep";
  data.bucket_cap_bytes = static_cast<int64_t>(options_.bucket_caps_bytes.back());
  data.find_unused_parameters = options_.find_unused;
  data.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  data.static_graph = options_.static_graph;
  data.join_uneven_inputs = options_.uneven_inputs;
  if (options_.hook != nullptr) data.comm_hook = options_.hook->name();
  return data;
}

absl::Status Reducer::MakeBuckets() {
  for (Flight& flight : flights_) {
    if (&flight != &flights_[0] && !runs_ahead_) break;
    flight.buckets = memory_->LayOut(plan_);
    for (const std::unique_ptr<Bucket>& bucket : flight.buckets) {
      LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateEvents(*bucket));
    }
  }
  return absl::OkStatus();
}

absl::Status Reducer::Adopt(BucketPlan plan) {
  // Both plans use the same memory: what lives in it goes by way of some other.
  LOCKSTEP_ASSIGN_OR_RETURN(const KeptGradients kept, TakeGradients());
  plan_ = std::move(plan);
  LOCKSTEP_RETURN_IF_ERROR(MakeBuckets());
  LOCKSTEP_RETURN_IF_ERROR(PutBack(kept));
  for (Flight& flight : flights_) flight.recorder.Replan(plan_.buckets.size());
  SetRebuiltBuckets(plan_, &log_->data());
  return absl::OkStatus();
}

absl::StatusOr<Reducer::KeptGradients> Reducer::TakeGradients() const {
  KeptGradients kept;
  if (!options_.gradient_as_bucket_view) return kept;
  size_t bytes = 0;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].ignored || parameters_[index].sparse) continue;
    kept.gradients.push_back({index, ViewAt(index), bytes});
    bytes += parameters_[index].bytes();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(kept.bytes, DeviceMemory::Allocate(accelerator_.device, bytes));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, accelerator_.device->CreateStream("lockstep-keep"));
  for (const Kept& gradient : kept.gradients) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(kept.bytes.data() + gradient.at, gradient.view, parameters_[gradient.index].bytes()));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::Infinite()));
  return kept;
}

absl::Status Reducer::PutBack(const KeptGradients& kept) {
  ++plan_version_;
  if (kept.gradients.empty()) return absl::OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, accelerator_.device->CreateStream("lockstep-keep"));
  for (const Kept& gradient : kept.gradients) {
    LOCKSTEP_RETURN_IF_ERROR(
        stream->Copy(ViewAt(gradient.index), kept.bytes.data() + gradient.at, parameters_[gradient.index].bytes()));
  }
  LOCKSTEP_RETURN_IF_ERROR(stream->Synchronize(Deadline::Infinite()));
  MutexLock lock(&mu_);
  for (const Kept& gradient : kept.gradients) {
    char* const view = ViewAt(gradient.index);
    Gradient& window = window_[gradient.index];
    for (TensorView* const tensor : {&window.data, &window.target}) {
      if (tensor->data() == gradient.view) *tensor = DenseView(parameters_[gradient.index], view);
    }
  }
  return absl::OkStatus();
}

absl::Status Reducer::ChangeCommunicator(Communicator* communicator) {
  // Their threads use the old communicator.
  replanner_.reset();
  if (pipeline_ != nullptr) (void)pipeline_->Synchronize(Deadline::Infinite());
  // Unless an earlier change failed, which has taken them already.
  if (!buckets().empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(kept_, TakeGradients());
  }
  for (Flight& flight : flights_) {
    flight.buckets.clear();
    flight.under_way = false;
  }
  flight_ = &flights_[0];
  pipeline_.reset();
  captured_.clear();
  hook_failed_ = false;
  planned_in_ = 0;
  buffer_sync_.reset();
  known_joined_ = 0;
  {
    MutexLock lock(&mu_);
    BecomeIdle();
    capturing_ = false;
    step_ = 0;
    EndWindow();
  }
  const absl::Status opened = Open(communicator, Opening::kChanged);
  if (!opened.ok()) {
    for (Flight& flight : flights_) flight.buckets.clear();
    return opened;
  }
  for (Flight& flight : flights_) flight.recorder.Replan(plan_.buckets.size());
  return PutBack(std::exchange(kept_, {}));
}

}  // namespace lockstep

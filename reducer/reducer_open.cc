// How a reducer comes to a communicator and its buckets to memory: when it is made, goes over to another plan, or to another communicator.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/device/device.h"
#include "base/device/device_memory.h"
#include "base/error_info.h"
#include "base/status.h"
#include "base/types/dtype.h"
#include "comm/schedule/schedule.h"
#include "reducer/pipeline/accelerator.h"
#include "reducer/plan/agreement.h"
#include "reducer/reducer.h"
#include "xxhash.h"

namespace lockstep {
namespace {

// How long a reducer that is destroyed in a backward waits for the other ranks to end theirs.
constexpr std::chrono::seconds kOthersTimeout{30};

// Of a reducer's topics for notes the lower half are of steps, the upper half of plans.
constexpr uint64_t kTopicsOfPlans = uint64_t{1} << 39;

// Every rank calls it, with its plan as text. Whether all have the same. Where they have not and a reducer was newly created, whose plan
// was asked for, FAILED_PRECONDITION on every rank.
absl::StatusOr<bool> SamePlan(Communicator& communicator, const std::string& plan, Origin origin) {
  struct Offer {
    uint64_t plan = 0;
    Origin origin = Origin::kCreated;
  };
  const Offer mine = {XXH3_64bits(plan.data(), plan.size()), origin};
  std::vector<Offer> offers(communicator.size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = offers.size() * sizeof(Offer);
  request.input = &mine;
  request.output = offers.data();
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  const auto differing =
      std::find_if(offers.begin(), offers.end(), [&](const Offer& offer) { return offer.plan != offers[0].plan; });
  if (differing == offers.end()) return true;
  const bool all_changed =
      std::all_of(offers.begin(), offers.end(), [](const Offer& offer) { return offer.origin == Origin::kChanged; });
  if (all_changed) return false;
  const auto rank = static_cast<int>(differing - offers.begin());
  return WithFailedRank(
      absl::FailedPreconditionError(absl::StrCat("the bucket plan differs on rank 0 and rank ", rank)),
      communicator.WorldRank(Rank(rank)).value());
}

// Every rank calls it. Rank 0 counts its process's reducers and tells the others, so that two reducers of one communicator, at a time or
// one after the other, do not read each other's notes: 2^40 topics from here on are nobody else's.
absl::StatusOr<uint64_t> AgreeOnFirstTopic(Communicator& communicator) {
  static std::atomic<uint64_t> reducers{0};  // relaxed: it only gives numbers
  uint64_t topic = reducers.fetch_add(1, std::memory_order_relaxed) << 40;
  CollectiveRequest request;
  request.collective = Collective::kBroadcast;
  request.dtype = DType::kU64;
  request.count = 1;
  request.input = &topic;
  request.output = &topic;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return topic;
}

// Whether the communicator adds up every bucket so.
absl::Status CheckReductions(const Communicator& communicator, absl::Span<const Parameter> parameters,
                             const BucketPlan& plan, ReduceOp op) {
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    if (bucket.sparse || bucket.device.kind == DeviceKind::kHost) continue;  // the host adds whatever there is
    const size_t first = bucket.slots[0].parameter;
    LOCKSTEP_RETURN_IF_ERROR(Annotate(communicator.Supports(Collective::kAllReduce, bucket.wire, op),
                                      absl::StrCat("averages of ", Describe(first, parameters[first]))));
  }
  return absl::OkStatus();
}

// Whether a stream can copy each gradient as a whole, and nothing between its elements.
absl::Status CheckDense(absl::Span<const Parameter> parameters) {
  void* const any = reinterpret_cast<void*>(uintptr_t{1} << 20);  // only the geometry is looked at
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (parameter.ignored) continue;
    const auto like = TensorView::Create(any, parameter.dtype, parameter.shape, parameter.strides, parameter.device);
    if (like->dense()) continue;
    return absl::UnimplementedError(
        absl::StrCat("preserve_gradients on a device: the strides of ", Describe(i, parameter), " leave gaps"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options) {
  // A rank whose own arguments are bad says so, and the others learn it rather than wait.
  absl::Status local = CheckParameters(parameters);
  if (local.ok()) local = CheckOptions(options, parameters);
  if (!local.ok()) return AgreeOnParameters(*communicator, local, "", parameters);
  BucketPlan plan = FirstPlan(parameters, options);
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(parameters), std::move(options), std::move(plan)));
  LOCKSTEP_RETURN_IF_ERROR(reducer->Open(communicator, Origin::kCreated));
  return reducer;
}

Reducer::Reducer(std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      rules_(RulesOf(options_)),
      claims_(parameters_),
      check_(parameters_),
      plan_(std::move(plan)),
      use_(parameters_.size()),
      ready_set_(parameters_, options_.delayed, {options_.find_unused, options_.static_graph}),
      window_(parameters_.size()) {}

Reducer::~Reducer() {
  if (pipeline_ != nullptr) {
    if (IsUnfinished() && communicator_->status().ok()) {
      filler_.GiveUp(absl::FailedPreconditionError("its reducer was destroyed in the middle of the backward"));
      // They may wait for this rank elsewhere, and then would never come.
      if (absl::IsDeadlineExceeded(pipeline_->AwaitOrEnd(nullptr, Deadline::After(kOthersTimeout)))) {
        communicator_->Abort("its reducer was destroyed in the middle of a backward, and others did not end theirs");
      }
    }
    (void)pipeline_->AwaitOrEnd(nullptr, Deadline::Infinite());
    if (holds_ && options_.preserve_gradients) (void)pipeline_->Restore(buckets());
  }
  pipeline_.reset();
  claims_.Ended(claims_.NextRound());  // before events of steps go
  if (holds_) communicator_->Release();
}

bool Reducer::IsUnfinished() {
  MutexLock lock(&mu_);
  return state_ == State::kArmed && !ending_ && !flight_->captured;
}

absl::Status Reducer::Open(Communicator* communicator, Origin origin) {
  communicator_ = communicator;
  check_.set_pointers(communicator->checks_pointers());
  const std::string settings = Settings(options_);
  const absl::StatusOr<Accelerator> found = FindAccelerator(*communicator_, DeviceOf(parameters_));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, found.status(), settings, parameters_));
  accelerator_ = *found;
  LOCKSTEP_ASSIGN_OR_RETURN(const bool same_plan, SamePlan(*communicator_, ExportPlan(), origin));
  if (!same_plan) plan_ = FirstPlan(parameters_, options_);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, Allocate(), settings, options_.replicas,
                                             /*by_holder=*/false, "replicas"));
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t first_topic, AgreeOnFirstTopic(*communicator_));
  for (Flight& flight : flights_) flight.outcome->set_first_topic(first_topic);
  replanner_ = std::make_unique<Replanner>(communicator_, first_topic + kTopicsOfPlans, parameters_, &rules_);
  const bool planned_already = !options_.plan.empty() || origin == Origin::kChanged;
  if (options_.replan && !planned_already && !options_.gradient_as_bucket_view) replanner_->Request();
  return pipeline_->RenewHookCommunicator();
}

absl::Status Reducer::Allocate() {
  if (options_.preserve_gradients && accelerator_.kernels != nullptr) LOCKSTEP_RETURN_IF_ERROR(CheckDense(parameters_));
  copied_because_ = options_.gradient_as_bucket_view ? "" : WhyCopied(options_, accelerator_.kernels != nullptr);
  const bool in_pieces = copied_because_.empty() && !options_.gradient_as_bucket_view;
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    const int most =
        in_pieces || !options_.uneven_inputs ? communicator_->size() : StatusTrailer::CountMax(bucket.wire);
    if (communicator_->size() <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat("uneven_inputs: buckets in ", Name(bucket.wire), " count at most ",
                                                   most, " ranks, and there are ", communicator_->size()));
  }
  const BucketMemory::Use use = {options_.buckets_in_memory_max, options_.gradient_as_bucket_view, in_pieces};
  LOCKSTEP_ASSIGN_OR_RETURN(
      memory_, BucketMemory::Allocate(*communicator_, accelerator_, plan_, PlanBytesMax(parameters_, rules_), use));
  if (use.views) check_.set_views(memory_.get(), &plan_version_);
  for (Flight& flight : flights_) flight.outcome = std::make_unique<StepOutcome>(communicator_);
  // Where the host does something for a step, or decides by it what the next one does, that is not put off.
  runs_ahead_ = accelerator_.kernels != nullptr && options_.hook == nullptr && !options_.optimizer &&
                !options_.uneven_inputs && !options_.preserve_gradients;
  BucketPipeline::Settings settings;
  const bool reduces_in_place = options_.gradient_as_bucket_view && !options_.compress.has_value();
  if (options_.hook == nullptr) {
    const auto factors = [this](bool in_place) {
      return FactorsOf(options_.average, options_.predivide_factor, communicator_->size(), in_place);
    };
    settings.factors = factors(reduces_in_place);
    // A factor before the sum that is no average's is applied as gradients are read.
    settings.factors_in_place = factors(/*in_place=*/options_.average != Average::kPredivide);
    LOCKSTEP_RETURN_IF_ERROR(CheckReductions(*communicator_, parameters_, plan_, settings.factors.op));
  }
  settings.in_place = reduces_in_place || memory_->InPieces(plan_);
  if (in_pieces && !settings.in_place) {
    copied_because_ = absl::StrCat("some gradients have not all values of ", Name(*options_.compress));
  }
  settings.divide_by_live = options_.divide_by_live;
  settings.saves = options_.preserve_gradients;
  settings.barrier_first = options_.uneven_inputs;
  settings.hook = options_.hook;
  if (options_.optimizer) {
    settings.optimizer = [this](const ReducedBucket& bucket) {
      // On the host the averages are there, and from now on the gradients are the embedder's.
      for (const size_t index : bucket.parameters) {
        if (bucket.stream == nullptr && !options_.preserve_gradients) claims_.Release(index);
      }
      return options_.optimizer(bucket);
    };
  }
  const BucketPipeline::Parts parts = {accelerator_.device, communicator_, parameters_};
  pipeline_ = accelerator_.kernels == nullptr ? MakeHostPipeline(parts, std::move(settings))
                                              : MakeDevicePipeline(parts, accelerator_.kernels, std::move(settings));
  if (!options_.replicas.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(replicas_, ReplicaCheck::Create(communicator_, options_.replicas, options_.on_drift,
                                                              accelerator_.device, accelerator_.kernels));
  }
  LOCKSTEP_RETURN_IF_ERROR(BeginRecord());
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateStreams());
  return MakeBuckets();
}

absl::Status Reducer::BeginRecord() {
  ReducerRecord record;
  record.rank = communicator_->rank();
  record.world_size = communicator_->size();
  record.parameters = parameters_;
  record.first_plan = plan_;
  record.bucket_cap_bytes = static_cast<int64_t>(options_.bucket_caps_bytes.back());
  record.find_unused_parameters = options_.find_unused;
  record.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  record.static_graph = options_.static_graph;
  record.join_uneven_inputs = options_.uneven_inputs;
  if (options_.hook != nullptr) record.comm_hook = options_.hook->name();
  record.last = std::move(record_.last);
  record_ = std::move(record);
  trace_.reset();
  LOCKSTEP_ASSIGN_OR_RETURN(trace_, TraceFile::Open(options_.trace_path, record_.rank));
  return absl::OkStatus();
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
  record_.rebuilt_plan = plan_;
  return absl::OkStatus();
}

absl::StatusOr<KeptGradients> Reducer::TakeGradients() const {
  if (!options_.gradient_as_bucket_view) return KeptGradients();
  return KeptGradients::Take(accelerator_.device, parameters_, [this](size_t index) { return ViewAt(index); });
}

absl::Status Reducer::PutBack(const KeptGradients& kept) {
  ++plan_version_;
  LOCKSTEP_RETURN_IF_ERROR(
      kept.PutBack(accelerator_.device, parameters_, [this](size_t index) { return ViewAt(index); }));
  MutexLock lock(&mu_);
  for (const KeptGradients::Gradient& gradient : kept.gradients()) {
    claims_.Release(gradient.index);
    char* const view = ViewAt(gradient.index);
    Gradient& window = window_[gradient.index];
    for (TensorView* const tensor : {&window.data, &window.target}) {
      if (tensor->data() == gradient.view) *tensor = DenseView(parameters_[gradient.index], view);
    }
  }
  for (const KeptGradients::Gradient& gradient : kept.gradients()) {
    if (!ready_set_.used_in_window(gradient.index)) continue;
    const Gradient& window = window_[gradient.index];
    LOCKSTEP_RETURN_IF_ERROR(Claim(gradient.index, {window.data, window.target, window.rows, window.stream}));
  }
  return absl::OkStatus();
}

absl::Status Reducer::ChangeCommunicator(Communicator* communicator) {
  // Their threads use the old communicator.
  replanner_.reset();
  if (pipeline_ != nullptr) (void)pipeline_->AwaitOrEnd(nullptr, Deadline::Infinite());
  if (holds_) LOCKSTEP_RETURN_IF_ERROR(Restore(*flight_));
  bool cut = false;
  {
    MutexLock lock(&mu_);
    cut = state_ == State::kArmed;
  }
  for (const auto& bucket : buckets()) {
    // The streams do this for a bucket that was launched. On a device nothing is copied before that.
    if (!cut || bucket->written != Bucket::Written::kNothing || accelerator_.kernels != nullptr) continue;
    for (const size_t slot : bucket->staged) bucket->slots[slot].keeps = false;  // nothing was copied yet
    bucket->PutBack();
  }
  // Between steps, what has accumulated is still for the next one.
  claims_.Ended(cut ? claims_.NextRound() : flight_->round);
  // Unless an earlier change failed, which has taken them already.
  if (!buckets().empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(kept_, TakeGradients());
  }
  for (Flight& flight : flights_) {
    flight.buckets.clear();
    flight.captured = false;
    flight.under_way = false;
  }
  flight_ = &flights_[0];
  pipeline_.reset();
  hook_failed_ = awaits_ = false;
  planned_in_ = 0;
  buffers_.reset();
  {
    MutexLock lock(&mu_);
    BecomeIdle();
    step_ = 0;
    captures_.Clear();
    if (cut) ready_set_.EndWindow();
  }
  const absl::Status opened = Open(communicator, Origin::kChanged);
  if (!opened.ok()) {
    for (Flight& flight : flights_) flight.buckets.clear();
    replanner_.reset();
    return opened;
  }
  return PutBack(std::exchange(kept_, {}));
}

}  // namespace lockstep

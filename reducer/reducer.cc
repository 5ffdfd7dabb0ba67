#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/host_device.h"
#include "base/log.h"
#include "base/status.h"
#include "reducer/agreement.h"
#include "reducer/broadcast.h"
#include "reducer/plan_text.h"

namespace lockstep {
namespace {

// Of a reducer's topics for notes the lower half are of steps, the upper half of plans.
constexpr uint64_t kTopicsOfPlans = uint64_t{1} << 39;

// Whether both strides lead to the same places: what a dimension of one element has does not matter.
bool SamePlaces(absl::Span<const int64_t> shape, absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

// So that every bucket begins where its slots may.
size_t RoundedUp(size_t bytes) {
  return (bytes + BucketPlan::kAlignment - 1) / BucketPlan::kAlignment * BucketPlan::kAlignment;
}

size_t ViewBytes(const BucketPlan::Bucket& bucket) {
  return bucket.dtype == bucket.wire ? 0 : RoundedUp(bucket.tail * SizeOf(bucket.dtype));
}

PlanRules RulesOf(const ReducerOptions& options) {
  return {options.bucket_caps_bytes, options.caps_from, options.compress, options.delayed, options.delayed_trigger};
}

absl::Status CheckOptions(const ReducerOptions& options, absl::Span<const Parameter> parameters) {
  LOCKSTEP_RETURN_IF_ERROR(CheckRules(RulesOf(options), parameters));
  if (options.gradient_as_bucket_view && options.buckets_in_memory_max > 0) {
    return absl::InvalidArgumentError("gradients cannot live in buckets that take turns with their memory");
  }
  if (!options.plan.empty())
    LOCKSTEP_RETURN_IF_ERROR(PlanFromText(parameters, RulesOf(options), options.plan).status());
  return CheckPredivideFactor(options.predivide_factor);
}

// For comparison across ranks, and for people.
std::string Settings(const ReducerOptions& options) {
  return absl::StrCat("bucket caps ", absl::StrJoin(options.bucket_caps_bytes, ","), " from the ",
                      options.caps_from == CapsFrom::kFirst ? "first" : "last", ", at most ",
                      options.buckets_in_memory_max, " in memory, average ", static_cast<int>(options.average),
                      " factor ", options.predivide_factor, ", compress ",
                      options.compress.has_value() ? Name(*options.compress) : "no", ", hook ",
                      options.hook == nullptr ? "none" : options.hook->name(), ", find_unused ", options.find_unused,
                      ", static_graph ", options.static_graph, ", bucket views ", options.gradient_as_bucket_view,
                      ", replan ", options.replan, ", optimizer ", static_cast<bool>(options.optimizer), ", delayed ",
                      absl::StrJoin(options.delayed, ","), " by ", options.delayed_trigger, ", plan ", options.plan);
}

BucketPlan FirstPlan(absl::Span<const Parameter> parameters, const ReducerOptions& options) {
  const PlanRules rules = RulesOf(options);
  if (options.plan.empty()) return PlanBuckets(parameters, rules);
  return LayOut(parameters, rules, PlanFromText(parameters, rules, options.plan).value());
}

// Rank 0 counts its process's reducers and tells the others, so that two reducers of one communicator, at a time or one after
// the other, do not read each other's notes.
absl::StatusOr<uint64_t> AgreeOnFirstTopic(Communicator& communicator) {
  static std::atomic<uint64_t> reducers{0};
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

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> Reducer::Create(Communicator* communicator, std::vector<Parameter> parameters,
                                                         ReducerOptions options) {
  // A rank whose own table is bad says so, and the others learn it rather than wait.
  absl::Status local = CheckParameters(parameters);
  if (local.ok()) local = CheckOptions(options, parameters);
  const std::string settings = Settings(options);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator, local, settings, parameters));
  BucketPlan plan = FirstPlan(parameters, options);
  std::unique_ptr<Reducer> reducer(
      new Reducer(communicator, std::move(parameters), std::move(options), std::move(plan)));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator, reducer->Allocate(), settings, {}));
  LOCKSTEP_RETURN_IF_ERROR(reducer->Connect());
  return reducer;
}

Reducer::Reducer(Communicator* communicator, std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan)
    : communicator_(communicator),
      parameters_(std::move(parameters)),
      options_(std::move(options)),
      rules_(RulesOf(options_)),
      device_(HostDevice()),
      holds_last_bucket_(options_.find_unused || options_.static_graph),
      plan_(std::move(plan)),
      marks_(parameters_, options_.delayed, {options_.find_unused, options_.static_graph}),
      window_(parameters_.size()) {
  for (const Parameter& parameter : parameters_) {
    // Any address will do: only the geometry is looked at.
    void* const stand_in = reinterpret_cast<void*>(uintptr_t{1} << 20);
    has_gaps_.push_back(!parameter.ignored && !parameter.strides.empty() &&
                        !SamePlaces(parameter.shape, DenseView(parameter, stand_in).strides(), parameter.strides));
  }
}

Reducer::~Reducer() = default;

absl::Status Reducer::Allocate() {
  // First, since the other ranks do.
  LOCKSTEP_RETURN_IF_ERROR(AllocateMemory());
  if (options_.gradient_as_bucket_view) {
    size_t bytes = 0;
    for (const BucketPlan::Bucket& bucket : plan_.buckets) bytes += ViewBytes(bucket);
    if (bytes > 0) {
      LOCKSTEP_ASSIGN_OR_RETURN(views_, MakePrivateBuffer(bytes));
    }
  }
  outcome_ = std::make_unique<StepOutcome>(communicator_);
  BucketPipeline::Settings settings;
  const bool reduces_in_place = options_.gradient_as_bucket_view && !options_.compress.has_value();
  if (options_.hook == nullptr) {
    settings.factors = FactorsOf(options_.average, options_.predivide_factor, communicator_->size(), reduces_in_place);
  }
  settings.hook = options_.hook;
  settings.optimizer = options_.optimizer;
  pipeline_ =
      std::make_unique<BucketPipeline>(device_, communicator_, parameters_, outcome_.get(), std::move(settings));
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateStreams());
  return MakeBuckets();
}

absl::Status Reducer::Connect() {
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t first_topic, AgreeOnFirstTopic(*communicator_));
  outcome_->set_first_topic(first_topic);
  replanner_ = std::make_unique<Replanner>(communicator_, first_topic + kTopicsOfPlans, parameters_, &rules_);
  if (options_.replan && options_.plan.empty() && !options_.gradient_as_bucket_view) replanner_->Request();
  return pipeline_->RenewHookCommunicator();
}

std::vector<size_t> Reducer::Regions(const BucketPlan& plan) const {
  const size_t count = plan.buckets.size();
  const size_t in_memory =
      options_.buckets_in_memory_max == 0 ? count : std::min(count, options_.buckets_in_memory_max);
  // Of the buckets that take turns with some memory, the largest.
  std::vector<size_t> regions(in_memory, 0);
  for (size_t b = 0; b < count; ++b) {
    regions[b % in_memory] = std::max(regions[b % in_memory], RoundedUp(plan.buckets[b].bytes()));
  }
  return regions;
}

absl::Status Reducer::AllocateMemory() {
  const std::vector<size_t> regions = Regions(plan_);
  const size_t bytes = options_.buckets_in_memory_max == 0 ? PlanBytesMax(parameters_, rules_)
                                                           : std::accumulate(regions.begin(), regions.end(), size_t{0});
  absl::StatusOr<std::unique_ptr<SymmetricBuffer>> memory = communicator_->Allocate(bytes);
  if (absl::IsResourceExhausted(memory.status()) || absl::IsUnavailable(memory.status())) {
    LOCKSTEP_LOG(kWarning) << "rank " << communicator_->rank()
                           << ": buckets go over memory that ranks do not share: " << memory.status().message();
    memory = MakePrivateBuffer(bytes);
  }
  LOCKSTEP_RETURN_IF_ERROR(memory.status());
  memory_ = *std::move(memory);
  return absl::OkStatus();
}

absl::Status Reducer::MakeBuckets() {
  std::vector<char*> begins;
  char* begin = memory_->data();
  for (const size_t bytes : Regions(plan_)) {
    begins.push_back(begin);
    begin += bytes;
  }
  char* view = views_ == nullptr ? nullptr : views_->data();
  buckets_.clear();
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketPlan::Bucket& planned = plan_.buckets[b];
    char* const flat = begins[b % begins.size()];
    char* views = nullptr;
    if (options_.gradient_as_bucket_view) views = ViewBytes(planned) == 0 ? flat : view;
    if (view != nullptr) view += ViewBytes(planned);
    Bucket* const before = b < begins.size() ? nullptr : buckets_[b - begins.size()].get();
    auto bucket = std::make_unique<Bucket>(planned, b, flat, views, before);
    LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateEvents(*bucket));
    buckets_.push_back(std::move(bucket));
  }
  return absl::OkStatus();
}

absl::Status Reducer::Adopt(BucketPlan plan) {
  // Both plans use the same memory: what lives in it goes by way of some other.
  struct Kept {
    size_t index;
    const void* view;
    std::vector<char> bytes;
  };
  std::vector<Kept> kept;
  if (options_.gradient_as_bucket_view) {
    for (size_t index = 0; index < parameters_.size(); ++index) {
      if (parameters_[index].ignored || parameters_[index].sparse) continue;
      kept.push_back({index, ViewAt(index), {ViewAt(index), ViewAt(index) + parameters_[index].bytes()}});
    }
  }
  plan_ = std::move(plan);
  LOCKSTEP_RETURN_IF_ERROR(MakeBuckets());
  ++plan_version_;
  MutexLock lock(&mu_);
  for (const Kept& gradient : kept) {
    char* const view = ViewAt(gradient.index);
    std::copy(gradient.bytes.begin(), gradient.bytes.end(), view);
    Gradient& window = window_[gradient.index];
    for (TensorView* const tensor : {&window.data, &window.target}) {
      if (tensor->data() == gradient.view) *tensor = DenseView(parameters_[gradient.index], view);
    }
  }
  return absl::OkStatus();
}

char* Reducer::ViewAt(size_t index) const {
  if (!options_.gradient_as_bucket_view) return nullptr;
  const BucketPlan::Location location = plan_.locations[index];
  return buckets_[location.bucket]->ViewAt(location.slot);
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  {
    MutexLock lock(&mu_);
    if (state_ != State::kIdle) {
      return absl::FailedPreconditionError("begin_backward: the last backward was not ended by end_backward");
    }
  }
  // The last step may still be under way in our buckets.
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  if (std::exchange(hook_failed_, false)) LOCKSTEP_RETURN_IF_ERROR(pipeline_->RenewHookCommunicator());
  if (options.sync && std::exchange(replan_due_, false)) {
    const BucketGroups groups = replanner_->Take();
    if (!groups.empty()) LOCKSTEP_RETURN_IF_ERROR(Adopt(LayOut(parameters_, rules_, groups)));
  }
  std::vector<size_t> unused;
  {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(marks_.Begin(options.unused));
    ending_ = false;
    if (!options.sync) {
      state_ = State::kAccumulating;
      return absl::OkStatus();
    }
    state_ = State::kArmed;
    next_bucket_ = 0;
    delayed_filled_ = false;
    ++step_;
    outcome_->Begin(step_);
    pipeline_->Begin({step_, buckets_.size(), replanner_->held()});
    for (const std::unique_ptr<Bucket>& bucket : buckets_) bucket->Reset();
    unused = marks_.unused();
  }
  for (const size_t index : unused) FillFromWindow(index);
  if (!unused.empty() && options_.overlap) LaunchFull();
  return absl::OkStatus();
}

bool Reducer::LayoutFits(size_t index, const TensorView& gradient) const {
  const Parameter& parameter = parameters_[index];
  if (gradient.shape() != absl::MakeConstSpan(parameter.shape)) return false;
  if (gradient.elements() == 0) return true;
  const bool row_major = parameter.strides.empty() || (has_gaps_[index] && gradient.data() == ViewAt(index));
  return row_major ? gradient.contiguous() : SamePlaces(parameter.shape, gradient.strides(), parameter.strides);
}

absl::Status Reducer::CheckGradient(size_t index, const TensorView& gradient) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mark_ready: parameter ", index, " is out of range: there are ", parameters_.size()));
  }
  const Parameter& parameter = parameters_[index];
  if (parameter.ignored || parameter.sparse) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mark_ready: ", Describe(index, parameter),
        parameter.ignored ? " is ignored, as its table says" : " is sparse, as its table says: its gradient is rows"));
  }
  if (gradient.dtype() != parameter.dtype || gradient.device() != parameter.device || !LayoutFits(index, gradient)) {
    return absl::InvalidArgumentError(absl::StrCat("mark_ready: the gradient ", gradient.ToString(), " does not match ",
                                                   Describe(index, parameter), " on ", Name(parameter.device)));
  }
  return CheckPlace(index, gradient);
}

absl::Status Reducer::CheckPlace(size_t index, const TensorView& tensor) const {
  if (!options_.gradient_as_bucket_view || tensor.elements() == 0 || tensor.data() == ViewAt(index) ||
      !LiesInBuckets(tensor.data())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("mark_ready: ", Describe(index, parameters_[index]),
                                                    " lies where its bucket view was before plan ", plan_version_,
                                                    ": ask for its view again"));
}

absl::Status Reducer::CheckTarget(size_t index, const TensorView& target) const {
  const Parameter& parameter = parameters_[index];
  const bool dtype_fits = IsComplex(parameter.dtype) ? target.dtype() == parameter.dtype : IsFloat(target.dtype());
  if (dtype_fits && target.device() == parameter.device && LayoutFits(index, target)) {
    return CheckPlace(index, target);
  }
  return absl::InvalidArgumentError(absl::StrCat("mark_ready: the target ", target.ToString(), " does not fit ",
                                                 Describe(index, parameter), " on ", Name(parameter.device)));
}

bool Reducer::LiesInBuckets(const void* data) const {
  const char* const at = static_cast<const char*>(data);
  const auto lies_in = [at](const SymmetricBuffer* buffer) {
    return buffer != nullptr && at >= buffer->data() && at < buffer->data() + buffer->bytes();
  };
  return lies_in(memory_.get()) || lies_in(views_.get());
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGradient(index, gradient));
  return MarkChecked(index, {gradient, gradient, stream});
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGradient(index, gradient));
  LOCKSTEP_RETURN_IF_ERROR(CheckTarget(index, target));
  return MarkChecked(index, {gradient, target, stream});
}

absl::Status Reducer::MarkChecked(size_t index, const Gradient& gradient) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError(
          absl::StrCat("mark_ready: ", Describe(index, parameters_[index]), " was marked outside a backward"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Marks::Effect effect, marks_.Mark(index));
    if (effect == Marks::Effect::kWaits || state_ == State::kAccumulating) {
      window_[index] = gradient;
      return absl::OkStatus();
    }
  }
  Fill(index, &gradient);
  if (!options_.delayed.empty() && index == options_.delayed_trigger) FillDelayed();
  if (options_.overlap) LaunchFull();
  return absl::OkStatus();
}

void Reducer::Fill(size_t index, const Gradient* gradient) {
  const BucketPlan::Location location = plan_.locations[index];
  Bucket& bucket = *buckets_[location.bucket];
  Bucket::Slot& slot = bucket.slots[location.slot];
  slot.used = gradient != nullptr;
  if (slot.used) {
    slot.gradient = gradient->data;
    slot.target = gradient->target;
  }
  Stream* const stream = slot.used ? gradient->stream : nullptr;
  // While it is hot in cache.
  const bool copies = stream == nullptr && bucket.before() == nullptr;
  const absl::Status copied = copies ? pipeline_->CopyIn(bucket, location.slot) : absl::OkStatus();
  outcome_->Fail(copied, bucket.index());
  MutexLock lock(&mu_);
  if (!copies) bucket.staged.push_back(location.slot);
  if (stream != nullptr && std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
    bucket.streams.push_back(stream);
  }
  bucket.full = --bucket.slots_left == 0;
}

void Reducer::FillFromWindow(size_t index) {
  Gradient gradient;
  bool used = false;
  {
    MutexLock lock(&mu_);
    used = marks_.used_in_window(index);
    if (used) gradient = window_[index];
  }
  Fill(index, used ? &gradient : nullptr);
}

void Reducer::FillDelayed() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(delayed_filled_, true)) return;
  }
  for (const size_t index : options_.delayed) {
    FillFromWindow(index);
    MutexLock lock(&mu_);
    marks_.TakeDelayed(index);
  }
}

void Reducer::LaunchFull() {
  while (true) {
    Bucket* bucket = nullptr;
    {
      MutexLock lock(&mu_);
      if (launching_ || next_bucket_ == buckets_.size() || !buckets_[next_bucket_]->full) return;
      if (holds_last_bucket_ && !ending_ && next_bucket_ + 1 == buckets_.size()) return;
      bucket = buckets_[next_bucket_++].get();
      launching_ = true;
    }
    const absl::Status launched = pipeline_->Launch(*bucket);
    outcome_->FailCommunication(launched);
    // The others wait for a collective that this rank will never begin.
    if (!launched.ok()) communicator_->Abort(absl::StrCat("a bucket cannot be launched: ", launched.message()));
    MutexLock lock(&mu_);
    launching_ = false;
  }
}

absl::Status Reducer::EndBackward(Stream* stream) {
  Marks::Rest rest;
  {
    MutexLock lock(&mu_);
    if (state_ == State::kIdle || ending_) {
      return absl::FailedPreconditionError("end_backward: no backward was begun");
    }
    rest = marks_.End();
    if (state_ == State::kAccumulating) {
      state_ = State::kIdle;
      // What did not come now may have come before; but each backward of a static graph is like the others.
      if (!options_.static_graph || rest.complaint.empty()) return absl::OkStatus();
      return absl::FailedPreconditionError(absl::StrCat("end_backward: ", rest.complaint));
    }
    ending_ = true;
  }
  pipeline_->EndCalled();
  for (const size_t index : rest.ready) FillFromWindow(index);
  for (const size_t index : rest.unused) FillFromWindow(index);
  for (const size_t index : rest.missing) Fill(index, nullptr);
  FillDelayed();
  if (!rest.complaint.empty()) {
    // The first bucket with a hole was not launched, and nor was one behind it; the last one never was, where holes are no matter.
    size_t first = buckets_.size() - 1;
    for (const size_t index : rest.missing) first = std::min(first, plan_.locations[index].bucket);
    outcome_->Fail(absl::FailedPreconditionError(rest.complaint), first);
  }
  LaunchFull();

  const bool in_flight = stream != nullptr && rest.complaint.empty();
  const absl::Status result = in_flight ? pipeline_->Join(*stream, *buckets_.back()) : Finish();
  MutexLock lock(&mu_);
  in_flight_ = in_flight;
  state_ = State::kIdle;
  return result;
}

absl::Status Reducer::FinishInFlight() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(in_flight_, false)) return absl::OkStatus();
  }
  return Finish();
}

absl::Status Reducer::Finish() {
  // Collectives end by their own deadlines, so this does.
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->Synchronize(Deadline::Infinite()));
  pipeline_->End();
  const Bucket& last = *buckets_.back();
  const absl::Status status = outcome_->Conclude(last.failed, Remedy());
  hook_failed_ = last.failed > 0;
  std::vector<size_t> order;
  {
    MutexLock lock(&mu_);
    marks_.EndWindow();
    order = marks_.order();
  }
  // As the sum says, so on all ranks or on none: also where this rank alone has failed, too late for the others to hear.
  replan_due_ = last.reduced && last.unplanned == 0;
  if (!status.ok()) return status;
  replanner_->Record(order, [this](const BucketPlan& plan) { return Fits(plan); });
  return absl::OkStatus();
}

std::string Reducer::Remedy() const {
  std::string text = options_.gradient_as_bucket_view ? "Gradients of the buckets concerned are lost"
                                                      : "No gradient of the buckets concerned was changed";
  if (!pipeline_->optimized().empty()) {
    absl::StrAppend(&text, "; the optimizer has already stepped bucket(s) ",
                    absl::StrJoin(pipeline_->optimized(), ", "));
  }
  return text + "; the next step may be tried.";
}

bool Reducer::Fits(const BucketPlan& plan) const {
  const std::vector<size_t> regions = Regions(plan);
  return std::accumulate(regions.begin(), regions.end(), size_t{0}) <= memory_->bytes();
}

absl::StatusOr<TensorView> Reducer::AverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduced(index, "average"));
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  {
    MutexLock lock(&mu_);
    if (state_ != State::kIdle || step_ == 0) {
      return absl::FailedPreconditionError("average: there is none before a synchronised backward has ended");
    }
  }
  const BucketPlan::Location location = plan_.locations[index];
  const Bucket::Slot& slot = buckets_[location.bucket]->slots[location.slot];
  return slot.used_anywhere ? slot.target : TensorView();
}

absl::StatusOr<TensorView> Reducer::GradientView(size_t index) const {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduced(index, "gradient_view"));
  if (!options_.gradient_as_bucket_view) {
    return absl::FailedPreconditionError(
        "gradient_view: gradients do not live in buckets: set gradient_as_bucket_view");
  }
  return DenseView(parameters_[index], ViewAt(index));
}

absl::Status Reducer::CheckReduced(size_t index, absl::string_view call) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": parameter ", index, " is out of range: there are ", parameters_.size()));
  }
  if (!parameters_[index].ignored && !parameters_[index].sparse) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(call, ": ", Describe(index, parameters_[index]), " is ",
                                                 parameters_[index].ignored ? "ignored" : "sparse"));
}

absl::Status Reducer::RequestReplan() {
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  replanner_->Request();
  return absl::OkStatus();
}

std::string Reducer::ExportPlan() const { return PlanToText(parameters_, GroupsOf(plan_)); }

absl::Status Reducer::Broadcast(absl::Span<const TensorView> tensors, Rank root) {
  return BroadcastCoalesced(*communicator_, tensors, root);
}

ReducerStatistics Reducer::statistics() const { return pipeline_->statistics(); }

}  // namespace lockstep

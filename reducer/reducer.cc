#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/host_device.h"
#include "base/log.h"
#include "base/rank.h"
#include "base/reduce_op.h"
#include "base/status.h"
#include "reducer/agreement.h"
#include "reducer/broadcast.h"
#include "reducer/plan_text.h"
#include "xxhash.h"

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
  if (options.divide_by_live && (options.hook != nullptr || options.average == Average::kNone)) {
    return absl::InvalidArgumentError("divide_by_live: with a hook or a sum there is nothing to divide");
  }
  return CheckPredivideFactor(options.predivide_factor);
}

// For comparison across ranks, and for people.
std::string Settings(const ReducerOptions& options) {
  return absl::StrCat(
      "bucket caps ", absl::StrJoin(options.bucket_caps_bytes, ","), " from the ",
      options.caps_from == CapsFrom::kFirst ? "first" : "last", ", at most ", options.buckets_in_memory_max,
      " in memory, average ", static_cast<int>(options.average), " factor ", options.predivide_factor, ", compress ",
      options.compress.has_value() ? Name(*options.compress) : "no", ", hook ",
      options.hook == nullptr ? "none" : options.hook->name(), ", find_unused ", options.find_unused, ", static_graph ",
      options.static_graph, ", uneven inputs ", options.uneven_inputs, options.divide_by_live,
      options.throw_on_early_end, ", bucket views ", options.gradient_as_bucket_view, ", replan ", options.replan,
      ", optimizer ", static_cast<bool>(options.optimizer), ", delayed ", absl::StrJoin(options.delayed, ","), " by ",
      options.delayed_trigger);
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

// Of the ranks that joined in the latest step the highest.
absl::StatusOr<Rank> LastToJoin(Communicator& communicator, uint64_t joined_in) {
  const uint64_t mine = joined_in << 32 | static_cast<uint32_t>(communicator.rank().value());
  uint64_t last = 0;
  CollectiveRequest request;
  request.collective = Collective::kAllReduce;
  request.dtype = DType::kU64;
  request.op = ReduceOp::kMax;
  request.count = 1;
  request.input = &mine;
  request.output = &last;
  LOCKSTEP_RETURN_IF_ERROR(communicator.Run(request));
  return Rank(static_cast<int>(last & 0xffffffff));
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
  LOCKSTEP_RETURN_IF_ERROR(reducer->Open(communicator, Opening::kCreated));
  return reducer;
}

Reducer::Reducer(std::vector<Parameter> parameters, ReducerOptions options, BucketPlan plan)
    : parameters_(std::move(parameters)),
      options_(std::move(options)),
      rules_(RulesOf(options_)),
      device_(HostDevice()),
      holds_last_bucket_(options_.find_unused || options_.static_graph),
      plan_(std::move(plan)),
      recorder_(plan_.buckets.size(), parameters_.size()),
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

absl::Status Reducer::Open(Communicator* communicator, Opening opening) {
  communicator_ = communicator;
  const std::string settings = Settings(options_);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, absl::OkStatus(), settings, parameters_));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnPlan(opening));
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnParameters(*communicator_, Allocate(), settings, {}));
  LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t first_topic, AgreeOnFirstTopic(*communicator_));
  outcome_->set_first_topic(first_topic);
  replanner_ = std::make_unique<Replanner>(communicator_, first_topic + kTopicsOfPlans, parameters_, &rules_);
  const bool planned_already = !options_.plan.empty() || opening == Opening::kChanged;
  if (options_.replan && !planned_already && !options_.gradient_as_bucket_view) replanner_->Request();
  return pipeline_->RenewHookCommunicator();
}

absl::Status Reducer::AgreeOnPlan(Opening opening) {
  struct Offer {
    uint64_t plan = 0;
    Opening opening = Opening::kCreated;
  };
  const std::string text = ExportPlan();
  const Offer mine = {XXH3_64bits(text.data(), text.size()), opening};
  std::vector<Offer> offers(communicator_->size());
  CollectiveRequest request;
  request.collective = Collective::kAllGather;
  request.count = offers.size() * sizeof(Offer);
  request.input = &mine;
  request.output = offers.data();
  LOCKSTEP_RETURN_IF_ERROR(communicator_->Run(request));
  const auto differs = [&](const Offer& offer) { return offer.plan != offers[0].plan; };
  const auto differing = std::find_if(offers.begin(), offers.end(), differs);
  if (differing == offers.end()) return absl::OkStatus();
  const auto created = [](const Offer& offer) { return offer.opening == Opening::kCreated; };
  if (std::any_of(offers.begin(), offers.end(), created)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the bucket plan differs on rank 0 and rank ", differing - offers.begin()));
  }
  plan_ = FirstPlan(parameters_, options_);
  return absl::OkStatus();
}

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
  settings.divide_by_live = options_.divide_by_live;
  settings.opens_steps = options_.uneven_inputs;
  settings.hook = options_.hook;
  settings.optimizer = options_.optimizer;
  pipeline_ = std::make_unique<BucketPipeline>(device_, communicator_, parameters_, outcome_.get(), &recorder_,
                                               std::move(settings));
  log_ = std::make_unique<StepLog>(DescribeForLog());
  LOCKSTEP_RETURN_IF_ERROR(log_->OpenTrace(options_.trace_path));
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->CreateStreams());
  return MakeBuckets();
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
  const std::vector<Kept> kept = TakeGradients();
  plan_ = std::move(plan);
  LOCKSTEP_RETURN_IF_ERROR(MakeBuckets());
  PutBack(kept);
  recorder_.Replan(plan_.buckets.size());
  SetRebuiltBuckets(plan_, &log_->data());
  return absl::OkStatus();
}

std::vector<Reducer::Kept> Reducer::TakeGradients() const {
  std::vector<Kept> kept;
  if (!options_.gradient_as_bucket_view) return kept;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (parameters_[index].ignored || parameters_[index].sparse) continue;
    kept.push_back({index, ViewAt(index), std::string(ViewAt(index), parameters_[index].bytes())});
  }
  return kept;
}

void Reducer::PutBack(const std::vector<Kept>& gradients) {
  ++plan_version_;
  MutexLock lock(&mu_);
  for (const Kept& gradient : gradients) {
    char* const view = ViewAt(gradient.index);
    std::memcpy(view, gradient.bytes.data(), gradient.bytes.size());
    Gradient& window = window_[gradient.index];
    if (window.data.data() != gradient.view) continue;
    window.data = DenseView(parameters_[gradient.index], view);
    window.target = window.data;
  }
}

char* Reducer::ViewAt(size_t index) const {
  if (!options_.gradient_as_bucket_view) return nullptr;
  const BucketPlan::Location location = plan_.locations[index];
  return buckets_[location.bucket]->ViewAt(location.slot);
}

absl::Status Reducer::CheckIdle(absl::string_view call) {
  LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
  MutexLock lock(&mu_);
  if (state_ == State::kIdle) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": the last backward was not ended by end_backward"));
}

absl::Status Reducer::PrepareStep() {
  if (std::exchange(hook_failed_, false)) LOCKSTEP_RETURN_IF_ERROR(pipeline_->RenewHookCommunicator());
  if (!std::exchange(replan_due_, false)) return absl::OkStatus();
  const BucketGroups groups = replanner_->Take();
  return groups.empty() ? absl::OkStatus() : Adopt(LayOut(parameters_, rules_, groups));
}

void Reducer::BeginStep(bool joined) {
  state_ = State::kArmed;
  ending_ = false;
  next_bucket_ = 0;
  delayed_filled_ = false;
  ++step_;
  outcome_->Begin(step_);
  pipeline_->Begin({step_, buckets_.size(), replanner_->held(), joined});
  log_->Publish(recorder_.last());
  recorder_.BackwardBegan(step_);
  for (const std::unique_ptr<Bucket>& bucket : buckets_) bucket->Reset();
}

absl::Status Reducer::BeginBackward(const BackwardOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("begin_backward"));
  // The last step may still be under way in our buckets.
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  if (options.sync && options_.uneven_inputs && buffer_sync_ != nullptr && buffers_due_) {
    return absl::FailedPreconditionError(
        "begin_backward: ranks that have joined await this step's buffers: call begin_forward");
  }
  {
    MutexLock lock(&mu_);
    LOCKSTEP_RETURN_IF_ERROR(marks_.Begin(options.unused));
    if (!options.sync) {
      ending_ = false;
      state_ = State::kAccumulating;
      return absl::OkStatus();
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(PrepareStep());
  std::vector<size_t> unused;
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/false);
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
  if (parameter.ignored || parameter.sparse) return CheckReduced(index, /*sparse=*/false, "mark_ready");
  if (gradient.dtype() != parameter.dtype || gradient.device() != parameter.device || !LayoutFits(index, gradient)) {
    return absl::InvalidArgumentError(absl::StrCat("mark_ready: the gradient ", gradient.ToString(), " does not match ",
                                                   Describe(index, parameter), " on ", Name(parameter.device)));
  }
  if (options_.gradient_as_bucket_view && gradient.elements() > 0 && gradient.data() != ViewAt(index) &&
      LiesInBuckets(gradient.data())) {
    return absl::FailedPreconditionError(absl::StrCat("mark_ready: the gradient of ", Describe(index, parameter),
                                                      " lies where its bucket view was before plan ", plan_version_,
                                                      ": ask for its view again"));
  }
  return absl::OkStatus();
}

absl::Status Reducer::CheckTarget(size_t index, const TensorView& target) const {
  const Parameter& parameter = parameters_[index];
  const bool dtype_fits = IsComplex(parameter.dtype) ? target.dtype() == parameter.dtype : IsFloat(target.dtype());
  if (dtype_fits && target.device() == parameter.device && LayoutFits(index, target)) return absl::OkStatus();
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
  return MarkChecked(index, {gradient, gradient, {}, stream});
}

absl::Status Reducer::MarkReady(size_t index, const TensorView& gradient, const TensorView& target, Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckGradient(index, gradient));
  LOCKSTEP_RETURN_IF_ERROR(CheckTarget(index, target));
  return MarkChecked(index, {gradient, target, {}, stream});
}

absl::Status Reducer::CheckSparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values) const {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduced(index, /*sparse=*/true, "mark_ready_sparse"));
  const Parameter& parameter = parameters_[index];
  std::vector<int64_t> shape = parameter.shape;
  shape[0] = static_cast<int64_t>(rows.size());
  if (values.dtype() != parameter.dtype || values.device() != parameter.device || !values.contiguous() ||
      values.shape() != absl::MakeConstSpan(shape)) {
    return absl::InvalidArgumentError(absl::StrCat("mark_ready_sparse: the values ", values.ToString(), " of ",
                                                   rows.size(), " rows do not match ", Describe(index, parameter)));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= 0 && rows[i] < parameter.shape[0]) continue;
    return absl::InvalidArgumentError(absl::StrCat("mark_ready_sparse: rows[", i, "] is ", rows[i], ", which ",
                                                   Describe(index, parameter), " has not"));
  }
  return absl::OkStatus();
}

absl::Status Reducer::MarkReadySparse(size_t index, absl::Span<const int64_t> rows, const TensorView& values,
                                      Stream* stream) {
  LOCKSTEP_RETURN_IF_ERROR(CheckSparse(index, rows, values));
  return MarkChecked(index, {values, {}, rows, stream});
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
    recorder_.Marked(index, plan_.locations[index].bucket);
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
    slot.rows = gradient->rows;
  }
  Stream* const stream = slot.used ? gradient->stream : nullptr;
  // While it is hot in cache.
  const bool copies = stream == nullptr && bucket.before() == nullptr && !bucket.plan().sparse;
  const absl::Status copied = copies ? pipeline_->CopyIn(bucket, location.slot) : absl::OkStatus();
  outcome_->Fail(copied, bucket.index());
  MutexLock lock(&mu_);
  if (!copies) bucket.staged.push_back(location.slot);
  if (stream != nullptr && std::find(bucket.streams.begin(), bucket.streams.end(), stream) == bucket.streams.end()) {
    bucket.streams.push_back(stream);
  }
  bucket.full = --bucket.slots_left == 0;
  if (bucket.full) recorder_.Ready(bucket.index());
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
      recorder_.Launched(next_bucket_);
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
    recorder_.EndCalled();
    int64_t unused_bytes = 0;
    for (const size_t index : marks_.unused()) unused_bytes += static_cast<int64_t>(parameters_[index].bytes());
    recorder_.Unused(unused_bytes);
  }
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
  const absl::Status result = in_flight ? pipeline_->Join(*stream, *buckets_.back()) : Finish(/*joined=*/false);
  MutexLock lock(&mu_);
  if (in_flight) recorder_.EndReturned();
  in_flight_ = in_flight;
  state_ = State::kIdle;
  return result;
}

absl::Status Reducer::FinishInFlight() {
  {
    MutexLock lock(&mu_);
    if (!std::exchange(in_flight_, false)) return absl::OkStatus();
  }
  return Finish(/*joined=*/false);
}

absl::Status Reducer::Finish(bool joined) {
  // Collectives end by their own deadlines, so this does.
  LOCKSTEP_RETURN_IF_ERROR(pipeline_->Synchronize(Deadline::Infinite()));
  const Bucket& last = *buckets_.back();
  absl::Status status = outcome_->Conclude(last.failed, Remedy());
  hook_failed_ = last.failed > 0;
  buffers_due_ = true;
  std::vector<size_t> order;
  bool static_so_far = false;
  {
    MutexLock lock(&mu_);
    marks_.EndWindow();
    order = marks_.order();
    static_so_far = marks_.can_be_static();
    recorder_.Finished();
  }
  if (std::exchange(recorded_version_, plan_version_) != plan_version_) recorded_plan_ = plan_;
  log_->Finished(recorder_.last(), recorded_plan_);
  if (options_.find_unused) log_->data().can_set_static_graph = static_so_far;
  if (status.ok() && last.joined > 0 && last.joined < communicator_->size() && options_.throw_on_early_end) {
    status = absl::FailedPreconditionError(
        absl::StrCat("end_backward: ", last.joined, " rank(s) have exhausted their inputs before others"));
  }
  log_->Failed(status);
  // As the sum says, so on all ranks or on none: also where this rank alone has failed, too late for the others to hear.
  replan_due_ = last.reduced && last.unplanned == 0;
  if (last.reduced) LOCKSTEP_RETURN_IF_ERROR(RegroupBuffers(joined));
  if (!status.ok()) return status;
  if (!order.empty()) replanner_->Record(order, [this](const BucketPlan& plan) { return Fits(plan); });
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

absl::Status Reducer::ShadowStep() {
  LOCKSTEP_RETURN_IF_ERROR(PrepareStep());
  {
    MutexLock lock(&mu_);
    BeginStep(/*joined=*/true);
    ending_ = true;
    recorder_.EndCalled();
  }
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    for (const BucketPlan::Slot& slot : bucket.slots) Fill(slot.parameter, nullptr);
  }
  LaunchFull();
  const absl::Status status = Finish(/*joined=*/true);
  MutexLock lock(&mu_);
  state_ = State::kIdle;
  return status;
}

absl::Status Reducer::Join(absl::Span<const TensorView> model, absl::Span<const TensorView> buffers) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("join"));
  if (!options_.uneven_inputs) {
    return absl::FailedPreconditionError("join: the reducer was not made for uneven inputs: set uneven_inputs");
  }
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  uint64_t joined_in = 0;
  {
    MutexLock lock(&mu_);
    joined_in = step_ + 1;
  }
  // Those who have inputs do not know yet.
  if (buffer_sync_ != nullptr && buffers_due_) {
    LOCKSTEP_RETURN_IF_ERROR(buffer_sync_->Run(buffers, BucketPipeline::kJoinedTimeout).status());
  }
  while (true) {
    const absl::Status status = ShadowStep();
    // A step that failed on a rank which has inputs may be tried again by it.
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
    LOCKSTEP_RETURN_IF_ERROR(communicator_->status());
    if (buckets_.back()->joined == communicator_->size()) break;
    if (options_.throw_on_early_end) {
      return absl::FailedPreconditionError(
          absl::StrCat("join: rank ", communicator_->rank().value(), " has exhausted its inputs before others"));
    }
  }
  if (buffer_sync_ != nullptr) buffer_sync_->Restart();
  known_joined_ = 0;
  LOCKSTEP_ASSIGN_OR_RETURN(const Rank last, LastToJoin(*communicator_, joined_in));
  return BroadcastCoalesced(*communicator_, model, last);
}

absl::Status Reducer::ChangeCommunicator(Communicator* communicator) {
  // Their threads use the old communicator.
  replanner_.reset();
  if (pipeline_ != nullptr) (void)pipeline_->Synchronize(Deadline::Infinite());
  const std::vector<Kept> kept = TakeGradients();
  buckets_.clear();
  pipeline_.reset();
  hook_failed_ = false;
  replan_due_ = false;
  buffer_sync_.reset();
  known_joined_ = 0;
  {
    MutexLock lock(&mu_);
    state_ = State::kIdle;
    in_flight_ = false;
    step_ = 0;
    marks_.EndWindow();
  }
  LOCKSTEP_RETURN_IF_ERROR(Open(communicator, Opening::kChanged));
  recorder_.Replan(plan_.buckets.size());
  PutBack(kept);
  return absl::OkStatus();
}

absl::Status Reducer::AwaitAverages(size_t index, bool sparse, absl::string_view call) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduced(index, sparse, call));
  LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  MutexLock lock(&mu_);
  if (state_ == State::kIdle && step_ > 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(call, ": there is none before a synchronised backward has ended"));
}

absl::StatusOr<TensorView> Reducer::AverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/false, "average"));
  const BucketPlan::Location location = plan_.locations[index];
  const Bucket::Slot& slot = buckets_[location.bucket]->slots[location.slot];
  return slot.used_anywhere ? slot.target : TensorView();
}

absl::StatusOr<const CoalescedGradient*> Reducer::SparseAverageOf(size_t index) {
  LOCKSTEP_RETURN_IF_ERROR(AwaitAverages(index, /*sparse=*/true, "sparse_average"));
  const Bucket& bucket = *buckets_[plan_.locations[index].bucket];
  return bucket.slots[0].used_anywhere ? &bucket.sparse_average : nullptr;
}

absl::StatusOr<TensorView> Reducer::GradientView(size_t index) const {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduced(index, /*sparse=*/false, "gradient_view"));
  if (!options_.gradient_as_bucket_view) {
    return absl::FailedPreconditionError(
        "gradient_view: gradients do not live in buckets: set gradient_as_bucket_view");
  }
  return DenseView(parameters_[index], ViewAt(index));
}

absl::Status Reducer::CheckReduced(size_t index, bool sparse, absl::string_view call) const {
  if (index >= parameters_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(call, ": parameter ", index, " is out of range: there are ", parameters_.size()));
  }
  const Parameter& parameter = parameters_[index];
  const std::string name = absl::StrCat(call, ": ", Describe(index, parameter));
  if (parameter.ignored) return absl::InvalidArgumentError(absl::StrCat(name, " is ignored, as its table says"));
  if (parameter.sparse == sparse) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, sparse ? " is not sparse, as its table says" : " is sparse, as its table says: its gradient is rows"));
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

ReducerStatistics Reducer::statistics() const {
  MutexLock lock(&mu_);
  return Statistics(recorder_.last());
}

absl::StatusOr<BucketStatistics> Reducer::bucket_statistics(size_t bucket) const {
  MutexLock lock(&mu_);
  const size_t count = recorder_.last().buckets.size();
  if (bucket < count) return Statistics(recorder_.last(), bucket);
  return absl::InvalidArgumentError(absl::StrCat("bucket ", bucket, " is out of range: the last step had ", count));
}

std::string Reducer::Summary() const {
  MutexLock lock(&mu_);
  return log_->Summarize(recorder_.last(), recorded_plan_);
}

absl::Status Reducer::SetBuffers(absl::Span<const TensorView> buffers, BufferOptions options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckIdle("set_buffers"));
  LOCKSTEP_ASSIGN_OR_RETURN(buffer_sync_, BufferSync::Create(communicator_, std::move(options), buffers));
  buffers_due_ = true;
  log_->data().broadcast_buffers = true;
  return absl::OkStatus();
}

absl::StatusOr<FreshBuffers> Reducer::BeginForward(const ForwardOptions& options) {
  {
    MutexLock lock(&mu_);
    recorder_.ForwardBegan();
    log_->Publish(recorder_.last());
  }
  return SyncBuffers(options, BufferOptions::When::kBeforeForward);
}

absl::Status Reducer::EndForward(const ForwardOptions& options) {
  return SyncBuffers(options, BufferOptions::When::kAfterForward).status();
}

absl::StatusOr<FreshBuffers> Reducer::SyncBuffers(const ForwardOptions& options, BufferOptions::When when) {
  if (!options.sync || buffer_sync_ == nullptr || buffer_sync_->options().when != when) return FreshBuffers();
  // The last step says who takes part.
  if (options_.uneven_inputs) LOCKSTEP_RETURN_IF_ERROR(FinishInFlight());
  if (!std::exchange(buffers_due_, false)) return FreshBuffers();
  return buffer_sync_->Run(options.buffers);
}

absl::Status Reducer::RegroupBuffers(bool joined) {
  const int now = buckets_.back()->joined;
  if (options_.throw_on_early_end) return absl::OkStatus();  // then nobody goes on without them
  const bool grown = now > known_joined_ && now < communicator_->size();
  known_joined_ = now;
  if (!grown || buffer_sync_ == nullptr || !buffer_sync_->takes_part()) return absl::OkStatus();
  return buffer_sync_->Regroup(joined);
}

}  // namespace lockstep
